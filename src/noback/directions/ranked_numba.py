"""Low-rank noise compiled for the CPU: the two sweeps over a matrix, and the signs themselves; the bits of `philox`.

A product's part of a row is the row's sign times c b, the signed coefficients of the columns: made once for a block of
rows. The product of a sign is exact, so a compiler may fuse it with the addition and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from noback.directions.families import Noise
from noback.directions.philox import COLUMN_STREAM, ROW_STREAM, Place, part_size
from noback.directions.pieces_numba import copy_row, draw, narrow, round_row, scale_row, widen
from noback.directions.seeds import column_seed
from noback.values import Move

_ROWS = 128  # that share the columns' signs
_COLUMNS = 256  # of a tile: a row of it is a kilobyte
_PARTS = 64  # products whose columns' signs are held at a time: 64 KiB

Signs = NDArray[np.float32]


def packed(noise: Noise, moves: Sequence[Move]) -> tuple[Any, ...]:
    """What the kernels need of moves: their rank, keys, where each move's begin, and how far each part goes."""
    terms = [term for move in moves for term in move.terms]
    starts = np.cumsum([0] + [len(move.terms) for move in moves], dtype=np.int64)
    sizes = np.array([part_size(noise, term.coefficient) for term in terms], dtype=np.float32)
    return np.int64(noise.rank), _keys(noise, [term.seed for term in terms]), starts, sizes


packed_points = lru_cache(maxsize=4)(packed)  # the same for every tensor of a step


def factors(
    noise: Noise, place: Place, seeds: Sequence[int], rows: NDArray[np.int64], columns: int
) -> tuple[Signs, Signs]:
    """As `philox.factors`."""
    lines = np.arange(place.first_column, place.first_column + columns, dtype=np.int64)
    keys, rank, tensor = _keys(noise, seeds), np.int64(noise.rank), np.uint32(place.tensor)
    of_rows: Signs = _all_signs(keys[0], rank, rows, tensor, np.uint32(ROW_STREAM))
    of_columns: Signs = _all_signs(keys[1], rank, lines, tensor, np.uint32(COLUMN_STREAM))
    return of_rows, of_columns


def _keys(noise: Noise, seeds: Sequence[int]) -> NDArray[np.uint64]:
    """What keys the signs of each direction's rows, and of its columns: [2, seeds]."""
    return np.array([seeds, [column_seed(noise, seed) for seed in seeds]], dtype=np.uint64)


@njit(cache=True, nogil=True)
def _all_signs(seeds, rank, lines, tensor, stream):
    out = np.empty((len(seeds), rank, len(lines)), dtype=np.float32)
    words = np.empty((4, 1), dtype=np.uint32)
    for index in range(len(seeds)):
        for part in range(rank):
            _signs(out[index, part], words, seeds[index], lines, rank, part, tensor, stream, np.float32(1.0))
    return out


@njit(cache=True, nogil=True)
def _signs(out, words, seed, lines, rank, part, tensor, stream, size):
    """`size` with the sign of each of these rows or columns, ascending, in one product."""
    band = np.int64(-1)
    for index in range(len(lines)):
        line = lines[index]
        if line // 128 != band:
            band = line // 128
            draw(words, seed, band, np.uint64(part), 1, np.uint64(rank), tensor, stream)
        bit = (words[(line % 128) // 32, 0] >> np.uint32(line % 32)) & np.uint32(1)
        out[index] = size if bit else -size


@njit(cache=True, nogil=True)
def _add_parts(value, of_columns, of_rows, count, parts):
    """Add the parts in their order; eight at a time, so that an element is read and written an eighth as often."""
    part = 0
    while part + 8 <= parts:
        s0, s1, s2, s3 = of_rows[part], of_rows[part + 1], of_rows[part + 2], of_rows[part + 3]
        s4, s5, s6, s7 = of_rows[part + 4], of_rows[part + 5], of_rows[part + 6], of_rows[part + 7]
        for j in range(count):
            x = value[j] + s0 * of_columns[part, j]
            x += s1 * of_columns[part + 1, j]
            x += s2 * of_columns[part + 2, j]
            x += s3 * of_columns[part + 3, j]
            x += s4 * of_columns[part + 4, j]
            x += s5 * of_columns[part + 5, j]
            x += s6 * of_columns[part + 6, j]
            value[j] = x + s7 * of_columns[part + 7, j]
        part += 8
    while part < parts:
        sign = of_rows[part]
        for j in range(count):
            value[j] += sign * of_columns[part, j]
        part += 1


@njit(cache=True, nogil=True)
def _parts_of_tile(of_rows, of_columns, words, rows, lines, tensor, rank, keys, sizes, first, count):
    """The signs of the rows [rows, parts], and the columns' with their coefficients [parts, columns]."""
    signs = np.empty(len(rows), dtype=np.float32)
    for index in range(count):
        term, part = (first + index) // rank, (first + index) % rank
        columns = of_columns[index, : len(lines)]
        _signs(columns, words, keys[1, term], lines, rank, part, tensor, np.uint32(COLUMN_STREAM), sizes[term])
        _signs(signs, words, keys[0, term], rows, rank, part, tensor, np.uint32(ROW_STREAM), np.float32(1.0))
        for row in range(len(rows)):
            of_rows[row, index] = signs[row]


@njit(cache=True, nogil=True)
def perturb_ranked(
    half, w32, w16, out32, out16, rows, first, last, first_row, first_column, tensor, rank, keys, starts, sizes
):
    """Write rows `rows[first:last]` of a matrix at each point."""
    width = w16.shape[1] if half else w32.shape[1]
    step = min(_COLUMNS, width)
    words = np.empty((4, 1), dtype=np.uint32)
    of_rows = np.empty((_ROWS, _PARTS), dtype=np.float32)
    of_columns = np.empty((_PARTS, step), dtype=np.float32)
    tile = np.empty((_ROWS, step), dtype=np.float32)
    for top in range(first, last, _ROWS):
        some = rows[top : min(top + _ROWS, last)]
        for begin in range(0, width, step):
            count = min(step, width - begin)
            lines = first_column + np.arange(begin, begin + count)
            for point in range(len(starts) - 1):
                for row in range(len(some)):
                    if half:
                        widen(tile[row], w16[some[row] - first_row, begin : begin + count], count)
                    else:
                        copy_row(tile[row], w32[some[row] - first_row, begin : begin + count], count)
                end = starts[point + 1] * rank
                for part in range(starts[point] * rank, end, _PARTS):
                    parts = min(_PARTS, end - part)
                    _parts_of_tile(of_rows, of_columns, words, some, lines, tensor, rank, keys, sizes, part, parts)
                    for row in range(len(some)):
                        _add_parts(tile[row], of_columns, of_rows[row], count, parts)
                for row in range(len(some)):
                    if half:
                        narrow(out16[point, top + row, begin : begin + count], tile[row], count)
                    else:
                        copy_row(out32[point, top + row, begin : begin + count], tile[row], count)


@njit(cache=True, nogil=True)
def advance_ranked(
    half, w32, w16, first, last, first_row, first_column, columns, tensor, rank, keys, starts, sizes, decays, rounding
):
    """Apply the moves to the rows `first` to `last` of a matrix in place."""
    width = w16.shape[1] if half else w32.shape[1]
    step = min(_COLUMNS, width)
    words = np.empty((4, step), dtype=np.uint32)
    of_rows = np.empty((_ROWS, _PARTS), dtype=np.float32)
    of_columns = np.empty((_PARTS, step), dtype=np.float32)
    tile = np.empty((_ROWS, step), dtype=np.float32)
    for top in range(first, last, _ROWS):
        height = min(_ROWS, last - top)
        rows = np.arange(first_row + top, first_row + top + height)
        for begin in range(0, width, step):
            count = min(step, width - begin)
            column = first_column + begin
            lines = np.arange(column, column + count)
            for row in range(height if half else 0):
                widen(tile[row], w16[top + row, begin : begin + count], count)
            for move in range(len(decays)):
                if decays[move] != np.float32(1.0):
                    for row in range(height):
                        scale_row(tile[row] if half else w32[top + row, begin : begin + count], decays[move], count)
                end = starts[move + 1] * rank
                for part in range(starts[move] * rank, end, _PARTS):
                    parts = min(_PARTS, end - part)
                    _parts_of_tile(of_rows, of_columns, words, rows, lines, tensor, rank, keys, sizes, part, parts)
                    for row in range(height):
                        value = tile[row] if half else w32[top + row, begin : begin + count]
                        _add_parts(value, of_columns, of_rows[row], count, parts)
                for row in range(height if half else 0):
                    number = rows[row]
                    if row == 0 or number % 8 == 0:
                        draw(words, rounding[move], number // 8, np.uint64(column), count, columns, tensor, 1)
                    round_row(tile[row], words[(number % 8) // 2], np.uint32(16 * (number % 2)), count)
            for row in range(height if half else 0):
                narrow(w16[top + row, begin : begin + count], tile[row], count)
