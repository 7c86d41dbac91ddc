"""What a drafter has proved to be worth: how right its probabilities are, whether drafts pay."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from specds._core import TokenTree
from specds.drafters.session import Drafter

# The weight of a step in the next one: after fifty steps it is a third.
_DECAY = 0.98
# So many expected tokens count as much as the trust in the depth above.
_FAITH = 2.0
# The trust in an unknown drafter. Cheap nodes are verified all the same; where nodes are expensive,
# its first tokens tell as much at no cost.
_FIRST_TRUST = 0.3
# Deeper nodes are trusted as the deepest of these.
_DEPTHS = 16
_MOST_TRUST = 2.0
_AVERAGING = 0.1
# For a draft that took less than usual.
_AVERAGING_DOWN = 0.5
_LONGEST_WAIT = 31


class Experience:
    """What a drafter has been worth, over all its requests.

    Trust is the share of the expected tokens that came. It is by depth, since drafters other than
    `fused` exaggerate more the deeper they draft; a depth with little evidence is trusted as the
    one above it. The evidence is the verified nodes and their children, whose outcome every step
    shows: so a drafter none of whose nodes are verified can win trust.
    """

    def __init__(self, trust: float = _FIRST_TRUST) -> None:
        # Lists, since numpy's first calls between two passes take 10 us each. Depths start at 1.
        self._promised = [0.0, _FAITH] + [0.0] * (_DEPTHS - 1)
        self._came = [0.0, _FAITH * trust] + [0.0] * (_DEPTHS - 1)
        self._trust = [trust] * (_DEPTHS + 1)
        self._worth = 0.0
        self._draft_s: float | None = None
        self._period = self._wait = 0

    @property
    def most_trust(self) -> float:
        """The largest factor by which a probability may be too small, at least 1."""
        return max(1.0, *self._trust)

    def gains(self, tree: TokenTree) -> list[float]:
        """Tokens to expect of each node of a tree."""
        nodes = zip(_promises(tree), tree.depths().tolist(), strict=True)
        return [promise * self._trust[min(depth, _DEPTHS)] for promise, depth in nodes]

    def learn(self, tree: TokenTree, num_verified: int, emitted: Sequence[int]) -> None:
        """Compares a draft, whose first nodes were verified, with what was emitted."""
        promised = self._promised = [_DECAY * number for number in self._promised]
        came = self._came = [_DECAY * number for number in self._came]
        path = tree.follow(emitted)
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
        """Whether to draft in the next step; if not, a pause gets one step shorter."""
        if self._wait == 0:
            return True
        self._wait -= 1
        return False

    def draft_time(self, seconds: float) -> float:
        """Takes the time of a draft, and returns the usual one."""
        usual = seconds if self._draft_s is None else self._draft_s
        # Interrupted drafts, and the first ones, whose data is in no cache, say little of the next.
        rate = _AVERAGING if seconds > usual else _AVERAGING_DOWN
        self._draft_s = usual + rate * (min(seconds, 3 * usual) - usual)
        return self._draft_s

    def judge(self, profit: float) -> None:
        """Takes what a draft gained, less its own time, in tokens of a sequence.

        Pauses grow while drafts lose on average.
        """
        self._worth += _AVERAGING * (profit - self._worth)
        self._period = min(2 * self._period + 1, _LONGEST_WAIT) if self._worth <= 0 else 0
        self._wait = self._period


def _promises(tree: TokenTree) -> list[float]:
    """The probabilities of a tree; 1 for each node if the drafter gives none."""
    probs: list[float] = tree.probs.tolist()
    return probs if any(probs) else [1.0] * len(probs)


_experiences: WeakKeyDictionary[Drafter, Experience] = WeakKeyDictionary()


def experience_of(drafter: Drafter) -> Experience:
    """The experience with a drafter; a new one if there is none, or the drafter cannot be a key."""
    new = Experience()
    try:
        return _experiences.setdefault(drafter, new)
    except TypeError:
        return new
