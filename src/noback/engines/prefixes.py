"""Prefixes that rows of token ids share: found by a radix tree, and laid out so that each shared token stands once.

Sorted rows, each with the number of tokens that it shares with the row before it, are a radix tree written as a list:
the rows below a node lie side by side, and what a row does not share is its own branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_LEAST = 0.1  # the share of the cost that a layout must save, or the rows are run as they are


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

    A longer tree shares more and attends to more: each limit of a tree's length between one row and all is tried.
    """
    best, least = None, (1 - _LEAST) * _cost(len(rows), max(map(len, rows)), width)
    for limit in _limits(rows):
        found = laid_out(rows, limit)
        cost = _cost(len(found.trees), found.longest, width)
        if cost < least and found.cached >= _LEAST * found.tokens:
            best, least = found, cost
    return best


def laid_out(rows: Sequence[Sequence[int]], limit: int) -> Layout:
    """The rows as the fewest trees of at most `limit` tokens; a row that is longer has one by itself."""
    groups: list[list[int]] = []
    total = 0
    for row, shared in _tree(rows):
        fresh = len(rows[row]) - shared
        if groups and total + fresh <= limit:
            groups[-1].append(row)
            total += fresh
        else:
            groups.append([row])
            total = len(rows[row])
    trees = tuple(_planted(rows, group) for group in groups)
    tokens = sum(map(len, rows))
    return Layout(trees, tokens, tokens - sum(len(tree.ids) for tree in trees))


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows have in common before they part."""
    shortest = min(len(one), len(other))
    return next((index for index in range(shortest) if one[index] != other[index]), shortest)


def _tree(rows: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """The rows sorted, each with the tokens that it shares with the one before."""
    order = sorted(range(len(rows)), key=lambda row: list(rows[row]))
    yield order[0], 0
    for before, row in pairwise(order):
        yield row, common(rows[before], rows[row])


def _planted(rows: Sequence[Sequence[int]], group: Sequence[int]) -> Tree:
    """Sorted rows as one tree: each keeps the places of what it shares with the one before, and adds its own."""
    ids: list[int] = []
    depths: list[int] = []
    places: list[tuple[int, ...]] = []
    for index, row in enumerate(group):
        shared = common(rows[group[index - 1]], rows[row]) if index else 0
        fresh = len(rows[row]) - shared
        kept = places[-1][:shared] if index else ()
        places.append((*kept, *range(len(ids), len(ids) + fresh)))
        ids += rows[row][shared:]
        depths += range(shared, len(rows[row]))
    return Tree(tuple(group), tuple(ids), tuple(depths), tuple(places))


def _limits(rows: Sequence[Sequence[int]]) -> Iterator[int]:
    """From the longest row to all rows in one tree, each limit half as long again as the last."""
    limit, most = max(map(len, rows)), sum(len(rows[row]) - shared for row, shared in _tree(rows))
    while limit < most:
        yield limit
        limit += (limit + 1) // 2
    yield most


def _cost(sequences: int, tokens: int, width: int) -> float:
    """The work of a forward, with its padding, in units of a token's products.

    Those are about 24 width^2 operations a layer, and attention 4 width for each token that is looked at.
    """
    return sequences * tokens * (1 + tokens / (6 * width))
