"""Prefixes that rows of token ids share: found by a radix tree, and laid out so that each shared token stands once.

Sorted rows, each with the number of tokens that it shares with the row before it, are a radix tree written as a list:
the rows below a node lie side by side, and what a row does not share is its own branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Branch = tuple[int, int]  # a row, and how many tokens it shares with the one before it
_LEAST = 0.1  # the share of tokens and of cost that a layout must save, or the rows are run as they are


@dataclass(frozen=True, slots=True)
class Tree:
    """Rows laid out in one sequence, a token that several of them share standing there once."""

    rows: tuple[int, ...]  # which rows of the batch
    ids: tuple[int, ...]  # the tokens
    depths: tuple[int, ...]  # where each token stands in the rows that have it
    places: tuple[tuple[int, ...], ...]  # where each row's tokens stand in the sequence


@dataclass(frozen=True, slots=True)
class Layout:
    """A batch's rows as trees."""

    trees: tuple[Tree, ...]
    tokens: int  # of all rows
    cached: int  # of these, how many are not computed again

    @property
    def longest(self) -> int:
        """The tokens of the longest tree."""
        return max(len(tree.ids) for tree in self.trees)


def layout_that_pays(rows: Sequence[Sequence[int]], width: int) -> Layout | None:
    """The cheapest layout for a model whose hidden states have `width` numbers; none: as they are costs about the same.

    A longer tree shares more and attends to more: limits of a tree's length between one row and all are tried.
    """
    branches, tokens = _branches(rows), sum(map(len, rows))
    best, least = None, (1 - _LEAST) * _cost(len(rows), max(map(len, rows)), width)
    for limit in _limits(rows, branches):
        groups = _groups(rows, branches, limit)
        lengths = [_length(rows, group) for group in groups]
        cost = _cost(len(groups), max(lengths), width)
        if cost < least and sum(lengths) <= (1 - _LEAST) * tokens:
            best, least = groups, cost
    return None if best is None else _layout(rows, best)


def laid_out(rows: Sequence[Sequence[int]], limit: int) -> Layout:
    """The rows as the fewest trees of at most `limit` tokens; a row that is longer has one by itself."""
    return _layout(rows, _groups(rows, _branches(rows), limit))


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows have in common before they part."""
    shortest = min(len(one), len(other))
    return next((index for index in range(shortest) if one[index] != other[index]), shortest)


def _layout(rows: Sequence[Sequence[int]], groups: Sequence[Sequence[Branch]]) -> Layout:
    trees, tokens = tuple(_planted(rows, group) for group in groups), sum(map(len, rows))
    return Layout(trees, tokens, tokens - sum(len(tree.ids) for tree in trees))


def _branches(rows: Sequence[Sequence[int]]) -> list[Branch]:
    """The radix tree of the rows."""
    order = sorted(range(len(rows)), key=lambda row: list(rows[row]))
    return [(order[0], 0), *((row, common(rows[before], rows[row])) for before, row in pairwise(order))]


def _groups(rows: Sequence[Sequence[int]], branches: Sequence[Branch], limit: int) -> list[list[Branch]]:
    """The branches cut into trees of at most `limit` tokens; the first of a tree shares nothing."""
    groups: list[list[Branch]] = []
    length = 0
    for row, shared in branches:
        length += len(rows[row]) - shared
        if groups and length <= limit:
            groups[-1].append((row, shared))
        else:
            groups.append([(row, 0)])
            length = len(rows[row])
    return groups


def _length(rows: Sequence[Sequence[int]], group: Sequence[Branch]) -> int:
    """The tokens of a tree."""
    return sum(len(rows[row]) - shared for row, shared in group)


def _planted(rows: Sequence[Sequence[int]], group: Sequence[Branch]) -> Tree:
    """The tree: each row keeps the places of what it shares with the one before, and adds its own."""
    ids: list[int] = []
    depths: list[int] = []
    places: list[tuple[int, ...]] = [()]
    for row, shared in group:
        fresh = range(len(ids), len(ids) + len(rows[row]) - shared)
        places.append((*places[-1][:shared], *fresh))
        ids += rows[row][shared:]
        depths += range(shared, len(rows[row]))
    return Tree(tuple(row for row, _ in group), tuple(ids), tuple(depths), tuple(places[1:]))


def _limits(rows: Sequence[Sequence[int]], branches: Sequence[Branch]) -> Iterator[int]:
    """From the longest row to all rows in one tree, each limit half as long again as the last."""
    limit, most = max(map(len, rows)), _length(rows, branches)
    while limit < most:
        yield limit
        limit += (limit + 1) // 2
    yield most


def _cost(sequences: int, tokens: int, width: int) -> float:
    """The work of a forward, with its padding, in units of a token's products.

    Those are about 24 width^2 operations a layer, and attention 4 width for each token that is looked at.
    """
    return sequences * tokens * (1 + tokens / (6 * width))
