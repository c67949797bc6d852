"""The noise compiled for the CPU with numba: the same two sweeps as `philox`, the same bits.

A sweep goes band by band and, in a band, tile by tile of columns. A tile's Philox words are made once
and serve all rows of the band and all points that share a seed. Kernels are serial and free of the
interpreter's lock; a pool of threads shares out the bands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from noback.directions.families import Noise
from noback.directions.philox import Array, Place, fold, is_ranked
from noback.directions.pieces_numba import add_row, copy_row, draw, narrow, round_row, scale_row, widen
from noback.directions.ranked_numba import advance_ranked, factors, packed, packed_points, perturb_ranked
from noback.directions.thread_pool import share_out
from noback.values import Move

_TILE_COLUMNS = 256  # a normal band's tile is 16 KiB of float32: half of a first-level cache
_CHUNK = 262_144  # elements that a thread takes at a time: about a fifth of a millisecond
_MOVES_A_PASS = 512  # bounds the folded tables to half a megabyte

Arrays = tuple[NDArray[Any], ...]
Chunks = list[tuple[Any, ...]]

__all__ = ["advance", "factors", "perturb"]


def perturb(
    parts: Sequence[tuple[Array, Array, Place]], noise: Noise, points: Sequence[Move],
    rows: NDArray[np.int64] | None = None, *, threads: int = 1,
) -> None:  # fmt: skip
    """As `philox.perturb`; all arrays are cut into chunks of rows that the threads take in turn."""
    band = 128 // noise.bits
    elements: Chunks = []
    vectors: Chunks = []
    ranked: Chunks = []
    for out, weight, place in parts:
        both = (weight.dtype != np.float32, *_as_both(weight), *_as_both(out))
        if is_ranked(noise, place):
            chosen = _rows(len(weight), place.first_row) if rows is None else rows
            step = _a_chunk(out.size, len(chosen)) if threads > 1 else len(chosen)
            rest = (*_corner(place), np.uint32(place.tensor), *packed_points(noise, tuple(points)))
            ranked += [(*both, chosen, *ends, *rest) for ends in _cut(len(chosen), step)]
            continue
        chosen, groups = _whole(len(weight), place.first_row, band) if rows is None else _grouped(rows, band)
        where = (*_where(place), np.int64(noise.bits), *_folded(noise, tuple(points)))
        bands = len(groups) - 1
        step = _a_chunk(out.size, bands) if threads > 1 else bands
        some = vectors if weight.shape[1] == 1 and weight.dtype == np.float32 else elements
        some += [(*both, chosen, groups[first : first + step + 1], *where) for first in range(0, bands, step)]
    _share_out(threads, (_perturb, elements), (_perturb_vector, vectors), (perturb_ranked, ranked))


def advance(parts: Sequence[tuple[Array, Place]], noise: Noise, moves: Sequence[Move], *, threads: int = 1) -> None:
    """As `philox.advance`; all arrays are cut into chunks of rows that the threads take in turn."""
    band = 128 // noise.bits
    for begin in range(0, len(moves), _MOVES_A_PASS):
        some = moves[begin : begin + _MOVES_A_PASS]
        decays = np.array([move.decay for move in some], dtype=np.float32)
        rounding = np.array([move.rounding_seed for move in some], dtype=np.uint64)
        terms, of_ranks = _terms(noise, some), packed(noise, some) if noise.rank else ()
        elements: Chunks = []
        ranked: Chunks = []
        for weight, place in parts:
            both = (weight.dtype != np.float32, *_as_both(weight))
            if is_ranked(noise, place):
                step = _a_chunk(weight.size, len(weight))
                rest = (*_corner(place), *_where(place)[2:], *of_ranks, decays, rounding)
                ranked += [(*both, *ends, *rest) for ends in _cut(len(weight), step)]
                continue
            where = (*_where(place), np.int64(noise.bits), *terms, decays, rounding)
            bands = (place.first_row + len(weight) - 1) // band - place.first_row // band + 1
            elements += [(*both, *ends, *where) for ends in _cut(bands, _a_chunk(weight.size, bands))]
        _share_out(threads, (_advance, elements), (advance_ranked, ranked))


def _share_out(threads: int, *work: tuple[Callable[..., None], Chunks]) -> None:
    for kernel, chunks in work:
        share_out(threads if len(chunks) > 1 else 1, kernel, chunks)


def _a_chunk(elements: int, lines: int) -> int:
    """How many lines, such as rows, a thread takes at a time."""
    return max(lines * _CHUNK // elements, 1)


def _cut(count: int, step: int) -> list[tuple[int, int]]:
    return [(first, min(first + step, count)) for first in range(0, count, step)]


def _terms(noise: Noise, moves: Sequence[Move]) -> Arrays:
    """The moves' seeds one after the other, where each move's begin, and their folded tables."""
    terms = [term for move in moves for term in move.terms]
    starts = np.cumsum([0] + [len(move.terms) for move in moves], dtype=np.int64)
    tables = np.empty((max(len(terms), 1), len(noise.values)), dtype=np.float32)
    for index, term in enumerate(terms):
        tables[index] = fold(noise, term.coefficient)
    return np.array([term.seed for term in terms], dtype=np.uint64), starts, tables


@lru_cache(maxsize=4)
def _folded(noise: Noise, points: tuple[Move, ...]) -> Arrays:
    """The points' terms with each seed once: the same for every tensor of a step."""
    term_seeds, starts, tables = _terms(noise, points)
    seeds, seed_of_term = np.unique(term_seeds, return_inverse=True)
    return seeds, seed_of_term.astype(np.int64), starts, tables


@lru_cache(maxsize=256)
def _whole(rows: int, first_row: int, band: int) -> Arrays:
    return _grouped(_rows(rows, first_row), band)


def _rows(rows: int, first_row: int) -> NDArray[np.int64]:
    return np.arange(first_row, first_row + rows, dtype=np.int64)


def _grouped(rows: NDArray[np.int64], band: int) -> Arrays:
    """The ascending rows, and where among them each band begins, at the end their number."""
    bands = rows // band
    begins = np.flatnonzero(np.diff(bands, prepend=bands[:1] - 1))
    return rows, np.append(begins, len(rows)).astype(np.int64)


def _where(place: Place) -> tuple[Any, ...]:
    first = np.int64(place.first_row), np.uint64(place.first_column)
    return *first, np.uint64(place.columns), np.uint32(place.tensor)


def _corner(place: Place) -> tuple[np.int64, np.int64]:
    return np.int64(place.first_row), np.int64(place.first_column)


def _as_both(array: Array) -> Arrays:
    """The array under its own type, and an empty one of the other: one compiled kernel serves both."""
    none = (0,) * array.ndim
    return (array, np.empty(none, np.uint16)) if array.dtype == np.float32 else (np.empty(none, np.float32), array)


@njit(cache=True, nogil=True)
def _perturb(
    half, w32, w16, out32, out16, rows, groups, first_row, first_column, columns, tensor, bits,
    seeds, seed_of_term, starts, tables,
):  # fmt: skip
    band = 128 // bits
    mask = np.uint32((1 << bits) - 1)
    width = w16.shape[1] if half else w32.shape[1]
    step = min(_TILE_COLUMNS, width)
    words = np.empty((len(seeds), 4, step), dtype=np.uint32)
    tile = np.empty(step, dtype=np.float32)
    for group in range(len(groups) - 1):
        here = rows[groups[group]] // band
        for begin in range(0, width, step):
            count = min(step, width - begin)
            end = begin + count
            for s in range(len(seeds)):
                draw(words[s], seeds[s], here, first_column + np.uint64(begin), count, columns, tensor, 0)
            for index in range(groups[group], groups[group + 1]):
                local, first_bit = rows[index] - first_row, (rows[index] % band) * bits
                word, shift = first_bit // 32, np.uint32(first_bit % 32)
                for point in range(len(starts) - 1):
                    value = tile if half else out32[point, index, begin:end]
                    if half:
                        widen(value, w16[local, begin:end], count)
                    else:
                        copy_row(value, w32[local, begin:end], count)
                    for term in range(starts[point], starts[point + 1]):
                        add_row(value, words[seed_of_term[term], word], tables[term], shift, mask, count)
                    if half:
                        narrow(out16[point, index, begin:end], value, count)


@njit(cache=True, nogil=True)
def _perturb_vector(
    _half, w32, _w16, out32, _out16, rows, groups, first_row, first_column, columns, tensor, bits,
    seeds, seed_of_term, starts, tables,
):  # fmt: skip
    """As `_perturb` of float32 that is one column wide: element by element, for many points."""
    band = 128 // bits
    mask = np.uint32((1 << bits) - 1)
    words = np.empty((len(seeds), 4, 1), dtype=np.uint32)
    for group in range(len(groups) - 1):
        here = rows[groups[group]] // band
        for s in range(len(seeds)):
            draw(words[s], seeds[s], here, first_column, 1, columns, tensor, 0)
        for point in range(len(starts) - 1):
            for index in range(groups[group], groups[group + 1]):
                first_bit = (rows[index] % band) * bits
                word, shift = first_bit // 32, np.uint32(first_bit % 32)
                value = w32[rows[index] - first_row, 0]
                for term in range(starts[point], starts[point + 1]):
                    value += tables[term, np.uint64((words[seed_of_term[term], word, 0] >> shift) & mask)]
                out32[point, index, 0] = value


@njit(cache=True, nogil=True)
def _advance(
    half, w32, w16, first_band, last_band, first_row, first_column, columns, tensor, bits,
    term_seeds, starts, tables, decays, rounding,
):  # fmt: skip
    band = 128 // bits
    mask = np.uint32((1 << bits) - 1)
    height, width = w16.shape if half else w32.shape
    step = min(_TILE_COLUMNS, width)
    words = np.empty((4, step), dtype=np.uint32)
    tile = np.empty((band, step), dtype=np.float32)
    for index in range(first_band, last_band):
        here = first_row // band + index
        first, last = max(here * band - first_row, 0), min((here + 1) * band - first_row, height)
        for begin in range(0, width, step):
            count = min(step, width - begin)
            end, column = begin + count, first_column + np.uint64(begin)
            for local in range(first, last if half else first):
                widen(tile[local - first], w16[local, begin:end], count)
            for move in range(len(decays)):
                if decays[move] != np.float32(1.0):
                    for local in range(first, last):
                        scale_row(tile[local - first] if half else w32[local, begin:end], decays[move], count)
                for term in range(starts[move], starts[move + 1]):
                    draw(words, term_seeds[term], here, column, count, columns, tensor, 0)
                    for local in range(first, last):
                        first_bit = ((local + first_row) % band) * bits
                        value = tile[local - first] if half else w32[local, begin:end]
                        add_row(value, words[first_bit // 32], tables[term], np.uint32(first_bit % 32), mask, count)
                for local in range(first, last if half else first):
                    number = local + first_row
                    if local == first or number % 8 == 0:
                        draw(words, rounding[move], number // 8, column, count, columns, tensor, 1)
                    round_row(tile[local - first], words[(number % 8) // 2], np.uint32(16 * (number % 2)), count)
            for local in range(first, last if half else first):
                narrow(w16[local, begin:end], tile[local - first], count)
