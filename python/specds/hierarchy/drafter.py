"""A hierarchy as one drafter; in a request, each level drafts for the one above."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
from transformers import PreTrainedModel

from specds._core import TokenTree
from specds.drafters import DrafterInputs, maker_of
from specds.drafters.session import Drafter, Proposal, RequestRules, Session
from specds.hierarchy.config import HierarchyConfig
from specds.hierarchy.draft import Draft
from specds.hierarchy.levels import CachedModel, ModelLevel, RetrievalLevel
from specds.hierarchy.text import Text
from specds.loading import load_model
from specds.stats import LevelStats
from specds.tokenization import fingerprint
from specds.verify.support import require_support

# The most nodes of retrieved trees that the lowest model verifies.
_RETRIEVED_NODES = 16


class HierarchySession(Session):
    """One request of a hierarchy.

    Args:
        levels: The lowest first: models, below them a retrieval level or none.
        require: Refuses a target that the levels cannot draft for.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int] | np.ndarray,
        levels: Sequence[RetrievalLevel | ModelLevel],
        config: HierarchyConfig,
        require: Callable[[RequestRules], None] = lambda _: None,
    ) -> None:
        self._levels = levels
        self._max_nodes = config.max_nodes
        self._require = require
        self._text = Text(prompt_ids)
        self._draft = Draft()
        self._retrieval = levels[0] if isinstance(levels[0], RetrievalLevel) else None
        models = [level for level in levels if isinstance(level, ModelLevel)]
        if not config.pre_verify:
            models = models[-1:]
        self._top = models[-1]
        beneath: RetrievalLevel | ModelLevel | None = self._retrieval
        for model in models:
            pre_verifies = isinstance(beneath, ModelLevel)
            model.beneath = beneath
            model.self_verify = config.dynamic_window if pre_verifies else config.self_verify
            model.window = None if pre_verifies and config.dynamic_window else config.window
            beneath = model

    @property
    def proposes(self) -> bool:
        """As `Session.proposes`: tokens are sampled where the target samples."""
        return True

    @property
    def level_stats(self) -> Mapping[str, LevelStats]:
        return {level.name: level.stats for level in self._levels}

    @property
    def proposals(self) -> Mapping[int, Proposal]:
        return self._draft.proposals

    def join(self, rules: RequestRules) -> None:
        """Chooses tokens as the target does from now on."""
        self._require(rules)
        self._text = Text(self._text.tokens, rules)

    def draft(
        self, max_nodes: int, max_depth: int | None = None, min_gain: float = 0.0
    ) -> TokenTree:
        left = self._text.tokens_left
        most = min(max_nodes, self._max_nodes)
        self._draft = self._top.draft(self._text, most if left is None else min(most, left))
        return self._draft.tree

    def observe(
        self, token_ids: Sequence[int] | np.ndarray, num_verified: int | None = None
    ) -> None:
        """Takes what the target emitted; thresholds learn from what it rejected."""
        tokens = [int(token) for token in token_ids]
        self._draft.settle(tokens)
        self._draft = Draft()
        self._text.tokens += tokens
        if self._retrieval is not None:
            self._retrieval.observe(tokens)

    def finish(self) -> None:
        if self._retrieval is not None:
            self._retrieval.session.finish()


class HierarchyDrafter:
    """Drafts by levels, each verifying the draft of the one below: HSDDW, and with retrieval.

    Greedy texts are those of plain decoding. Sampled texts have the same distribution, not the same
    text from the same seed, because drafts are sampled too.

    Args:
        levels: Models of the target's vocabulary, the smallest first, by name or in a sequence;
            below the smallest, a drafter without a model may come first.
        config: How they draft.

    Raises:
        ValueError: There is no model, or a drafter that is not the first level.
        UnsupportedModelError: A model cannot take tokens back.
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
        if not self._models or list(others) not in ([], list(levels)[:1]):
            raise ValueError(
                "a hierarchy needs models, and all levels but the first must be models: give the "
                "smallest first"
            )
        self._retrieval = others
        for model in self._models.values():
            require_support(model)

    @property
    def vocab_size(self) -> int:
        return _vocab_size(next(iter(self._models.values())))

    @property
    def max_nodes(self) -> int:
        return self.config.max_nodes

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> HierarchySession:
        """Starts a request; until it has joined a target's rules, tokens are chosen greedily.

        Raises:
            ValueError: The prompt is empty or holds an id outside the vocabulary.
        """
        if len(prompt_ids) == 0:
            raise ValueError("the prompt is empty: give at least one token")
        levels: list[RetrievalLevel | ModelLevel] = [
            RetrievalLevel(name, drafter.session(prompt_ids), len(prompt_ids), _RETRIEVED_NODES)
            for name, drafter in self._retrieval.items()
        ]
        levels += [ModelLevel(name, CachedModel(model)) for name, model in self._models.items()]
        return HierarchySession(prompt_ids, levels, self.config, self._require_target)

    def _require_target(self, rules: RequestRules) -> None:
        """Refuses a target of another vocabulary, device or dtype."""
        target = rules.model
        for name, drafter in self._retrieval.items():
            size, known = drafter.vocab_size or 0, _vocab_size(target)
            if size > known:
                raise ValueError(
                    f"level `{name}` drafts of {size} tokens, the target has {known}: use a "
                    "datastore made with the target's tokenizer"
                )
        for name, model in self._models.items():
            for what, own, wanted, way_out in (
                ("vocabulary", _vocab_size(model), _vocab_size(target), "use models of one family"),
                ("device", model.device, target.device, f"move it by `.to('{target.device}')`"),
                ("dtype", model.dtype, target.dtype, f"load it with `dtype={target.dtype}`"),
            ):
                if own != wanted:
                    raise ValueError(
                        f"level `{name}` has {what} {own}, the target {wanted}: {way_out}"
                    )


def maker(
    inputs: DrafterInputs, names: Sequence[str], config: HierarchyConfig
) -> Callable[[], HierarchyDrafter]:
    """Loads models by name; returns what makes a new drafter of them.

    With a datastore or the target's bigrams, the fused drafter drafts for the smallest model.
    """
    target, tokenizer = cast("PreTrainedModel", inputs.model), inputs.tokenizer
    dtype, models = str(target.dtype).removeprefix("torch."), {}
    for name in names:
        models[name], other = load_model(name, device=str(target.device), dtype=dtype)
        if tokenizer is None or fingerprint(other) != fingerprint(tokenizer):
            raise ValueError(
                f"model `{name}` has another tokenizer than the target: use models of one family"
            )
    retrieves = inputs.datastore is not None or inputs.model_tables
    fused = maker_of("fused", inputs) if retrieves else None

    def make() -> HierarchyDrafter:
        beneath = {} if fused is None else {"retrieval": fused()}
        return HierarchyDrafter({**beneath, **models}, config)

    return make


def _vocab_size(model: PreTrainedModel) -> int:
    return int(model.config.get_text_config(decoder=True).vocab_size)
