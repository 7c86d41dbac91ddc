"""Hierarchies by name, as the command line knows them: `hierarchy:small-model,middle-model`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specds.drafters import DrafterName
from specds.hierarchy.config import HierarchyConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specds.drafters.session import Drafter
    from specds.hierarchy.drafter import HierarchyDrafter

PREFIX = "hierarchy"

_CONFIGS = {
    "": HierarchyConfig(),
    "sd": HierarchyConfig.ablation("sd"),
    "pre": HierarchyConfig.ablation("pre"),
    "self": HierarchyConfig.ablation("self"),
    "pre-self": HierarchyConfig.ablation("pre+self"),
    "joined": HierarchyConfig(joined=True),
    "adaptive": HierarchyConfig(joined=True, adaptive=True),
}


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
        """Reads ``hierarchy:MODEL,...`` or ``hierarchy-VARIANT:MODEL,...``.

        Where commas part drafters from each other, ``+`` parts the models.

        Raises:
            ValueError: There is no such variant, or no model is named.
        """
        head, _, tail = text.partition(":")
        variant = head.removeprefix(PREFIX).removeprefix("-")
        models = tuple(name for part in re.split("[,+]", tail) if (name := part.strip()))
        if not head.startswith(PREFIX) or variant not in _CONFIGS:
            known = ", ".join(f"`{PREFIX}-{name}`" for name in _CONFIGS if name)
            raise ValueError(f"no hierarchy `{head}`: try `{PREFIX}`, {known}")
        if not models:
            raise ValueError(
                f"`{text}` names no models: try `{head}:SMALL,MIDDLE`, the smallest first"
            )
        return cls(text, _CONFIGS[variant], models)

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
    """What a name of a drafter means: one of `DrafterName`, or a hierarchy.

    Raises:
        ValueError: There is no such drafter.
    """
    if text.startswith(PREFIX):
        return HierarchyName.parse(text)
    try:
        return DrafterName(text)
    except ValueError:
        names = ", ".join(name.value for name in DrafterName)
        raise ValueError(f"no drafter `{text}`: choose of {names}, {PREFIX}:MODEL,...") from None
