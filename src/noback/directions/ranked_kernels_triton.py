"""Triton's kernels of low-rank noise: signs are drawn once, as bits, and every sweep reads those bits.

A product is one of a term's: term t has the products t x rank to t x rank + rank - 1. The signs of a tensor in one
product are words of 32 bits, those of its rows before those of its columns, each from a whole Philox call on. The
words of one product lie one after the other for all tensors at hand: `total` of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from noback.directions.kernels_triton import (
    _cut,
    _decayed,
    _element_bits,
    _elements,
    _nearest,
    _part,
    _philox,
    _seed,
    _stochastic,
)

# A family of low rank has one bit an element, so a term takes two words of a table and two of its seed.


@triton.jit
def _size(words, product, terms, moves):
    """How far a product goes: a float32 as its bits."""
    return tl.load(words + terms * 4 + moves * 4 + 1 + product).to(tl.uint32, bitcast=True)


@triton.jit
def _signed(word, place, size):
    """`size`, a float32 as its bits, with the sign that a bit of a word says: its own where the bit is set."""
    sign = (word.to(tl.uint32, bitcast=True) << (31 - place).to(tl.uint32)) & 0x80000000
    return (sign ^ (size ^ 0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def _sign(word, place):
    """-1 or +1."""
    sign = (word.to(tl.uint32, bitcast=True) << (31 - place).to(tl.uint32)) & 0x80000000
    return (sign ^ 0xBF800000).to(tl.float32, bitcast=True)


@triton.jit
def _row_words(first_row, height):
    return ((first_row + height - 1) // 128 - first_row // 128 + 1) * 4


@triton.jit(do_not_specialize=["terms", "rank", "count"])
def draw_signs(calls, words, signs, terms, rank, count, KEPT: tl.constexpr, BLOCK: tl.constexpr):
    """Program (product, block of calls): each call's tensor, stream and band give four words.

    KEPT: columns, of stream 3, are keyed by the upper half of a seed alone.
    """
    product = tl.program_id(0)
    call = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = call < count
    tensor = tl.load(calls + call * 3, mask=inside, other=0)
    stream = tl.load(calls + call * 3 + 1, mask=inside, other=0).to(tl.uint32)
    band = tl.load(calls + call * 3 + 2, mask=inside, other=0)
    k0, k1 = _seed(words, terms * 2 + 2 * (product // rank))
    if KEPT:
        k0 = tl.where(stream == 3, 0, k0).to(tl.uint32)
    w0, w1, w2, w3 = _philox(k0, k1, band, rank, product % rank, tensor, stream)
    target = signs + (product.to(tl.int64) * count + call) * 4
    tl.store(target, w0.to(tl.int32, bitcast=True), mask=inside)
    tl.store(target + 1, w1.to(tl.int32, bitcast=True), mask=inside)
    tl.store(target + 2, w2.to(tl.int32, bitcast=True), mask=inside)
    tl.store(target + 3, w3.to(tl.int32, bitcast=True), mask=inside)


@triton.jit(do_not_specialize=[
    "first", "a_point", "points", "terms", "rank", "width", "total", "offset", "row_words", "first_row", "first_column",
])  # fmt: skip
def perturb_ranked(
    weight, out, words, signs, rows, first, a_point, points, terms, rank, width, total, offset, row_words, first_row,
    first_column, CHOSEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Output row i is row i % a_point, or rows[i] where rows are chosen, at point first + i // a_point."""
    HALF: tl.constexpr = weight.dtype.element_ty == tl.bfloat16
    index = tl.program_id(0)
    row = tl.load(rows + index).to(tl.int64) if CHOSEN else (first_row + index % a_point).to(tl.int64)
    local = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = local < width
    column = first_column + local
    value = tl.load(weight + (row - first_row) * width + local, mask=inside, other=0.0).to(tl.float32)
    starts = words + terms * 4 + first + index // a_point
    row_at = offset + row // 32 - first_row // 128 * 4
    column_at = offset + row_words + column // 32 - first_column // 128 * 4
    for product in range(tl.load(starts) * rank, tl.load(starts + 1) * rank):
        at = signs + product * total.to(tl.int64)
        of_row = _sign(tl.load(at + row_at), row % 32)
        word = tl.load(at + column_at, mask=inside, other=0)
        value += of_row * _signed(word, column % 32, _size(words, product, terms, points))
    tl.store(out + index.to(tl.int64) * width + local, _nearest(value, HALF), mask=inside)


@triton.jit(do_not_specialize=[
    "first", "slots", "points", "terms", "rank", "height", "width", "total", "offset", "row_words", "first_row",
    "first_column",
])  # fmt: skip
def spread_signs(
    of_rows, of_columns, words, signs, rows, first, slots, points, terms, rank, height, width, total, offset,
    row_words, first_row, first_column, CHOSEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (slot of a point, block): a product's rows with its size, then its columns.

    A slot beyond a point's products has the size 0.
    """
    index = tl.program_id(0)
    starts = words + terms * 4 + first + index // slots
    product = tl.load(starts) * rank + index % slots
    there = product < tl.load(starts + 1) * rank
    product = tl.where(there, product, index % slots % rank)
    at = signs + product.to(tl.int64) * total + offset
    blocks = tl.cdiv(height, BLOCK)
    block = tl.program_id(1)
    if block < blocks:
        local = block * BLOCK + tl.arange(0, BLOCK)
        inside = local < height
        row = tl.load(rows + local, mask=inside, other=0) if CHOSEN else first_row + local
        word = tl.load(at + row // 32 - first_row // 128 * 4, mask=inside, other=0)
        size = tl.where(there, _size(words, product, terms, points), 0)
        tl.store(of_rows + index.to(tl.int64) * height + local, _signed(word, row % 32, size), mask=inside)
    else:
        local = (block - blocks) * BLOCK + tl.arange(0, BLOCK)
        inside = local < width
        column = first_column + local
        word = tl.load(at + row_words + column // 32 - first_column // 128 * 4, mask=inside, other=0)
        tl.store(of_columns + index.to(tl.int64) * width + local, _sign(word, column % 32), mask=inside)


@triton.jit
def _moved(
    value, second, decayed, words, move, moves, terms, rank, signs, total, row_at, row_bit, column_at, column_bit,
    second_bit, inside, DECAYS: tl.constexpr, TWO: tl.constexpr,
):  # fmt: skip
    """A move's decay and its products, a fused multiply-add each: what it multiplies by is a sign, so it is exact.

    TWO: elements of two columns in one word of signs, `value` and `second`.
    """
    if DECAYS:
        factor = terms * 4 + moves * 3 + 1 + move
        value = _decayed(value, words, factor, decayed)
        second = _decayed(second, words, factor, decayed) if TWO else second
    starts = words + terms * 4 + move
    for product in range(tl.load(starts) * rank, tl.load(starts + 1) * rank):
        at = signs + product * total.to(tl.int64)
        of_row = _sign(tl.load(at + row_at), row_bit)
        word, size = tl.load(at + column_at, mask=inside), _size(words, product, terms, moves)
        value = tl.fma(of_row, _signed(word, column_bit, size), value)
        second = tl.fma(of_row, _signed(word, second_bit, size), second) if TWO else second
    return value, second


@triton.jit
def _rounded(value, k0, k1, band, columns, column, tensor):
    """Eight rows rounded stochastically to bfloat16: the bits of float32, of which the lower half is to be cut off.

    The random bits are 16 an element of stream 1. A NaN is left as it is: with a carry it would be a number.
    """
    row = tl.arange(0, 8)[None, :, None]
    w0, w1, w2, w3 = _philox(k0, k1, band, columns, column, tensor, 1)
    low = tl.where(row < 2, w0[:, None, :], w1[:, None, :])
    high = tl.where(row < 6, w2[:, None, :], w3[:, None, :])
    random = (tl.where(row < 4, low, high) >> (16 * (row % 2)).to(tl.uint32)) & 0xFFFF
    return value.to(tl.uint32, bitcast=True) + tl.where(value == value, random, 0)


@triton.jit
def _as_float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _step(
    value, second, decayed, words, move, moves, terms, rank, signs, total, row_at, row_bit, column_at, column_bit,
    there, band, columns, column, tensor, HALF: tl.constexpr, DECAYS: tl.constexpr,
):  # fmt: skip
    """A move of a tile: the bits of float32 after it; of bfloat16, the upper halves are the weights."""
    value, second = _moved(
        value, second, decayed, words, move, moves, terms, rank, signs, total, row_at, row_bit, column_at, column_bit,
        column_bit + 1, there, DECAYS, HALF,
    )  # fmt: skip
    if HALF:
        k0, k1 = _seed(words, terms * 4 + moves + 1 + 2 * move)
        first = _rounded(value, k0, k1, band, columns, column, tensor)
        last = _rounded(second, k0, k1, band, columns, column + 1, tensor)
    else:
        first, last = value.to(tl.uint32, bitcast=True), second.to(tl.uint32, bitcast=True)
    return first, last


@triton.jit(do_not_specialize=["moves", "terms", "rank", "total", "begin"])
def advance_ranked_tiles(
    chunks, table, words, signs, moves, terms, rank, total, begin,
    HALF: tl.constexpr, DECAYS: tl.constexpr, GROUPS: tl.constexpr, MASKED: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    """Eight rows by GROUPS of four words of memory: [groups, rows, words]. Triton gives each thread a group.

    A word holds one float32 or two neighbours of bfloat16. A group's columns lie in one word of signs. A row of a group
    of bfloat16 is written if one of its weights changed: small updates change few, and the rest costs no traffic.
    """
    chunk = chunks + tl.program_id(0).to(tl.int64) * 3
    index, band, left = tl.load(chunk), tl.load(chunk + 1), tl.load(chunk + 2)
    height, width, columns, tensor, first_row, first_column, decayed = _part(table, index, 8)
    memory = tl.multiple_of(tl.load(table + index * 9).to(tl.pointer_type(tl.int32)), 16)
    IN_WORD: tl.constexpr = 2 if HALF else 1
    lane = tl.arange(0, 4)
    group = left + 4 * IN_WORD * tl.arange(0, GROUPS)
    row = band * 8 + tl.arange(0, 8)[None, :, None]
    words_left, words_wide = tl.multiple_of(left, 8), width
    if HALF:
        words_left, words_wide = tl.multiple_of(left // 2, 4), tl.multiple_of(width // 2, 4)
    across = words_left + 4 * tl.arange(0, GROUPS)[:, None, None] + lane[None, None, :]
    place = memory + (row - first_row) * words_wide + across
    some, there = None, None
    if MASKED:
        there = (group < width)[:, None, None]
        some = (row >= first_row) & (row < first_row + height) & there
    before = tl.load(place, mask=some).to(tl.uint32, bitcast=True)
    offset = tl.load(table + index * 9 + 8) - begin
    row_at = offset + band // 4 - first_row // 128 * 4
    column = first_column + group
    column_at = (offset + _row_words(first_row, height) + column // 32 - first_column // 128 * 4)[:, None, None]
    column_bit = (column % 32)[:, None, None] + IN_WORD * lane[None, None, :]
    here = column[:, None] + IN_WORD * lane[None, :]
    if HALF:
        value, second = _as_float(before << 16), _as_float(before & 0xFFFF0000)
    else:
        value, second = _as_float(before), _as_float(before)
    if SINGLE:  # the same without the loop, which keeps a copy less of everything
        first, last = _step(
            value, second, decayed, words, 0, 1, terms, rank, signs, total, row_at, row % 32, column_at, column_bit,
            there, band, columns, here, tensor, HALF, DECAYS,
        )  # fmt: skip
    else:
        first, last = before << 16 if HALF else before, before
        for move in range(moves):
            if HALF:
                value, second = _as_float(first & 0xFFFF0000), _as_float(last & 0xFFFF0000)
            else:
                value = _as_float(first)
            first, last = _step(
                value, second, decayed, words, move, moves, terms, rank, signs, total, row_at, row % 32, column_at,
                column_bit, there, band, columns, here, tensor, HALF, DECAYS,
            )  # fmt: skip
    if HALF:
        first = (last & 0xFFFF0000) | (first >> 16)
        changed = tl.max((first ^ before).to(tl.uint32), axis=2, keep_dims=True) != 0
        some = (changed & some) if MASKED else changed
    tl.store(place, first.to(tl.int32, bitcast=True), mask=some)


@triton.jit(do_not_specialize=["moves", "terms", "rank", "total", "begin"])
def advance_ranked_elements(
    chunks, table, words, signs, moves, terms, rank, total, begin,
    HALF: tl.constexpr, DECAYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index, weight, columns, tensor, decayed, place, inside, row, column, value = _elements(chunks, table, HALF, BLOCK)
    height, _, _, _, first_row, first_column, _ = _part(table, index, 1)
    offset = tl.load(table + index * 9 + 8) - begin
    row_at = tl.where(inside, offset + row // 32 - first_row // 128 * 4, offset)
    column_at = offset + _row_words(first_row, height) + column // 32 - first_column // 128 * 4
    for move in range(moves):
        value, _unused = _moved(
            value, value, decayed, words, move, moves, terms, rank, signs, total, row_at, row % 32, column_at,
            column % 32, column, inside, DECAYS, TWO=False,
        )  # fmt: skip
        if HALF:
            k0, k1 = _seed(words, terms * 4 + moves + 1 + 2 * move)
            value = _stochastic(value, _element_bits(k0, k1, row, columns, column, tensor, 1, 16))
    tl.store(weight + place, _cut(value, HALF), mask=inside)
