"""How many nodes of some drafts are verified, against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specds.budget.best_size import best_size

rows = st.lists(st.lists(st.floats(0, 1), max_size=6), min_size=1, max_size=4)


@given(rows, st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_the_number_of_nodes_is_that_of_brute_force(probs, increments):
    costs = np.cumsum([1.0, *increments])

    def emitted(size):
        return 1 + sum(sum(row[:size]) for row in probs) / len(probs)

    size, tokens = best_size(probs, costs)
    best = max(emitted(size) / costs[size] for size in range(1 + max(map(len, probs))))
    if best < 1.03:  # for less, nothing is verified
        assert (size, tokens) == (0, 0)
    else:
        assert emitted(size) / costs[size] == pytest.approx(best)
        assert tokens == pytest.approx(emitted(size) - 1)
