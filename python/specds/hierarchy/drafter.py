"""A hierarchy of drafters as one drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import PreTrainedModel

from specds.hierarchy.cached_model import CachedModel
from specds.hierarchy.config import HierarchyConfig
from specds.hierarchy.levels import Level, ModelLevel, RetrievalLevel
from specds.hierarchy.session import HierarchySession
from specds.verify.support import require_support

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from specds.drafters.session import Drafter, RequestRules


class HierarchyDrafter:
    """Drafts by a chain of levels, each verifying the one beneath it: HSDDW, and with retrieval.

    Sampled texts are not those of plain decoding from the same seed, as drafts are sampled too;
    they are distributed as those are. Greedy texts are the same.

    Args:
        levels: Models of the target's vocabulary, the smallest first, by name or in a sequence;
            the first may be a drafter of another kind instead.
        config: How they draft.

    Raises:
        ValueError: There are no levels, a level is neither a model nor, if it is the first, a
            drafter, or vocabularies differ.
        UnsupportedModelError: A level is a model that cannot take tokens back.
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
        self._require_vocabularies()
        for model in self._models.values():
            require_support(model)

    @property
    def vocab_size(self) -> int | None:
        """That of the levels."""
        sizes = [_vocab_size(model) for model in self._models.values()]
        return sizes[0] if sizes else next(iter(self._retrieval.values())).vocab_size

    @property
    def max_nodes(self) -> int | None:
        """The node budget that the configuration names; none where the time of a step decides."""
        return None if self.config.joined else self.config.max_nodes

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> HierarchySession:
        """Starts a request; until it has joined a target's rules, tokens are chosen greedily.

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
                self.config.retrieval_nodes,
                self.config.max_nodes if self.config.joined else self.config.retrieval_nodes,
            )
            for name, drafter in self._retrieval.items()
        ]
        levels += [ModelLevel(name, CachedModel(model)) for name, model in self._models.items()]
        return HierarchySession(prompt_ids, levels, self.config, self._require_target)

    def _require_vocabularies(self) -> None:
        sizes = {name: _vocab_size(model) for name, model in self._models.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"the levels have different vocabularies: {_listed(sizes)}")
        for name, drafter in self._retrieval.items():
            size = drafter.vocab_size
            if sizes and size is not None and size > min(sizes.values()):
                raise ValueError(
                    f"level `{name}` drafts of {size} tokens, the models have "
                    f"{min(sizes.values())}: use a datastore made with the models' tokenizer"
                )

    def _require_target(self, rules: RequestRules) -> None:
        """Refuses a target that the levels cannot draft for.

        Raises:
            ValueError: A level has another vocabulary, is on another device or of another dtype.
        """
        target = rules.model
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


def _vocab_size(model: PreTrainedModel) -> int:
    return int(model.config.get_text_config(decoder=True).vocab_size)


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{size} of `{name}`" for name, size in sizes.items())
