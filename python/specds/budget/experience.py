"""What has a drafter proved to be worth: may its probabilities be trusted, do its drafts pay?"""

from __future__ import annotations

from bisect import bisect
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specds._core import TokenTree
    from specds.drafters.session import Drafter

# What happened fifty steps ago counts a third.
_KEPT = 0.98
# How many expected tokens it takes until what came of them counts as much as the drafter's word.
_FAITH = 2.0
# What is believed of a drafter that is not known yet: where nodes are cheap they are verified all
# the same, and where they are not, its first tokens tell as much at no cost.
_FIRST_TRUST = 0.3
# Deeper nodes are trusted as the deepest of these.
_DEPTHS = 16
# Drafts are told apart by the probability of their likeliest node.
_SURENESS = (0.1, 0.2, 0.35, 0.5, 0.7, 0.9)
_MOST_TRUST = 2.0
_AVERAGING = 0.1
# Of the time of drafts, where it is less than thought.
_AVERAGING_DOWN = 0.5
_LONGEST_WAIT = 31


class Trust:
    """What is held of a drafter's probabilities: the share of the tokens promised that came.

    By how sure the drafter is of its likeliest node, since drafters exaggerate both ways, and by
    depth. A depth with little evidence is trusted as the one above it, and the first one as that of
    all drafts, never more than the drafter says. Nodes count whose outcome is sure to be known
    before it is: the verified ones and their children. So a drafter is judged by the first token
    alone while none of its nodes is verified, and can win trust.

    Args:
        first: What is believed of a drafter that is not known yet.
    """

    def __init__(self, first: float = _FIRST_TRUST) -> None:
        # Lists: between two passes of a model, code is seldom in the processor's cache, and the
        # first few calls of numpy take 10 us each.
        rows, size = range(len(_SURENESS) + 1), _DEPTHS + 1
        self._promised = [[0.0] * size for _ in rows]
        self._came = [[0.0] * size for _ in rows]
        # Of the first tokens of all drafts, what was promised and what came.
        self._of_all = [_FAITH, _FAITH * first]
        self._factors = [[first] * size for _ in rows]

    @property
    def most(self) -> float:
        """The largest factor by which a probability may be too small."""
        return max(1.0, *map(max, self._factors))

    def gains(self, tree: TokenTree) -> list[float]:
        """Tokens to expect of each node of a tree."""
        promises = _promises(tree)
        factors = self._factors[_row(promises)]
        nodes = zip(promises, tree.depths().tolist(), strict=True)
        return [promise * factors[min(depth, _DEPTHS)] for promise, depth in nodes]

    def hope(self, tree: TokenTree) -> float:
        """The most tokens to expect of a node that is no likelier than the last of a tree."""
        promises = _promises(tree)
        return min(promises[-1] * max(self._factors[_row(promises)][1:]), 1.0)

    def learn(self, tree: TokenTree, num_verified: int, emitted: Sequence[int]) -> None:
        """Compares a draft, of which the first nodes were verified, with what was emitted."""
        promises = _promises(tree)
        row = _row(promises)
        promised = self._promised[row] = [_KEPT * number for number in self._promised[row]]
        came = self._came[row] = [_KEPT * number for number in self._came[row]]
        first_promised, first_came = (_KEPT * number for number in self._of_all)
        path = _path(tree, emitted)
        nodes = zip(tree.parents.tolist(), tree.depths().tolist(), promises, strict=True)
        for node, (parent, depth, promise) in enumerate(nodes):
            if parent < num_verified:
                promised[min(depth, _DEPTHS)] += promise
                came[min(depth, _DEPTHS)] += node in path
                if parent < 0:
                    first_promised += promise
                    first_came += node in path
        self._of_all = [first_promised, first_came]
        factor = first_came / max(first_promised, first_came) if first_came else 0.0
        factors = [factor]
        for came_here, promised_here in zip(came[1:], promised[1:], strict=True):
            factor = (came_here + _FAITH * factor) / (promised_here + _FAITH)
            factors.append(factor if factor < _MOST_TRUST else _MOST_TRUST)
        for other, of_row in enumerate(self._promised):
            if of_row[1] == 0.0:
                self._factors[other] = factors[:1] * len(factors)
        self._factors[row] = factors


def _row(promises: list[float]) -> int:
    """How sure a drafter is, as a row of what is known of it."""
    return bisect(_SURENESS, max(promises, default=0.0))


def _promises(tree: TokenTree) -> list[float]:
    """The probabilities of a tree; a drafter that gives none is taken to be sure."""
    probs: list[float] = tree.probs.tolist()
    return probs if any(probs) else [1.0] * len(probs)


def _path(tree: TokenTree, emitted: Sequence[int]) -> list[int]:
    """The nodes of a tree along the emitted tokens."""
    edges = zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True)
    nodes = {edge: node for node, edge in enumerate(edges)}
    path: list[int] = []
    for token in emitted:
        node = nodes.get((path[-1] if path else -1, token))
        if node is None:
            break
        path.append(node)
    return path


class Experience:
    """What a drafter has been worth, over all requests that it drafted for.

    Args:
        may_pause: Whether drafts that lose are followed by steps without any.
        trust: In what it promises.
    """

    def __init__(self, *, may_pause: bool = True, trust: Trust | None = None) -> None:
        self.trust = Trust() if trust is None else trust
        self._may_pause = may_pause
        # Tokens that were expected of the nodes verified, and how many came.
        self._expected = self._came = 0.0
        self._worth = 0.0
        self._draft_s: float | None = None
        self._period = self._wait = 0

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

    def verified(self, expected: float, came: int) -> None:
        """Takes how many tokens were expected of the nodes of a step, and how many came."""
        self._expected = _KEPT * self._expected + expected
        self._came = _KEPT * self._came + came

    @property
    def kept(self) -> float:
        """The share of the tokens expected of verified nodes that came.

        It is below that of all nodes: the nodes verified are those that most was expected of, and
        of some of them it was too much.
        """
        return min((self._came + _FAITH) / (self._expected + _FAITH), 1.0)

    def judge(self, profit: float) -> None:
        """Takes what a draft gained, its own time paid for, in tokens of a sequence.

        While drafts lose on average pauses grow, also where one of them gains a little.
        """
        self._worth += _AVERAGING * (profit - self._worth)
        loses = self._may_pause and self._worth <= 0
        self._period = min(2 * self._period + 1, _LONGEST_WAIT) if loses else 0
        self._wait = self._period


_experiences: WeakKeyDictionary[Drafter, Experience] = WeakKeyDictionary()


def experience_of(drafter: Drafter) -> Experience:
    """What a drafter has been worth so far; nothing is known of one that cannot be a key."""
    new = Experience(may_pause=getattr(drafter, "may_pause", True))
    try:
        return _experiences.setdefault(drafter, new)
    except TypeError:
        return new
