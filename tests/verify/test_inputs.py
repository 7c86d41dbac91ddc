"""Packing and reading of the memory of a pass, compared with their definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import random_tree
from reference import path_to
from specds._core import TokenTree, pack_rows, read_outcomes
from specds.transformers.verify.inputs import Inputs


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 9) | st.integers(60, 70), min_size=1, max_size=3),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 3)),
)
def test_packed_rows_equal_the_definition(seed, sizes, padding):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, size) for size in sizes]
    num_rows, width = len(sizes) + padding[0], 1 + max(sizes) + padding[1]
    inputs = Inputs.on_host(num_rows, width)
    inputs.numbers.fill_(-7)  # left by another pass
    lasts, lengths = [*range(10, 10 + len(sizes))], [*range(20, 20 + len(sizes))]
    inputs.fill(lasts, trees, lengths)
    visible = inputs.visible()
    assert inputs.lengths.tolist() == lengths + [0] * padding[0]
    for row in range(num_rows):
        end = 1 + sizes[row] if row < len(sizes) else 0
        for place in range(width):
            path = [place]
            if place < end:
                path = [0, *(1 + node for node in path_to(trees[row], place - 1))]
            depth = len(path) - 1
            drafted = trees[row].token_ids[place - 1] if 0 < place < end else 0
            token = lasts[row] if end and place == 0 else drafted
            expected = [int(token), depth, path[-2] if depth else 0]
            three = inputs.token_ids, inputs.depths, inputs.parents
            assert [int(of[row, place]) for of in three] == expected
            assert visible[row, place].nonzero().flatten().tolist() == sorted(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trees": [TokenTree(range(8), [-1] * 8)]}, "rows of 8 positions"),
        ({"trees": [None, None]}, "one entry for each row"),
        ({"token_ids": [1] * 3, "lengths": [1] * 3, "trees": [None] * 3}, "3 rows of 8 positions"),
    ],
)
def test_rows_that_do_not_fit_are_refused(change, said):
    rows = {"token_ids": [1], "trees": [None], "lengths": [1], **change}
    with pytest.raises(ValueError, match=said):
        Inputs.on_host(2, 8).fill(**rows)


@pytest.mark.parametrize("width", [0, 7, 2**62])
def test_memory_of_partial_rows_is_refused(width):
    with pytest.raises(ValueError, match="must hold 0 rows"):
        pack_rows(np.zeros(41, np.int64), width, [], [], [])


@pytest.mark.parametrize("row", [[8], [-1, *range(16)], [8, *range(16)], [0, *range(15)]])
def test_invalid_report_is_refused(row):
    with pytest.raises(ValueError, match="not a report of a row of 8 positions"):
        read_outcomes(torch.tensor([row]).numpy(), 8)
