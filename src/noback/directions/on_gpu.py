"""The former place of two names, for importers that have not moved yet."""

from noback.directions.backend import why_no_triton
from noback.directions.cpu_backend import tensor_array

__all__ = ["tensor_array", "why_no_triton"]
