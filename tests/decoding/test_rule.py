"""The core's rule against its reference implementation, over steps of small drafts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from budget_rule import Rule
from specds._core import DraftStats, NodeBudget, TokenTree


@st.composite
def trees(draw):
    """A small tree whose children are at most as likely as their parents."""
    parents, probs = [], []
    has_probs = draw(st.booleans())
    for node in range(draw(st.integers(0, 5))):
        parents.append(draw(st.integers(-1, node - 1)))
        above = probs[parents[-1]] if parents[-1] >= 0 else 1.0
        probs.append(above * draw(st.sampled_from([0.3, 0.6, 0.95])))
    return TokenTree(range(len(parents)), parents, probs if has_probs else None)


STEPS = st.lists(
    st.lists(st.tuples(trees(), st.lists(st.integers(0, 5), min_size=1, max_size=4)), min_size=3),
    max_size=12,
)


@given(
    steps=STEPS,
    increments=st.lists(st.floats(0.01, 0.7), min_size=5, max_size=5),
    reliability=st.sampled_from([0.3, 1.0]),
)
def test_sizes_equal_the_reference_rule(steps, increments, reliability):
    costs = np.cumsum([1.0, *increments]).tolist()
    budget, rule = NodeBudget(DraftStats(reliability), costs, 3), Rule(3, costs, reliability)
    for step in steps:
        drafts, emitted = zip(*step[:3], strict=True)
        # Drafts that take no time never back off.
        assert budget.drafts == [True] * 3
        sizes = budget.choose(drafts, 0.0)
        assert sizes == rule.sizes(drafts)
        rule.learn(drafts, sizes, emitted)
        budget.learn(emitted, 1.0)


def test_leaving_row_gives_its_number_to_the_last():
    right, wrong = TokenTree([1], [-1], [0.5]), TokenTree([2], [-1], [0.5])
    budget = NodeBudget(DraftStats(), [1.0, 1.1], 3)
    for _ in range(60):
        budget.choose([wrong, wrong, right], 0.2)
        budget.learn([[1], [1], [1]], 1.0)
    assert budget.drafts == [False, False, True]
    budget.leave(0)
    assert budget.drafts == [True, False]


def test_zero_costs_and_invalid_trust_are_rejected():
    with pytest.raises(ValueError, match="must be points"):
        NodeBudget(DraftStats(), [2.0, 0.0], 1)
    with pytest.raises(ValueError, match="`reliability` must be a finite number of at least 0"):
        DraftStats(-1.0)


def test_chains_are_shorter_where_a_rejection_feeds_tokens_again():
    chain = TokenTree(range(8), range(-1, 7), [0.62**depth for depth in range(1, 9)])
    costs = [1 + 0.3 * num_nodes for num_nodes in range(64)]
    budgets = [NodeBudget(DraftStats(1.0), costs, 1) for _ in range(3)]
    waiting = (None, 0, 8)
    sizes = [of.choose([chain], 0.0, n)[0] for of, n in zip(budgets, waiting, strict=True)]
    # Of tokens that are fed anyway, the share of a draft in the pass is smaller.
    assert sizes == [2, 1, 3]
