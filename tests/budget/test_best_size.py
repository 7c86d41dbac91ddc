"""How many nodes of some drafts are verified, against brute force."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import TokenTree
from specds.budget.best_size import Judged, best_size, best_sizes, worth_of

rows = st.lists(st.lists(st.floats(0, 1), max_size=6), min_size=1, max_size=4)


@given(rows, st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_the_number_of_nodes_is_that_of_brute_force(probs, increments):
    costs = np.cumsum([1.0, *increments])

    def emitted(size):
        return 1 + sum(sum(row[:size]) for row in probs) / len(probs)

    size, judged = best_size(probs, costs)
    best = max(emitted(size) / costs[size] for size in range(1 + max(map(len, probs))))
    if best < 1.03:  # for less, nothing is verified
        assert (size, judged) == (0, Judged())
    else:
        assert emitted(size) / costs[size] == pytest.approx(best)
        assert judged.tokens == pytest.approx(emitted(size) - 1)
        assert judged.profit == pytest.approx(emitted(size) - costs[size], abs=1e-9)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=6))
def test_rows_that_have_most_to_write_count_most(max_depths):
    shares = [worth.share for worth in worth_of(max_depths)]
    assert np.mean(shares) == pytest.approx(1)
    in_order = sorted(zip(max_depths, shares, strict=True))
    for (depth, share), (next_depth, next_share) in pairwise(in_order):
        assert share < next_share if depth < next_depth else share == next_share


falling = st.lists(st.floats(0, 1), max_size=3).map(lambda row: sorted(row, reverse=True))


@given(st.lists(falling, min_size=1, max_size=4), st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_numbers_of_their_own_are_those_of_brute_force(rows, increments):
    costs = np.cumsum([1.0, *increments])

    def emitted(sizes):
        return 1 + sum(sum(row[:size]) for row, size in zip(rows, sizes, strict=True)) / len(rows)

    def cost(sizes):
        return np.interp(sum(sizes) / len(rows), range(4), costs)

    sizes, judged = best_sizes(rows, costs)
    all_sizes = product(*(range(1 + len(row)) for row in rows))
    best = max(emitted(sizes) / cost(sizes) for sizes in all_sizes)
    if best < 1.03:
        assert (sizes, judged) == ([0] * len(rows), Judged())
    elif sum(sizes):
        assert emitted(sizes) / cost(sizes) == pytest.approx(best)
        assert judged.tokens == pytest.approx(emitted(sizes) - 1)
        assert judged.profit == pytest.approx(emitted(sizes) - cost(sizes), abs=1e-9)
    else:
        assert best == pytest.approx(1.03)


def test_no_node_comes_before_those_that_its_tree_puts_first():
    # The second node of the first tree gains most, and costs two.
    sizes, judged = best_sizes([[0.1, 0.9], [0.6]], [1.0, 1.2, 2.0])
    assert sizes == [0, 1]
    assert judged.tokens == pytest.approx(0.3)
    sizes, _ = best_sizes([[0.1, 0.9], [0.6]], [1.0, 1.05, 1.1])
    assert sizes == [2, 1]
    assert best_sizes([[], []], [1.0]) == ([0, 0], Judged())


def test_tokens_that_take_a_row_ahead_are_worth_less_and_less():
    tree = TokenTree([1, 2, 3, 4], [-1, 0, 1, -1], [0.9] * 4)
    (alone,) = worth_of([50])
    assert alone.of(tree, [0.9, 0.8, 0.7, 0.1]) == [0.9, 0.8, 0.7, 0.1]
    near, far = worth_of([8, 8])[0], worth_of([399, 399])[0]
    assert near.share == far.share == 1
    assert near.of(tree, [0.5] * 4) == pytest.approx(
        [0.5, 0.5 * near.fade, 0.5 * near.fade**2, 0.5]
    )
    # What is to come tells more than what is far ahead.
    assert near.fade == pytest.approx(np.exp(-2 / 3))
    assert far.fade == pytest.approx(np.exp(-1 / 10))
