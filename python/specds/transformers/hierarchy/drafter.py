"""Hierarchy of drafters as one drafter, and its session: levels wired into a chain."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
from transformers import PreTrainedModel

from specds._core import Session, TokenTree
from specds.drafters import DrafterInputs, maker_of
from specds.drafters.session import EMPTY_TREE, Drafter, Proposal, RequestRules
from specds.generation.runner import UnsupportedModelError
from specds.generation.stats import LevelStats
from specds.models.load import load_model
from specds.models.resolve import ModelRef
from specds.models.tokenization import fingerprint, model_vocab_size
from specds.transformers.hierarchy.config import HierarchyConfig
from specds.transformers.hierarchy.context import LevelContext
from specds.transformers.hierarchy.draft import Draft
from specds.transformers.hierarchy.levels import CachedModel, Level, ModelLevel, RetrievalLevel
from specds.transformers.verify.chain import ChainRunner
from specds.transformers.verify.support import recurrent_runner, require_support

# Maximum nodes of retrieved trees that the lowest model verifies.
_RETRIEVED_NODES = 16


class HierarchySession(Session):
    """Session of a hierarchy for one request.

    Args:
        levels: The levels, the lowest first.
        require: Raises for a target that the levels cannot draft for.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int] | np.ndarray,
        levels: Sequence[Level],
        config: HierarchyConfig,
        require: Callable[[RequestRules], None] = lambda _: None,
    ) -> None:
        self._levels = [*levels]
        self._config = config
        self._require = require
        self._context = LevelContext(prompt_ids)
        self._draft = Draft(EMPTY_TREE)
        # The drafts of levels that it was made of.
        self._parts: list[Draft] = []
        retrieval = levels[0] if isinstance(levels[0], RetrievalLevel) else None
        # The target verifies its branches too.
        self._joined = retrieval if config.joined else None
        models = [level for level in levels if isinstance(level, ModelLevel)]
        if not config.pre_verify:
            models = models[-1:]
        for number, model in enumerate(models):
            pre_verifies = number > 0
            model.lower = models[number - 1] if pre_verifies else retrieval
            model.self_verify = config.dynamic_window if pre_verifies else config.self_verify
            model.window = None if pre_verifies and config.dynamic_window else config.window

    @property
    def proposes(self) -> bool:
        """Return True: tokens are sampled where the target samples."""
        return True

    @property
    def level_stats(self) -> Mapping[str, LevelStats]:
        return {level.name: level.stats for level in self._levels}

    @property
    def proposals(self) -> Mapping[int, Proposal]:
        return self._draft.proposals

    @property
    def num_predictions(self) -> int:
        """Return the number of the retrieval drafter, if the target verifies its branches."""
        return self._joined.session.num_predictions if self._joined else 0

    def observe_predictions(self, tree: TokenTree, predictions: np.ndarray) -> None:
        if self._joined:
            self._joined.session.observe_predictions(tree, predictions)

    def begin(self, rules: RequestRules) -> None:
        """Choose tokens by the rules of the target from now on."""
        self._require(rules)
        self._context = LevelContext(self._context.tokens, rules)
        for level in self._levels:
            level.stats = LevelStats()

    def draft(
        self, max_nodes: int, max_depth: int | None = None, min_prob: float = 0.0
    ) -> TokenTree:
        max_nodes = min(max_nodes, self._config.max_nodes)
        left = self._context.tokens_left
        most = max_nodes if left is None else min(max_nodes, left)
        top, joined = self._levels[-1], self._joined
        if joined is None:
            self._parts = [top.draft(self._context, most)]
        elif not isinstance(top, ModelLevel):
            self._parts = [joined.branches()]
        elif joined.takes_suggestions and not self._context.samples:
            self._parts = [joined.ranked(top, self._context)]
        else:
            self._parts = [top.draft(self._context, most), joined.branches()]
        self._draft, *branches = self._parts
        for retrieved in branches:
            self._draft = self._draft.joined_with(retrieved.tree, max_nodes)
        return self._draft.tree

    def observe(
        self, token_ids: Sequence[int] | np.ndarray, num_verified: int | None = None
    ) -> None:
        """Append the target's new tokens; thresholds learn from rejected ones."""
        tokens = [int(token) for token in token_ids]
        for draft in self._parts:
            draft.settle(tokens)
        # In a joined tree, the first nodes are not those of the retrieved tree.
        is_retrieved = bool(self._parts) and self._draft is self._parts[-1]
        self._draft, self._parts = Draft(EMPTY_TREE), []
        self._context.tokens += tokens
        for level in self._levels:
            level.observe(tokens, num_verified if is_retrieved else None)

    def finish(self) -> None:
        for level in self._levels:
            level.finish()


class HierarchyDrafter:
    """Drafter made of a chain of levels, each verifying the level below: HSDDW, and retrieval.

    Greedy texts equal those without drafts. Sampled texts follow the same distribution, but differ
    for the same seed, because drafts are sampled too.

    Args:
        levels: Models of the target's vocabulary, the smallest first, by name or in a sequence;
            the first may be a drafter of another kind instead.
        config: Configuration of the hierarchy.

    Raises:
        ValueError: There are no levels, or a level other than the first is not a model.
        UnsupportedModelError: The cache of a model cannot be rolled back.
    """

    def __init__(
        self,
        levels: Sequence[PreTrainedModel | Drafter] | Mapping[str, PreTrainedModel | Drafter],
        config: HierarchyConfig | None = None,
    ) -> None:
        if not hasattr(levels, "items"):
            levels = {f"level {number}": level for number, level in enumerate(levels)}
        self.config = config or HierarchyConfig()
        self._models = {n: lvl for n, lvl in levels.items() if isinstance(lvl, PreTrainedModel)}
        others = {n: lvl for n, lvl in levels.items() if not isinstance(lvl, PreTrainedModel)}
        if not levels or list(others) not in ([], list(levels)[:1]):
            raise ValueError(
                "a hierarchy needs levels, and all but the first must be models: give the smallest "
                "first"
            )
        self._retrieval = others
        for name, model in self._models.items():
            if recurrent_runner(model) is ChainRunner:
                raise UnsupportedModelError(
                    f"{name}, {type(model).__name__}, has recurrent states, and a level drops "
                    "branches: use it as the target, and another model as a level"
                )
            require_support(model)

    @property
    def vocab_size(self) -> int | None:
        """Return the smallest vocabulary: a model may lack tokens of its tokenizer."""
        sizes = [model_vocab_size(model) for model in self._models.values()]
        sizes += [drafter.vocab_size for drafter in self._retrieval.values() if drafter.vocab_size]
        return min(sizes, default=None)

    @property
    def max_nodes(self) -> int | None:
        """Return the configured number of nodes; None where the cost of a step decides."""
        return None if self.config.joined else self.config.max_nodes

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> HierarchySession:
        """Start a request; tokens are chosen greedily until `begin` passes the target's rules.

        Raises:
            ValueError: The prompt is empty or holds an id outside the vocabulary.
        """
        if len(prompt_ids) == 0:
            raise ValueError("the prompt is empty: give at least one token")
        levels: list[Level] = [
            RetrievalLevel(
                name,
                drafter.session(prompt_ids),
                len(prompt_ids),
                self.vocab_size or 2**32 - 1,
                _RETRIEVED_NODES,
                self.config.max_nodes if self.config.joined else _RETRIEVED_NODES,
            )
            for name, drafter in self._retrieval.items()
        ]
        levels += [ModelLevel(name, CachedModel(model)) for name, model in self._models.items()]
        return HierarchySession(prompt_ids, levels, self.config, self._require_target)

    def _require_target(self, rules: RequestRules) -> None:
        """Reject a target of another vocabulary, device or dtype."""
        target = rules.model
        size = model_vocab_size(target)
        for name, model in self._models.items():
            for what, own, wanted, remedy in (
                ("vocabulary", model_vocab_size(model), size, "use models of one family"),
                ("device", model.device, target.device, f"move it by `.to('{target.device}')`"),
                ("dtype", model.dtype, target.dtype, f"load it with `dtype={target.dtype}`"),
            ):
                if own != wanted:
                    raise ValueError(
                        f"level `{name}` has {what} {own}, the target {wanted}: {remedy}"
                    )


def maker(
    inputs: DrafterInputs, names: Sequence[str | ModelRef], config: HierarchyConfig
) -> Callable[[], HierarchyDrafter]:
    """Load models, and return a function that makes a drafter of them.

    With a datastore or the target's bigrams, the fused drafter drafts for the smallest model.
    """
    target, tokenizer = cast("PreTrainedModel", inputs.model), inputs.tokenizer
    dtype, models = str(target.dtype).removeprefix("torch."), {}
    for ref in map(ModelRef.resolve, names):
        models[ref.name], other = load_model(ref, device=str(target.device), dtype=dtype)
        if tokenizer is None or fingerprint(other) != fingerprint(tokenizer):
            raise ValueError(
                f"model `{ref.name}` has another tokenizer than the target: use models of one "
                "family"
            )
    retrieves = inputs.datastore is not None or inputs.model_tables
    fused = maker_of("fused", inputs) if retrieves else None

    def make() -> HierarchyDrafter:
        retrieval = {} if fused is None else {"retrieval": fused()}
        return HierarchyDrafter({**retrieval, **models}, config)

    return make
