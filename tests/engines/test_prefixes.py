"""Rows laid out as trees: which tokens are shared, where they stand, and when it pays."""

from hypothesis import given
from hypothesis import strategies as st

from noback.engines.reuse.prefixes import common, laid_out, layout_that_pays

# One row begins like two others, one is there twice, one begins with another as a whole, one stands alone.
ROWS = [[0, 5, 6, 7], [0, 5, 6, 8, 9], [3, 4], [0, 5, 6, 7], [0, 5]]
ROW = st.lists(st.integers(0, 2), min_size=1, max_size=6)


def test_the_tokens_of_a_batch_that_are_counted_by_hand():
    layout = laid_out(ROWS, 100)
    assert layout.tokens == 4 + 5 + 2 + 4 + 2
    assert sorted(layout.trees[0].ids) == [0, 3, 4, 5, 6, 7, 8, 9]  # each node of the tree once
    assert layout.cached == 17 - 8


def test_trees_are_no_longer_than_the_limit_and_share_within_themselves():
    layout = laid_out(ROWS, 6)  # 0 5 | 6 7 (twice) | 8 9 are six tokens; 3 4 come after them
    assert [len(tree.ids) for tree in layout.trees] == [6, 2]
    assert layout.cached == 9


@given(rows=st.lists(ROW, min_size=1, max_size=8), limit=st.integers(1, 30))
def test_every_row_finds_its_own_tokens_at_its_own_depths_in_its_tree(rows, limit):
    layout = laid_out(rows, limit)
    found = {}
    for tree in layout.trees:
        for row, places in zip(tree.rows, tree.places, strict=True):
            found[row] = [tree.ids[place] for place in places]
            assert [tree.depths[place] for place in places] == list(range(len(rows[row])))
    assert [found[row] for row in range(len(rows))] == rows
    assert layout.cached == sum(map(len, rows)) - sum(len(tree.ids) for tree in layout.trees)


@given(rows=st.lists(ROW, min_size=1, max_size=8))
def test_in_one_tree_each_prefix_stands_once(rows):
    prefixes = {tuple(row[: length + 1]) for row in rows for length in range(len(row))}
    assert len(laid_out(rows, 1000).trees[0].ids) == len(prefixes)


def test_what_two_rows_have_in_common_ends_where_they_part():
    assert common([1, 2, 3], [1, 2, 4]) == 2
    assert common([1, 2], [1, 2, 4]) == 2
    assert common([5], [1]) == 0


def test_rows_that_share_nothing_are_left_as_they_are():
    assert layout_that_pays([[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]], 256) is None


def test_a_token_that_opens_every_text_is_no_reason_to_lay_rows_out():
    assert layout_that_pays([[0, *range(10 * row, 10 * row + 30)] for row in range(1, 9)], 256) is None


def test_one_long_prefix_of_many_rows_gives_one_tree():
    layout = layout_that_pays([[*range(100), 200 + row] for row in range(8)], 256)
    assert len(layout.trees) == 1
    assert layout.cached == 7 * 100


def test_where_attention_would_cost_more_than_it_saves_a_prefix_stands_in_several_trees():
    rows = [[*range(100), *range(1000 * row, 1000 * row + 40)] for row in range(1, 65)]
    layout = layout_that_pays(rows, 16)
    assert 1 < len(layout.trees) < 64
    assert layout.cached == (64 - len(layout.trees)) * 100
