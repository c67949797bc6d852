"""The pieces of the sweeps on a CPU, compiled with numba: Philox words, and what is done to one row of a tile."""

from __future__ import annotations

import numpy as np
from numba import njit

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


@njit(cache=True, nogil=True)
def draw(words, seed, band, first_column, count, columns, tensor, stream):
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
def add_row(tile, words, table, shift, mask, count):
    """Add to each element the value that its bits choose."""
    for j in range(count):
        tile[j] += table[np.uint64((words[j] >> shift) & mask)]


@njit(cache=True, nogil=True)
def scale_row(tile, factor, count):
    """Multiply each element."""
    for j in range(count):
        tile[j] *= factor


@njit(cache=True, nogil=True)
def copy_row(target, row, count):
    """Copy float32."""
    for j in range(count):
        target[j] = row[j]


@njit(cache=True, nogil=True)
def widen(tile, row, count):
    """Read bfloat16."""
    bits = tile.view(np.uint32)
    for j in range(count):
        bits[j] = np.uint32(row[j]) << np.uint32(16)


@njit(cache=True, nogil=True)
def narrow(row, tile, count):
    """Write bfloat16, to nearest, ties to even."""
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
def round_row(tile, words, shift, count):
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
