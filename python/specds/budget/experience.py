"""What has a drafter proved to be worth: may its probabilities be trusted, do its drafts pay?"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from specds._core import TokenTree
from specds.drafters.session import Drafter
from specds.drafters.step import right_path

# What happened fifty steps ago counts a third.
_KEPT = 0.98
# How many expected tokens it takes until what came of them counts as much as the drafter's word.
_FAITH = 2.0
# What is believed of a drafter that is not known yet: where nodes are cheap they are verified all
# the same, and where they are not, its first tokens tell as much at no cost.
_FIRST_TRUST = 0.3
# Deeper nodes are trusted as the deepest of these.
_DEPTHS = 16
_MOST_TRUST = 2.0
_AVERAGING = 0.1
# Of the time of drafts, where it is less than thought.
_AVERAGING_DOWN = 0.5
_LONGEST_WAIT = 31


class Experience:
    """What a drafter has been worth, over all requests that it drafted for.

    Trust is the share of the expected tokens that came. It is by depth, since drafters other than
    `fused` exaggerate more the deeper they draft; a depth with little evidence is trusted as the
    one above it. Nodes count whose outcome is sure to be known before it is: the verified ones and
    their children, so that a drafter none of whose nodes are verified can win trust.
    """

    def __init__(self, trust: float = _FIRST_TRUST) -> None:
        # Lists, as numpy's first calls between two passes take 10 us each. Depths count from 1.
        self._promised = [0.0, _FAITH] + [0.0] * (_DEPTHS - 1)
        self._came = [0.0, _FAITH * trust] + [0.0] * (_DEPTHS - 1)
        self._trust = [trust] * (_DEPTHS + 1)
        self._worth = 0.0
        self._draft_s: float | None = None
        self._period = self._wait = 0

    @property
    def most_trust(self) -> float:
        """The largest factor by which a probability may be too small, 1 at least."""
        return max(1.0, *self._trust)

    def gains(self, tree: TokenTree) -> list[float]:
        """Tokens to expect of each node of a tree."""
        nodes = zip(_promises(tree), tree.depths().tolist(), strict=True)
        return [promise * self._trust[min(depth, _DEPTHS)] for promise, depth in nodes]

    def learn(self, tree: TokenTree, num_verified: int, emitted: Sequence[int]) -> None:
        """Compares a draft, of which the first nodes were verified, with what was emitted."""
        promised = self._promised = [_KEPT * number for number in self._promised]
        came = self._came = [_KEPT * number for number in self._came]
        path = right_path(tree, emitted)
        nodes = zip(tree.parents.tolist(), tree.depths().tolist(), _promises(tree), strict=True)
        for node, (parent, depth, promise) in enumerate(nodes):
            if parent < num_verified:
                promised[min(depth, _DEPTHS)] += promise
                came[min(depth, _DEPTHS)] += node in path
        factor = min(came[1] / promised[1], _MOST_TRUST) if promised[1] else 0.0
        self._trust = [factor, factor]
        for came_here, promised_here in zip(came[2:], promised[2:], strict=True):
            factor = (came_here + _FAITH * factor) / (promised_here + _FAITH)
            factor = factor if factor < _MOST_TRUST else _MOST_TRUST
            self._trust.append(factor)

    def is_time_to_draft(self) -> bool:
        """Whether to draft in a step, which counts as one of a pause where it is not."""
        if self._wait == 0:
            return True
        self._wait -= 1
        return False

    def draft_time(self, seconds: float) -> float:
        """Takes how long a draft took, and returns what one usually takes."""
        usual = seconds if self._draft_s is None else self._draft_s
        # A draft that was interrupted says little of the next one, and the first ones, which find
        # nothing in the processor's caches, as little.
        rate = _AVERAGING if seconds > usual else _AVERAGING_DOWN
        self._draft_s = usual + rate * (min(seconds, 3 * usual) - usual)
        return self._draft_s

    def judge(self, profit: float) -> None:
        """Takes what a draft gained, its own time paid for, in tokens of a sequence.

        While drafts lose on average pauses grow, also where one of them gains a little.
        """
        self._worth += _AVERAGING * (profit - self._worth)
        self._period = min(2 * self._period + 1, _LONGEST_WAIT) if self._worth <= 0 else 0
        self._wait = self._period


def _promises(tree: TokenTree) -> list[float]:
    """The probabilities of a tree; a drafter that gives none is taken to be sure."""
    probs: list[float] = tree.probs.tolist()
    return probs if any(probs) else [1.0] * len(probs)


_experiences: WeakKeyDictionary[Drafter, Experience] = WeakKeyDictionary()


def experience_of(drafter: Drafter) -> Experience:
    """What a drafter has been worth so far; nothing is known of one that cannot be a key."""
    new = Experience()
    try:
        return _experiences.setdefault(drafter, new)
    except TypeError:
        return new
