"""Triton's kernels of the noise: the two sweeps by tiles of 16 rows or by elements, and what they are made of."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _seed(words, at):
    """The two halves of the 64-bit seed at a place of the words."""
    low = tl.load(words + at).to(tl.uint32, bitcast=True)
    high = tl.load(words + at + 1).to(tl.uint32, bitcast=True)
    return low, high


@triton.jit
def _philox(k0, k1, block, columns, column, tensor, stream):
    """Ten rounds at position block * columns + column, for each column: four words."""
    position = (block.to(tl.int64) * columns + column).to(tl.uint64)
    c0 = position.to(tl.uint32)
    c1 = (position >> 32).to(tl.uint32)
    c2 = tl.zeros_like(c0) + tensor.to(tl.uint32)
    c3 = tl.zeros_like(c0) + stream
    for _ in tl.static_range(10):
        # One wide product gives both halves; Triton's own Philox asks for each by itself.
        p0 = c0.to(tl.uint64) * 0xD2511F53
        p1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = p1.to(tl.uint32)
        c3 = p0.to(tl.uint32)
        k0 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False)
        k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3


@triton.jit
def _element_bits(k0, k1, row, columns, column, tensor, stream, BITS: tl.constexpr):
    """The bits of each element, a Philox call for every one of them."""
    band: tl.constexpr = 128 // BITS
    w0, w1, w2, w3 = _philox(k0, k1, row // band, columns, column, tensor, stream)
    first = (row % band) * BITS
    word = first // 32
    chosen = tl.where(word < 2, tl.where(word < 1, w0, w1), tl.where(word < 3, w2, w3))
    return (chosen >> (first % 32).to(tl.uint32)) & ((1 << BITS) - 1)


@triton.jit
def _tile_bits(words, term, terms, band, columns, column, tensor, BITS: tl.constexpr):
    """The bits of a term's noise on a tile: [16, columns]."""
    k0, k1 = _seed(words, terms * (1 << BITS) + 2 * term)
    row = tl.arange(0, 16)[:, None]
    if BITS == 8:
        w0, w1, w2, w3 = _philox(k0, k1, band, columns, column, tensor, 0)
        low = tl.where(row < 4, w0[None, :], w1[None, :])
        high = tl.where(row < 12, w2[None, :], w3[None, :])
        bits = (tl.where(row < 8, low, high) >> (8 * (row % 4)).to(tl.uint32)) & 255
    elif BITS == 1:  # a tile's bits lie in one word
        w0, w1, w2, w3 = _philox(k0, k1, band // 8, columns, column, tensor, 0)
        word = (band % 8) // 2
        chosen = tl.where(word < 2, tl.where(word < 1, w0, w1), tl.where(word < 3, w2, w3))
        bits = (chosen[None, :] >> ((band % 2) * 16 + row).to(tl.uint32)) & 1
    else:
        bits = _element_bits(k0, k1, band * 16 + row, columns, column[None, :], tensor, 0, BITS)
    return bits


@triton.jit
def _values(words, term, bits, BITS: tl.constexpr):
    """A term's noise times its coefficient, by the bits of the elements."""
    if BITS == 1:
        minus = tl.load(words + term * 2).to(tl.float32, bitcast=True)
        plus = tl.load(words + term * 2 + 1).to(tl.float32, bitcast=True)
        values = tl.where(bits == 1, plus, minus)
    else:
        # The table goes to shared memory; a load by address would carry the tile to a layout of its own and back.
        table = tl.load(words + term * (1 << BITS) + tl.arange(0, 1 << BITS)).to(tl.float32, bitcast=True)
        flat = tl.reshape(bits.to(tl.int32), [bits.numel])
        values = tl.reshape(tl.gather(table, flat, 0), bits.shape)
    return values


@triton.jit
def _tile_rounding(k0, k1, band, columns, column, tensor):
    """Sixteen random bits an element of a tile, of stream 1: [16, columns]."""
    row = tl.arange(0, 16)[:, None]
    a0, a1, a2, a3 = _philox(k0, k1, 2 * band, columns, column, tensor, 1)
    b0, b1, b2, b3 = _philox(k0, k1, 2 * band + 1, columns, column, tensor, 1)
    first = tl.where(row < 4, tl.where(row < 2, a0[None, :], a1[None, :]), tl.where(row < 6, a2[None, :], a3[None, :]))
    last = tl.where(
        row < 12, tl.where(row < 10, b0[None, :], b1[None, :]), tl.where(row < 14, b2[None, :], b3[None, :])
    )
    return (tl.where(row < 8, first, last) >> (16 * (row % 2)).to(tl.uint32)) & 0xFFFF


@triton.jit
def _stochastic(value, random):
    """Rounded to bfloat16 by the random bits, as a float32; infinity stays infinity, and a NaN of the GPU's a NaN."""
    bits = value.to(tl.uint32, bitcast=True) + tl.where(value == value, random, 0)
    return (bits & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit
def _nearest(value, HALF: tl.constexpr):
    """The value as memory holds it; bfloat16 to nearest, ties to even."""
    return value.to(tl.bfloat16) if HALF else value


@triton.jit
def _cut(value, HALF: tl.constexpr):
    """The value as memory holds it, where it is one of bfloat16 already."""
    return (value.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True) if HALF else value


@triton.jit
def _store_sides(
    base, bits, words, begin, target, size, inside,
    SHARED: tl.constexpr, MIRRORED: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """The points of one seed; MIRRORED: the second is the first with the other sign, so one look-up serves."""
    HALF: tl.constexpr = target.dtype.element_ty == tl.bfloat16
    noise = _values(words, begin, bits, BITS)
    tl.store(target, _nearest(base + noise, HALF), mask=inside)
    if MIRRORED:
        tl.store(target + size, _nearest(base - noise, HALF), mask=inside)
    else:
        for side in tl.static_range(1, SHARED):
            noise = _values(words, begin + side, bits, BITS)
            tl.store(target + side * size, _nearest(base + noise, HALF), mask=inside)


@triton.jit
def _store_points(
    base, target, size, inside, words, first, count, points, terms, band, columns, column, tensor,
    SHARED: tl.constexpr, MIRRORED: tl.constexpr, ALONE: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """A tile at each point, `size` apart: groups of SHARED points share their noise; 0: `count` points from `first`."""
    HALF: tl.constexpr = target.dtype.element_ty == tl.bfloat16
    if SHARED > 0:
        if ALONE:  # without the loop, which lets everything be in flight at once
            bits = _tile_bits(words, 0, terms, band, columns, column, tensor, BITS)
            _store_sides(base, bits, words, 0, target, size, inside, SHARED, MIRRORED, BITS)
        else:
            for group in range(points // SHARED):
                begin = group * SHARED
                bits = _tile_bits(words, begin, terms, band, columns, column, tensor, BITS)
                _store_sides(base, bits, words, begin, target + begin * size, size, inside, SHARED, MIRRORED, BITS)
    else:
        starts = words + terms * ((1 << BITS) + 2) + first
        for point in range(count):
            value = base
            for term in range(tl.load(starts + point), tl.load(starts + point + 1)):
                bits = _tile_bits(words, term, terms, band, columns, column, tensor, BITS)
                value += _values(words, term, bits, BITS)
            tl.store(target + point * size, _nearest(value, HALF), mask=inside)


@triton.jit(do_not_specialize=[
    "first", "count", "points", "terms", "height", "width", "columns", "tensor", "first_row", "first_column",
])  # fmt: skip
def perturb_tiles(
    weight, out, words, first, count, points, terms, height, width, columns, tensor, first_row, first_column,
    SHARED: tl.constexpr, MIRRORED: tl.constexpr, ALONE: tl.constexpr, BITS: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    width = width // VECTOR * VECTOR  # a hint on an argument is lost, and loads would go element by element
    band = first_row // 16 + tl.program_id(1)
    local = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = band * 16 - first_row + tl.arange(0, 16)
    offset = row.to(tl.int64)[:, None] * width + local[None, :]
    inside = None
    if MASKED:
        inside = ((row >= 0) & (row < height))[:, None] & (local < width)[None, :]
    base = tl.load(weight + offset, mask=inside).to(tl.float32)
    column = first_column + local
    size = height.to(tl.int64) * width
    _store_points(
        base, out + offset, size, inside, words, first, count, points, terms, band, columns, column, tensor,
        SHARED, MIRRORED, ALONE, BITS,
    )  # fmt: skip


@triton.jit(do_not_specialize=[
    "first", "a_point", "terms", "width", "columns", "tensor", "first_row", "first_column",
])  # fmt: skip
def perturb_rows(
    weight, out, words, rows, first, a_point, terms, width, columns, tensor, first_row, first_column,
    BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Output row i is row rows[i] at point first + i // a_point."""
    HALF: tl.constexpr = weight.dtype.element_ty == tl.bfloat16
    index = tl.program_id(0)
    row = tl.load(rows + index).to(tl.int64)
    local = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = local < width
    value = tl.load(weight + (row - first_row) * width + local, mask=inside, other=0.0).to(tl.float32)
    starts = words + terms * ((1 << BITS) + 2) + first + index // a_point
    for term in range(tl.load(starts), tl.load(starts + 1)):
        k0, k1 = _seed(words, terms * (1 << BITS) + 2 * term)
        bits = _element_bits(k0, k1, row, columns, first_column + local, tensor, 0, BITS)
        value += _values(words, term, bits, BITS)
    tl.store(out + index.to(tl.int64) * width + local, _nearest(value, HALF), mask=inside)


@triton.jit
def _part(table, tensor, VECTOR: tl.constexpr):
    """A tensor's facts: height, width, columns, id, first row, first column, and whether it is decayed."""
    at = table + tensor * 9
    width = tl.multiple_of(tl.load(at + 2), VECTOR)
    where = tl.load(at + 3), tl.load(at + 4), tl.load(at + 5), tl.load(at + 6)
    return tl.load(at + 1), width, where[0], where[1], where[2], where[3], tl.load(at + 7)


@triton.jit
def _pointer(table, tensor, HALF: tl.constexpr, BYTES: tl.constexpr):
    address = tl.load(table + tensor * 9)
    if HALF:
        pointer = tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)), BYTES)
    else:
        pointer = tl.multiple_of(address.to(tl.pointer_type(tl.float32)), BYTES)
    return pointer


@triton.jit
def _decayed(value, words, at, decayed):
    factor = tl.load(words + at).to(tl.float32, bitcast=True)
    return value * tl.where(decayed != 0, factor, 1.0)


@triton.jit
def _tile(chunks, table, HALF: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr):
    """A program's tile: its tensor, where its memory is, its band and columns, and which of them are inside."""
    chunk = chunks + tl.program_id(0).to(tl.int64) * 3
    index, band, begin = tl.load(chunk), tl.load(chunk + 1), tl.load(chunk + 2)
    weight = _pointer(table, index, HALF, 16)
    height, width, columns, tensor, first_row, first_column, decayed = _part(table, index, VECTOR)
    local = tl.multiple_of(begin, VECTOR) + tl.arange(0, BLOCK)
    row = band * 16 - first_row + tl.arange(0, 16)
    offset = row[:, None] * width + local[None, :]
    inside = ((row >= 0) & (row < height))[:, None] & (local < width)[None, :]
    return index, weight, columns, tensor, decayed, band, first_column + local, offset, inside


@triton.jit(do_not_specialize=["points", "terms", "total"])
def perturb_group(
    chunks, table, out, words, points, terms, total,
    HALF: tl.constexpr, SHARED: tl.constexpr, MIRRORED: tl.constexpr, ALONE: tl.constexpr, BITS: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The tiles of several tensors, one after the other at each point; `total` is a multiple of 16."""
    index, weight, columns, tensor, _, band, column, offset, inside = _tile(chunks, table, HALF, VECTOR, BLOCK)
    if not MASKED:
        inside = None
    base = tl.load(weight + offset, mask=inside).to(tl.float32)
    target = out + tl.multiple_of(tl.load(table + index * 9 + 8), 16) + offset
    _store_points(
        base, target, total // 16 * 16, inside, words, 0, points, points, terms, band, columns, column, tensor,
        SHARED, MIRRORED, ALONE, BITS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["moves", "terms"])
def advance_tiles(
    chunks, table, words, moves, terms,
    HALF: tl.constexpr, DECAYS: tl.constexpr, BITS: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr,
    MASKED: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    _, weight, columns, tensor, decayed, band, column, offset, inside = _tile(chunks, table, HALF, VECTOR, BLOCK)
    if not MASKED:
        inside = None
    value = tl.load(weight + offset, mask=inside).to(tl.float32)
    starts = terms * ((1 << BITS) + 2)
    rounding = starts + moves + 1
    if SINGLE:  # the same without the loops, which lets everything be in flight at once
        if DECAYS:
            value = _decayed(value, words, rounding + 2, decayed)
        value += _values(words, 0, _tile_bits(words, 0, terms, band, columns, column, tensor, BITS), BITS)
        if HALF:
            k0, k1 = _seed(words, rounding)
            value = _stochastic(value, _tile_rounding(k0, k1, band, columns, column, tensor))
    else:
        for move in range(moves):
            if DECAYS:
                value = _decayed(value, words, rounding + 2 * moves + move, decayed)
            for term in range(tl.load(words + starts + move), tl.load(words + starts + move + 1)):
                bits = _tile_bits(words, term, terms, band, columns, column, tensor, BITS)
                value += _values(words, term, bits, BITS)
            if HALF:
                k0, k1 = _seed(words, rounding + 2 * move)
                value = _stochastic(value, _tile_rounding(k0, k1, band, columns, column, tensor))
    tl.store(weight + offset, _cut(value, HALF), mask=inside)


@triton.jit
def _elements(chunks, table, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """A program's elements: their tensor, where its memory is, and their places, rows and columns there."""
    chunk = chunks + tl.program_id(0).to(tl.int64) * 3
    index = tl.load(chunk)
    weight = _pointer(table, index, HALF, 2)
    height, width, columns, tensor, first_row, first_column, decayed = _part(table, index, 1)
    place = tl.load(chunk + 1) + tl.arange(0, BLOCK)
    inside = place < height * width
    row, column = first_row + place // width, first_column + place % width
    value = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    return index, weight, columns, tensor, decayed, place, inside, row, column, value


@triton.jit(do_not_specialize=["moves", "terms"])
def advance_elements(
    chunks, table, words, moves, terms,
    HALF: tl.constexpr, DECAYS: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _, weight, columns, tensor, decayed, place, inside, row, column, value = _elements(chunks, table, HALF, BLOCK)
    starts = terms * ((1 << BITS) + 2)
    rounding = starts + moves + 1
    for move in range(moves):
        if DECAYS:
            value = _decayed(value, words, rounding + 2 * moves + move, decayed)
        for term in range(tl.load(words + starts + move), tl.load(words + starts + move + 1)):
            k0, k1 = _seed(words, terms * (1 << BITS) + 2 * term)
            value += _values(words, term, _element_bits(k0, k1, row, columns, column, tensor, 0, BITS), BITS)
        if HALF:
            k0, k1 = _seed(words, rounding + 2 * move)
            value = _stochastic(value, _element_bits(k0, k1, row, columns, column, tensor, 1, 16))
    tl.store(weight + place, _cut(value, HALF), mask=inside)


@triton.jit(do_not_specialize=["points", "terms", "total"])
def perturb_small(
    chunks, table, out, words, points, terms, total,
    HALF: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index, _, columns, tensor, _, place, inside, row, column, base = _elements(chunks, table, HALF, BLOCK)
    target = out + tl.load(table + index * 9 + 8) + place
    starts = words + terms * ((1 << BITS) + 2)
    for point in range(points):
        value = base
        for term in range(tl.load(starts + point), tl.load(starts + point + 1)):
            k0, k1 = _seed(words, terms * (1 << BITS) + 2 * term)
            value += _values(words, term, _element_bits(k0, k1, row, columns, column, tensor, 0, BITS), BITS)
        tl.store(target + point * total.to(tl.int64), _nearest(value, HALF), mask=inside)
