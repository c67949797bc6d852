"""The noise compiled for the CPU with numba: the same two sweeps as `philox`, the same bits.

A sweep goes band by band and, in a band, tile by tile of columns. A tile's Philox words are made once
and serve all rows of the band and all points that share a seed. Kernels are serial and free of the
interpreter's lock; threads of our own share out the bands, so no second OpenMP pool competes with torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np
from numba import njit
from numpy.typing import NDArray

from noback.directions.families import Family
from noback.directions.philox import Array, Place, fold
from noback.values import Move

_TILE_COLUMNS = 256  # a normal band's tile is 16 KiB of float32: half of a first-level cache
_SERIAL_BELOW = 32768  # elements; under this, handing work to a thread costs more than it saves
_MOVES_A_PASS = 512  # bounds the folded tables to half a megabyte

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


def perturbed(
    weight: Array,
    place: Place,
    family: Family,
    points: Sequence[Move],
    rows: NDArray[np.int64] | None = None,
    *,
    out: Array | None = None,
    threads: int = 1,
) -> Array:
    """As `philox.perturbed`; writes to `out` where one is given."""
    chosen = np.arange(len(weight), dtype=np.int64) + place.first_row if rows is None else rows
    if out is None:
        out = np.empty((len(points), len(chosen), weight.shape[1]), dtype=weight.dtype)
    seeds, seed_of_term, starts, tables = _folded(family, points)
    half = weight.dtype != np.float32
    source, target = _as_both(weight), _as_both(out)
    groups = _groups(chosen, family.band)
    _share_out(
        threads,
        groups,
        weight.shape[1] * len(chosen) * len(points),
        lambda first, last: _perturb(
            half, *source, *target, chosen, groups[first : last + 1], np.int64(place.first_row), *_where(place),
            np.int64(family.bits), seeds, seed_of_term, starts, tables,
        ),
    )  # fmt: skip
    return out


def advance(weight: Array, place: Place, family: Family, moves: Sequence[Move], *, threads: int = 1) -> None:
    """As `philox.advance`."""
    rows = np.arange(len(weight), dtype=np.int64) + place.first_row
    groups = _groups(rows, family.band)
    half, both = weight.dtype != np.float32, _as_both(weight)
    for begin in range(0, len(moves), _MOVES_A_PASS):
        part = moves[begin : begin + _MOVES_A_PASS]
        term_seeds, starts, tables = _terms(family, part)
        decays = np.array([move.decay for move in part], dtype=np.float32)
        rounding = np.array([move.rounding_seed for move in part], dtype=np.uint64)
        where = (np.int64(place.first_row), *_where(place), np.int64(family.bits))
        sweep = partial(_advance_bands, half, both, groups, (*where, term_seeds, starts, tables, decays, rounding))
        _share_out(threads, groups, weight.size * len(part), sweep)


def _advance_bands(half, both, groups, rest, first, last):  # type: ignore[no-untyped-def]
    _advance(half, *both, groups[first : last + 1], *rest)


def _terms(family: Family, moves: Sequence[Move]) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.float32]]:
    terms = [term for move in moves for term in move.terms]
    starts = np.cumsum([0] + [len(move.terms) for move in moves], dtype=np.int64)
    tables = np.empty((max(len(terms), 1), len(family.values)), dtype=np.float32)
    for index, term in enumerate(terms):
        tables[index] = fold(family, term.coefficient)
    return np.array([term.seed for term in terms], dtype=np.uint64), starts, tables


def _folded(
    family: Family, points: Sequence[Move]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    term_seeds, starts, tables = _terms(family, points)
    seeds, seed_of_term = np.unique(term_seeds, return_inverse=True)
    return seeds, seed_of_term.astype(np.int64), starts, tables


def _groups(rows: NDArray[np.int64], band: int) -> NDArray[np.int64]:
    """Where each band begins in the ascending `rows`, and at the end their number."""
    bands = rows // band
    begins = np.flatnonzero(np.diff(bands, prepend=bands[:1] - 1))
    return np.append(begins, len(rows)).astype(np.int64)


def _where(place: Place) -> tuple[np.uint64, np.uint64, np.uint32]:
    return np.uint64(place.first_column), np.uint64(place.columns), np.uint32(place.tensor)


def _as_both(array: Array) -> tuple[NDArray[np.float32], NDArray[np.uint16]]:
    """The array under its own type, and an empty one of the other: one compiled kernel serves both."""
    none = (0,) * array.ndim
    if array.dtype == np.float32:
        return array, np.empty(none, dtype=np.uint16)
    return np.empty(none, dtype=np.float32), array


def _share_out(threads: int, groups: NDArray[np.int64], work: int, sweep: Callable[[int, int], None]) -> None:
    """Run `sweep(first, last)` over the bands, in this thread and `threads - 1` others."""
    bands = len(groups) - 1
    if threads <= 1 or work < _SERIAL_BELOW or bands < threads:
        sweep(0, bands)
        return
    edges = [bands * index // threads for index in range(threads + 1)]
    others = [_pool(threads).submit(sweep, edges[i], edges[i + 1]) for i in range(1, threads)]
    sweep(edges[0], edges[1])
    for other in others:
        other.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="noback-noise")


@njit(cache=True, nogil=True)
def _words(words, seed, band, first_column, count, columns, tensor, stream):  # type: ignore[no-untyped-def]
    """Four words for each of `count` columns of a band: `words[4, tile]`."""
    first = np.uint64(band) * columns + first_column
    for j in range(count):
        position = first + np.uint64(j)
        c0 = np.uint32(position)
        c1 = np.uint32(position >> np.uint64(32))
        c2 = np.uint32(tensor)
        c3 = np.uint32(stream)
        k0 = np.uint32(seed)
        k1 = np.uint32(seed >> np.uint64(32))
        for _ in range(10):
            p0 = np.uint64(c0) * _M0
            p1 = np.uint64(c2) * _M1
            c0 = np.uint32(p1 >> np.uint64(32)) ^ c1 ^ k0
            c2 = np.uint32(p0 >> np.uint64(32)) ^ c3 ^ k1
            c1 = np.uint32(p1)
            c3 = np.uint32(p0)
            k0 = np.uint32(k0 + _W0)
            k1 = np.uint32(k1 + _W1)
        words[0, j] = c0
        words[1, j] = c1
        words[2, j] = c2
        words[3, j] = c3


@njit(cache=True, nogil=True)
def _add(tile, words, table, shift, mask, count):  # type: ignore[no-untyped-def]
    for j in range(count):
        tile[j] += table[np.uint64((words[j] >> shift) & mask)]


@njit(cache=True, nogil=True)
def _load(tile, row, count):  # type: ignore[no-untyped-def]
    for j in range(count):
        tile[j] = row[j]


@njit(cache=True, nogil=True)
def _load_bfloat16(tile, row, count):  # type: ignore[no-untyped-def]
    bits = tile.view(np.uint32)
    for j in range(count):
        bits[j] = np.uint32(row[j]) << np.uint32(16)


@njit(cache=True, nogil=True)
def _store(row, tile, count):  # type: ignore[no-untyped-def]
    for j in range(count):
        row[j] = tile[j]


@njit(cache=True, nogil=True)
def _store_bfloat16(row, tile, count):  # type: ignore[no-untyped-def]
    """Write the tile's row to nearest, ties to even."""
    bits = tile.view(np.uint32)
    for j in range(count):
        x = bits[j]
        if (x & np.uint32(0x7F800000)) == np.uint32(0x7F800000):
            quiet = np.uint32(0x40) if (x & np.uint32(0x007FFFFF)) != 0 else np.uint32(0)
            row[j] = np.uint16((x >> np.uint32(16)) | quiet)
        else:
            odd = (x >> np.uint32(16)) & np.uint32(1)
            row[j] = np.uint16(np.uint32(x + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@njit(cache=True, nogil=True)
def _round(tile, words, shift, count):  # type: ignore[no-untyped-def]
    """Round the tile's row stochastically to bfloat16, in place."""
    bits = tile.view(np.uint32)
    for j in range(count):
        x = bits[j]
        if (x & np.uint32(0x7F800000)) == np.uint32(0x7F800000):
            quiet = np.uint32(0x400000) if (x & np.uint32(0x007FFFFF)) != 0 else np.uint32(0)
            bits[j] = (x & np.uint32(0xFFFF0000)) | quiet
        else:
            random = (words[j] >> shift) & np.uint32(0xFFFF)
            bits[j] = np.uint32(x + random) & np.uint32(0xFFFF0000)


@njit(cache=True, nogil=True)
def _perturb(  # type: ignore[no-untyped-def]
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
                _words(words[s], seeds[s], here, first_column + np.uint64(begin), count, columns, tensor, 0)
            for index in range(groups[group], groups[group + 1]):
                local = rows[index] - first_row
                first_bit = (rows[index] % band) * bits
                shift = np.uint32(first_bit % 32)
                for point in range(len(starts) - 1):
                    if half:
                        _load_bfloat16(tile, w16[local, begin:end], count)
                    else:
                        _load(tile, w32[local, begin:end], count)
                    for term in range(starts[point], starts[point + 1]):
                        _add(tile, words[seed_of_term[term], first_bit // 32], tables[term], shift, mask, count)
                    if half:
                        _store_bfloat16(out16[point, index, begin:end], tile, count)
                    else:
                        _store(out32[point, index, begin:end], tile, count)


@njit(cache=True, nogil=True)
def _advance(  # type: ignore[no-untyped-def]
    half, w32, w16, groups, first_row, first_column, columns, tensor, bits, term_seeds, starts, tables, decays,
    rounding,
):  # fmt: skip
    band = 128 // bits
    mask = np.uint32((1 << bits) - 1)
    width = w16.shape[1] if half else w32.shape[1]
    step = min(_TILE_COLUMNS, width)
    words = np.empty((4, step), dtype=np.uint32)
    tile = np.empty((band, step), dtype=np.float32)
    for group in range(len(groups) - 1):
        first, last = groups[group], groups[group + 1]
        here = (first + first_row) // band
        for begin in range(0, width, step):
            count = min(step, width - begin)
            end = begin + count
            column = first_column + np.uint64(begin)
            for local in range(first, last):
                if half:
                    _load_bfloat16(tile[local - first], w16[local, begin:end], count)
                else:
                    _load(tile[local - first], w32[local, begin:end], count)
            for move in range(len(decays)):
                if decays[move] != np.float32(1.0):
                    for local in range(last - first):
                        for j in range(count):
                            tile[local, j] *= decays[move]
                for term in range(starts[move], starts[move + 1]):
                    _words(words, term_seeds[term], here, column, count, columns, tensor, 0)
                    for local in range(first, last):
                        first_bit = ((local + first_row) % band) * bits
                        _add(
                            tile[local - first], words[first_bit // 32], tables[term], np.uint32(first_bit % 32),
                            mask, count,
                        )  # fmt: skip
                if half:
                    for local in range(first, last):
                        row = local + first_row
                        if local == first or row % 8 == 0:
                            _words(words, rounding[move], row // 8, column, count, columns, tensor, 1)
                        _round(tile[local - first], words[(row % 8) // 2], np.uint32(16 * (row % 2)), count)
            for local in range(first, last):
                if half:
                    _store_bfloat16(w16[local, begin:end], tile[local - first], count)
                else:
                    _store(w32[local, begin:end], tile[local - first], count)
