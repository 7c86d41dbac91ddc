"""Hierarchies by name, as the command line knows them: `hierarchy:small-model,middle-model`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specds.drafters import OPTIONS, DrafterName, read_options, split_name
from specds.hierarchy.config import HierarchyConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specds.drafters.session import Drafter
    from specds.hierarchy.drafter import HierarchyDrafter

PREFIX = "hierarchy"

_OPTIONS = {"ablation": ("full", "sd", "self", "pre", "pre-self"), "joined": ("no", "yes")}


@dataclass(frozen=True)
class HierarchyName:
    """A hierarchy that is not made yet.

    Attributes:
        value: All of it, as it was written.
        config: How it drafts.
        models: The names of its models, the smallest first.
    """

    value: str
    config: HierarchyConfig
    models: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> HierarchyName:
        """Reads ``hierarchy:MODEL,...``; ``OPTION=VALUE`` may stand among the models.

        Options are ``joined=yes`` and ``ablation=`` one of ``sd``, ``self``, ``pre``, ``pre-self``.
        Where commas part drafters from each other, ``+`` parts the models.

        Raises:
            ValueError: There is no such option, or no model is named.
        """
        head, parts = split_name(text)
        if head != PREFIX:
            raise ValueError(f"no hierarchy `{head}`: try `{PREFIX}:SMALL,MIDDLE`")
        models = tuple(part for part in parts if "=" not in part)
        options = read_options(PREFIX, [part for part in parts if "=" in part], _OPTIONS)
        if not models:
            raise ValueError(
                f"`{text}` names no models: try `{head}:SMALL,MIDDLE`, the smallest first"
            )
        ablation: Any = options.get("ablation", "full").replace("-", "+")
        config = HierarchyConfig.ablation(ablation)
        return cls(text, replace(config, joined=options.get("joined") == "yes"), models)

    def drafter(
        self, models: Mapping[str, PreTrainedModel], retrieval: Drafter | None = None
    ) -> HierarchyDrafter:
        """Makes the drafter.

        Args:
            models: What `load` has loaded.
            retrieval: Drafts for the smallest model.
        """
        from specds.hierarchy.drafter import HierarchyDrafter

        beneath = {} if retrieval is None else {"retrieval": retrieval}
        return HierarchyDrafter({**beneath, **models}, self.config)

    def load(
        self, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> dict[str, PreTrainedModel]:
        """Loads the models beside their target.

        Args:
            target: The model that is drafted for.
            tokenizer: Its tokenizer.

        Raises:
            LoadingError: There is no model under a name.
            ValueError: A model has another tokenizer than the target.
        """
        from specds.loading import load_model
        from specds.tokenization import fingerprint

        loaded = {}
        dtype = str(target.dtype).removeprefix("torch.")
        for name in self.models:
            model, other = load_model(name, device=str(target.device), dtype=dtype)
            if fingerprint(other) != fingerprint(tokenizer):
                raise ValueError(
                    f"model `{name}` has another tokenizer than the target: use models of one "
                    "family"
                )
            loaded[name] = model
        return loaded


def drafter_name(text: str) -> DrafterName | HierarchyName:
    """What the name of a drafter means: a drafter of one model, or a hierarchy.

    Raises:
        ValueError: There is no such drafter.
    """
    if text.startswith(PREFIX):
        return HierarchyName.parse(text)
    kind, _ = split_name(text)
    if kind not in OPTIONS:
        names = ", ".join(OPTIONS)
        raise ValueError(f"no drafter `{text}`: choose of {names}, {PREFIX}:MODEL,...")
    return DrafterName.parse(text)
