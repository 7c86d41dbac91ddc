"""What is held of a drafter: trust in its probabilities, by what came of them."""

import pytest

from specds._core import TokenTree
from specds.budget.experience import Experience


def test_a_drafter_that_is_not_known_is_soon_trusted_where_it_is_right():
    tree = TokenTree([1], [-1], [0.95])
    for came in (True, False):
        known = Experience()
        assert known.gains(tree) == pytest.approx([0.3 * 0.95])
        for _ in range(16):
            known.learn(tree, 0, [1 if came else 2])
        (gain,) = known.gains(tree)
        assert gain > 0.8 if came else gain < 0.1


def test_trust_follows_what_came_by_depth():
    known = Experience(1.0)
    tree = TokenTree([1, 2, 3, 4], [-1, -1, 0, 2], [0.4, 0.3, 0.4, 0.4])
    assert known.gains(tree) == pytest.approx([0.4, 0.3, 0.4, 0.4])
    for step in range(500):
        # The first token comes as often as was promised, and nothing after it.
        known.learn(tree, 3, [1 if step % 10 < 7 else 8, 9])
    gains = known.gains(tree)
    assert gains[0] + gains[1] == pytest.approx(0.7, abs=0.05)
    assert gains[2] + gains[3] < 0.1


def test_a_drafter_that_promises_too_little_is_trusted_twice_its_word_at_most():
    known, tree = Experience(), TokenTree([1], [-1], [0.1])
    for _ in range(500):
        known.learn(tree, 1, [1])
    assert known.most_trust == 2.0
    assert known.gains(tree) == pytest.approx([0.2])


def test_drafts_that_promise_nothing_are_never_trusted():
    known, tree = Experience(), TokenTree([1, 2], [-1, 0], [0.0, 0.5])
    known._promised[1] = known._came[1] = 0.0
    known.learn(tree, 0, [3])
    assert known.gains(tree) == [0.0, 0.0]


def test_a_drafter_without_probabilities_is_judged_by_what_comes():
    known = Experience(1.0)
    tree = TokenTree([1, 2], [-1, -1], [0, 0])
    assert known.gains(tree) == [1.0, 1.0]
    for _ in range(200):
        known.learn(tree, 2, [2])
    assert sum(known.gains(tree)) == pytest.approx(1.0, abs=0.05)
    assert known.gains(TokenTree([], [], [])) == []
