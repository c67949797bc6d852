"""The definition of the noise, readable and slow: Philox4x32-10 in NumPy, and the two sweeps over a tensor.

Every other implementation (numba, Triton) must equal this file bit for bit.

An element's noise is a pure function of (seed, tensor, row, column). One Philox call gives 128 bits;
it serves a *band* of rows at one column: with `b` bits an element, the 128 // b rows of band
`row // (128 // b)`, at position `band * columns + column`. Row r of the band takes bits
[r * b, (r + 1) * b) of the call's four little-endian words. A vector is seen as one column, so that
it too wastes nothing and is cut where its matrix's rows are cut.

Stream 0 holds the noise; stream 1 the 16 bits an element that round a bfloat16 update.

A family of rank r has one bit a row and one a column of a matrix instead: its direction is the sum of r products
a b^T of signs, over the root of r. The signs of the rows are noise of one bit of a tensor [rows, r] in stream 2, those
of the columns of a tensor [columns, r] in stream 3. Each product is added by itself, as a term is.
Where columns are kept for some steps, the upper half of the seed alone keys their signs (`seeds.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noback.directions.families import Noise
from noback.directions.seeds import column_seed
from noback.values import Move, Term

Words = NDArray[np.uint32]
Array = NDArray[Any]  # float32, or uint16 holding bfloat16

NOISE_STREAM = 0
ROUNDING_STREAM = 1
ROW_STREAM, COLUMN_STREAM = 2, 3
ROUNDING_BITS = 16

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array lies in its tensor: the tensor's id and full width, and the array's first row and column."""

    tensor: int
    columns: int
    first_row: int = 0
    first_column: int = 0


def philox(seed: int, position: NDArray[np.uint64], tensor: int, stream: int) -> tuple[Words, Words, Words, Words]:
    """Ten rounds of Philox4x32 at each position: four words a position."""
    c0 = (position & np.uint64(_MASK)).astype(np.uint64)
    c1 = (position >> np.uint64(32)).astype(np.uint64)
    c2 = np.full_like(c0, tensor & _MASK)
    c3 = np.full_like(c0, stream & _MASK)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    low, high = np.uint64(_MASK), np.uint64(32)
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (p1 >> high) ^ c1 ^ np.uint64(k0), (p0 >> high) ^ c3 ^ np.uint64(k1)
        c1, c3 = p1 & low, p0 & low
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return (c0.astype(np.uint32), c1.astype(np.uint32), c2.astype(np.uint32), c3.astype(np.uint32))


def element_bits(seed: int, place: Place, rows: NDArray[np.int64], columns: int, *, bits: int, stream: int) -> Words:
    """The `bits` bits of each element at the tensor's `rows` and the place's `columns` columns: [rows, columns]."""
    band = 128 // bits
    column = np.arange(place.first_column, place.first_column + columns, dtype=np.uint64)
    position = (rows[:, None] // band).astype(np.uint64) * np.uint64(place.columns) + column[None, :]
    words = np.stack(philox(seed, position, place.tensor, stream))
    first_bit = (rows % band) * bits
    chosen = words[first_bit // 32, np.arange(len(rows))]
    return (chosen >> (first_bit % 32).astype(np.uint32)[:, None]) & np.uint32((1 << bits) - 1)


def fold(noise: Noise, coefficient: float) -> NDArray[np.float32]:
    """The family's values times the coefficient: formed in float64, rounded once to float32."""
    with np.errstate(over="ignore"):
        return (noise.values.astype(np.float64) * coefficient).astype(np.float32)


def is_ranked(noise: Noise, place: Place) -> bool:
    """Whether directions of a tensor are products of a row's sign and a column's: those of a vector never are."""
    return noise.rank > 0 and place.columns > 1


def part_size(noise: Noise, coefficient: float) -> np.float32:
    """How far each of a term's products moves an element: formed in float64, rounded once to float32."""
    with np.errstate(over="ignore"):
        return np.float32(coefficient / math.sqrt(noise.rank))


def signs(seed: int, place: Place, lines: NDArray[np.int64], rank: int, stream: int) -> NDArray[np.float32]:
    """The sign of each of the chosen rows or columns in each product: [lines, rank]."""
    bits = element_bits(seed, Place(place.tensor, rank), lines, rank, bits=1, stream=stream)
    return bits.astype(np.float32) * np.float32(2) - np.float32(1)


def factors(
    noise: Noise, place: Place, seeds: Sequence[int], rows: NDArray[np.int64], columns: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The signs of each direction's products: of these rows, [seeds, rank, rows], and of the place's columns."""
    lines = np.arange(place.first_column, place.first_column + columns, dtype=np.int64)
    of_rows = [signs(seed, place, rows, noise.rank, ROW_STREAM).T for seed in seeds]
    of_columns = [signs(column_seed(noise, seed), place, lines, noise.rank, COLUMN_STREAM).T for seed in seeds]
    return np.stack(of_rows), np.stack(of_columns)


def perturbed(
    weight: Array, place: Place, noise: Noise, points: Sequence[Move], rows: NDArray[np.int64] | None = None
) -> Array:
    """The weight at each point, beside the weight: [points, rows, columns] in the weight's dtype.

    `rows` chooses rows of the tensor (ascending); bfloat16 is rounded to nearest.
    """
    chosen = np.arange(len(weight), dtype=np.int64) + place.first_row if rows is None else rows
    base = _to_float32(weight[chosen - place.first_row])
    out = np.empty((len(points), *base.shape), dtype=weight.dtype)
    for index, point in enumerate(points):
        value = _add_terms(base.copy(), place, noise, point, chosen)
        out[index] = value if weight.dtype == np.float32 else round_to_nearest(value)
    return out


def perturb(
    parts: Sequence[tuple[Array, Array, Place]], noise: Noise, points: Sequence[Move],
    rows: NDArray[np.int64] | None = None, *, threads: int = 1,  # noqa: ARG001 (the numba form has several)
) -> None:  # fmt: skip
    """Write each weight of (out, weight, place), or its chosen rows, at each point to its `out`."""
    for out, weight, place in parts:
        out[...] = perturbed(weight, place, noise, points, rows)


def advance(
    parts: Sequence[tuple[Array, Place]], noise: Noise, moves: Sequence[Move], *, threads: int = 1,  # noqa: ARG001
) -> None:  # fmt: skip
    """Apply the moves to each array in place, one after the other; bfloat16 is rounded stochastically after each."""
    for weight, place in parts:
        rows = np.arange(len(weight), dtype=np.int64) + place.first_row
        value = _to_float32(weight)
        for move in moves:
            if move.decay != 1.0:
                value *= np.float32(move.decay)
            value = _add_terms(value, place, noise, move, rows)
            if weight.dtype != np.float32:
                random = element_bits(
                    move.rounding_seed, place, rows, weight.shape[1], bits=ROUNDING_BITS, stream=ROUNDING_STREAM
                )
                value = _to_float32(round_stochastically(value, random))
        weight[...] = value if weight.dtype == np.float32 else round_to_nearest(value)


def round_to_nearest(value: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 to bfloat16 bits, to nearest, ties to even; a NaN stays a NaN."""
    bits = value.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(_not_finite(bits), _truncated(bits), rounded).astype(np.uint16)


def round_stochastically(value: NDArray[np.float32], random: Words) -> NDArray[np.uint16]:
    """float32 to bfloat16 bits: up with the probability of the part cut off, by 16 random bits an element."""
    bits = value.view(np.uint32)
    return np.where(_not_finite(bits), _truncated(bits), (bits + random) >> np.uint32(16)).astype(np.uint16)


def _add_terms(
    value: NDArray[np.float32], place: Place, noise: Noise, move: Move, rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    for term in move.terms:
        if is_ranked(noise, place):
            for part in _products(term, place, noise, rows, value.shape[1]):
                value += part
            continue
        bits = element_bits(term.seed, place, rows, value.shape[1], bits=noise.bits, stream=NOISE_STREAM)
        value += fold(noise, term.coefficient)[bits]
    return value


def _products(
    term: Term, place: Place, noise: Noise, rows: NDArray[np.int64], columns: int
) -> Iterator[NDArray[np.float32]]:
    """A term's products of rank one, each [rows, columns] with its coefficient."""
    lines = np.arange(place.first_column, place.first_column + columns, dtype=np.int64)
    of_rows = signs(term.seed, place, rows, noise.rank, ROW_STREAM)
    of_columns = signs(column_seed(noise, term.seed), place, lines, noise.rank, COLUMN_STREAM)
    for part in range(noise.rank):
        yield of_rows[:, part, None] * (part_size(noise, term.coefficient) * of_columns[None, :, part])


def _to_float32(weight: Array) -> NDArray[np.float32]:
    if weight.dtype == np.float32:
        return weight.astype(np.float32, copy=True)
    return (weight.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _not_finite(bits: Words) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (bits & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
    return found


def _truncated(bits: Words) -> Words:
    quiet = np.where((bits & np.uint32(0x007FFFFF)) != 0, np.uint32(0x40), np.uint32(0))
    return (bits >> np.uint32(16)) | quiet
