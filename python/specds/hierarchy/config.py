"""How a hierarchy drafts: the switches of HSDDW, those beyond the paper, and its name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from specds.drafters import KINDS, DrafterName, read_options, split_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Ablation = Literal["sd", "pre", "self", "pre+self", "full"]
ABLATIONS: tuple[Ablation, ...] = get_args(Ablation)
"""The rows of the paper's table 2: speculative decoding, with pre-verify, with self-verify, with
both, and HSDDW."""


@dataclass(frozen=True)
class HierarchyConfig:
    """How a hierarchy drafts; the defaults are HSDDW's (Syu and Lee 2025).

    Attributes:
        window: The most tokens of a draft of the level that drafts (K), and of any level that does
            not stop itself.
        pre_verify: Whether the top level verifies what those beneath it draft; without, it drafts
            alone, and the other models are not used.
        self_verify: Whether the level that drafts stops where its entropy passes its threshold.
        dynamic_window: Whether levels that pre-verify stop by theirs too; without, they hand up a
            full window.
        beneath: Whether a retrieval drafter drafts for the lowest model.
        joined: Whether its branches go up to the target as well, beside the models' tokens. Under
            the budget ``auto``, each step then verifies as many of all of them as pay, so what is
            sampled depends on the clock; its distribution does not.
        retrieval_nodes: The most nodes of its trees that the lowest model verifies.
        max_nodes: The most nodes that go up to the target.
    """

    window: int = 10
    pre_verify: bool = True
    self_verify: bool = True
    dynamic_window: bool = True
    beneath: bool = True
    joined: bool = False
    retrieval_nodes: int = 16
    max_nodes: int = 32

    def __post_init__(self) -> None:
        for name in ("window", "retrieval_nodes", "max_nodes"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @classmethod
    def ablation(cls, name: Ablation) -> HierarchyConfig:
        """The switches of a row of the paper's table 2.

        Raises:
            ValueError: There is no such row.
        """
        if name not in ABLATIONS:
            raise ValueError(f"ablation must be one of {', '.join(ABLATIONS)}, got {name!r}")
        full = name == "full"
        return cls(
            pre_verify=full or "pre" in name,
            self_verify=full or "self" in name,
            dynamic_window=full,
        )


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
    takes_datastore = needs_model = True

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

    def load(
        self, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> dict[str, PreTrainedModel]:
        """Loads the models beside their target.

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
    if kind not in KINDS:
        names = ", ".join(KINDS)
        raise ValueError(f"no drafter `{text}`: choose of {names}, {PREFIX}:MODEL,...")
    return DrafterName.parse(text)
