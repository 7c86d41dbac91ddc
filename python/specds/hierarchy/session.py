"""One request of a hierarchy: its levels wired into a chain, step by step."""

from __future__ import annotations

import warnings
from functools import partial
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from specds.budget.step_cost import MOST_NODES
from specds.hierarchy.draft import EMPTY_TREE, Draft
from specds.hierarchy.levels import Level, LevelError, ModelLevel, RetrievalLevel
from specds.hierarchy.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specds._core import TokenTree
    from specds.drafters.session import Proposal, RequestRules, StepCost
    from specds.hierarchy.choice import Chooser
    from specds.hierarchy.config import HierarchyConfig
    from specds.stats import LevelStats


class HierarchySession:
    """One request: a `ProposingSession`.

    Args:
        prompt_ids: The prompt.
        levels: The lowest first.
        config: How they draft.
        require: Refuses a target that the levels cannot draft for.
        chooser: Chooses levels by their indices at each step; by default all of them.
        least_pass_s: The least seconds that a pass of a level took, by name: what is known, and
            what becomes known here.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int] | np.ndarray,
        levels: Sequence[Level],
        config: HierarchyConfig,
        require: Callable[[RequestRules], None] = lambda _: None,
        chooser: Chooser[tuple[int, ...]] | None = None,
        least_pass_s: dict[str, float] | None = None,
    ) -> None:
        self.level_stats: dict[str, LevelStats] = {level.name: level.stats for level in levels}
        self._levels: dict[int, Level] = dict(enumerate(levels))
        self._config = config
        self._require = require
        self._chooser = chooser
        self._least_pass_s = {} if least_pass_s is None else least_pass_s
        self._rules: RequestRules | None = None
        self._text = Text(prompt_ids)
        self._draft = Draft(EMPTY_TREE)
        # What the levels handed up to make that draft of.
        self._parts: list[Draft] = []
        self._cost: StepCost | None = None
        self._draft_s = 0.0
        self._num_verified = 0

    @property
    def proposals(self) -> Mapping[int, Proposal]:
        """The sampled tokens of the last draft, by the node that they follow."""
        return self._draft.proposals

    def join(self, rules: RequestRules) -> None:
        """Chooses tokens as the target does from now on.

        Raises:
            ValueError: The levels cannot draft for that target.
        """
        self._require(rules)
        self._rules = rules
        self._text = Text(self._text.tokens, rules)

    def draft(self, max_nodes: int) -> TokenTree:
        """Drafts by the levels; a level that fails is left out from then on, with a warning."""
        if self._chooser is not None and self._rules is not None:
            self._cost = self._rules.costs()
        max_nodes = min(max_nodes, self._config.max_nodes)
        started = perf_counter()
        length, left = len(self._text), self._text.tokens_left
        most = max_nodes if left is None else min(max_nodes, left)
        try:
            self._parts = self._drafts_of(self._wired(), most)
        except LevelError as failure:
            self._text.cut(length)
            self._leave_out(failure)
            self._parts = []
        self._draft, *branches = self._parts or [Draft(EMPTY_TREE)]
        for retrieved in branches:
            self._draft = self._draft.joined_with(retrieved.tree, max_nodes)
        self._num_verified = len(self._draft.tree)
        self._draft_s = perf_counter() - started
        return self._draft.tree

    def cut(self, num_nodes: int) -> None:
        """Takes that of the last draft only the first `num_nodes` nodes are verified."""
        self._num_verified = num_nodes

    def observe(self, token_ids: Sequence[int] | np.ndarray) -> None:
        """Takes what the target emitted; thresholds learn from what it rejected."""
        tokens = [int(token) for token in token_ids]
        if self._chooser is not None and self._cost is not None:
            self._judge(self._chooser, self._cost, len(tokens))
        for draft in self._parts:
            draft.settle(tokens)
        self._draft, self._parts, self._cost = Draft(EMPTY_TREE), [], None
        self._text.tokens += tokens
        for level in list(self._levels.values()):
            try:
                level.observe(tokens)
            except LevelError as failure:
                self._leave_out(failure)

    def finish(self) -> None:
        """Ends the request at all levels."""
        for level in self._levels.values():
            level.finish()

    def _judge(self, chooser: Chooser[tuple[int, ...]], cost: StepCost, num_tokens: int) -> None:
        """Tells what a choice of levels gave, in its own time and that which the target takes."""
        for level in self._levels.values():
            if isinstance(level, ModelLevel):
                known = self._least_pass_s.get(level.name, inf)
                self._least_pass_s[level.name] = min(known, level.least_pass_s)
        seconds = self._draft_s + cost.seconds(min(self._num_verified, MOST_NODES))
        chooser.record(num_tokens, seconds, partial(self._most, cost))

    def _most(self, cost: StepCost, chosen: Sequence[int]) -> float:
        """The tokens a second of a choice of levels if the target accepted all that they draft.

        A model needs a pass for each token, but above another level perhaps one for all of them.
        """
        num_tokens = np.arange(1 + MOST_NODES if chosen else 1)
        seconds = np.array([cost.seconds(number) for number in range(len(num_tokens))])
        is_alone = True
        for index in chosen:
            level = self._levels.get(index)
            if isinstance(level, ModelLevel):
                pass_s = self._least_pass_s.get(level.name, inf)
                if pass_s < inf:
                    seconds = seconds + pass_s * (num_tokens if is_alone else num_tokens > 0)
            is_alone = False
        return float(((1 + num_tokens) / seconds).max())

    def _drafts_of(self, chain: Sequence[Level], most: int) -> list[Draft]:
        """What the highest level drafts, and the retrieved branches that are to be joined to it."""
        if not chain:
            return []
        retrieval, top = chain[0], chain[-1]
        if not self._config.joined or not isinstance(retrieval, RetrievalLevel):
            return [top.draft(self._text, most)]
        branches = retrieval.branches()
        return [Draft(EMPTY_TREE) if top is retrieval else top.draft(self._text, most), branches]

    def _wired(self) -> list[Level]:
        """The levels of this step, the lowest first, each model drafting by the one before it."""
        config = self._config
        chosen = tuple(self._levels) if self._chooser is None else self._chooser.next()
        chain = [level for index, level in self._levels.items() if index in chosen]
        models = [level for level in chain if isinstance(level, ModelLevel)]
        if not config.pre_verify:
            models = models[-1:]
        beneath = next((level for level in chain if isinstance(level, RetrievalLevel)), None)
        drafter = beneath if config.beneath else None
        for number, model in enumerate(models):
            pre_verifies = number > 0
            model.beneath = models[number - 1] if pre_verifies else drafter
            model.self_verify = config.dynamic_window if pre_verifies else config.self_verify
            model.window = None if pre_verifies and config.dynamic_window else config.window
        return [*models] if beneath is None else [beneath, *models]

    def _leave_out(self, failure: LevelError) -> None:
        index = next(index for index, level in self._levels.items() if level is failure.level)
        del self._levels[index]
        warnings.warn(
            f"{failure} and is left out of this request: {failure.__cause__!r}",
            RuntimeWarning,
            stacklevel=2,
        )
        failure.level.finish()
