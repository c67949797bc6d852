"""What Triton's sweeps over tensors need to know of each: where it lies in memory and in the noise."""

from __future__ import annotations

from torch import Tensor

from noback.directions.philox import Place

_NARROW = 64  # a matrix of fewer columns goes element by element


def is_wide(matrix: Tensor) -> bool:
    """Whether a matrix is swept by tiles: its rows are long and begin where 16 bytes begin."""
    return matrix.shape[1] >= _NARROW and matrix.shape[1] % 16 == 0 and matrix.data_ptr() % 16 == 0


def where(place: Place) -> tuple[int, int, int, int]:
    """The columns of the whole tensor, its id, and the first row and column that are here."""
    tensor = (place.tensor + 2**31) % 2**32 - 2**31  # the same bits as a signed number: one type for the compiler
    return place.columns, tensor, place.first_row, place.first_column
