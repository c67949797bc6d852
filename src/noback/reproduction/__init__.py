"""Reproduction: a grid of runs, gone through resumably, and its table beside the published one."""

from noback.reproduction.grid import Cell, Grid, Method, grid_of, published, read_grid
from noback.reproduction.grid_runner import estimate, reproduce, run_cells
from noback.reproduction.table import chosen_by_validation, markdown, summarised, tried_together

__all__ = [
    "Cell",
    "Grid",
    "Method",
    "chosen_by_validation",
    "estimate",
    "grid_of",
    "markdown",
    "published",
    "read_grid",
    "reproduce",
    "run_cells",
    "summarised",
    "tried_together",
]
