"""How a hierarchy drafts: the switches of HSDDW, and those beyond the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Ablation = Literal["full", "sd", "self", "pre", "pre-self"]
ABLATIONS: tuple[Ablation, ...] = get_args(Ablation)
"""The rows of the paper's table 2: HSDDW; speculative decoding, with self-verify, with pre-verify,
and with both."""


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
        joined: Whether a retrieval drafter's branches, which the lowest model verifies, go up to
            the target as well. Under ``max_nodes="auto"``, each step then verifies as many of all
            nodes as pay, so what is sampled depends on the clock; its distribution does not.
        max_nodes: The most nodes that go up to the target.
    """

    window: int = 10
    pre_verify: bool = True
    self_verify: bool = True
    dynamic_window: bool = True
    joined: bool = False
    max_nodes: int = 32

    def __post_init__(self) -> None:
        for name in ("window", "max_nodes"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @classmethod
    def ablation(cls, name: Ablation) -> HierarchyConfig:
        """The switches of a row of the paper's table 2."""
        if name not in ABLATIONS:
            raise ValueError(f"ablation must be one of {', '.join(ABLATIONS)}, got {name!r}")
        full = name == "full"
        return cls(
            pre_verify=full or "pre" in name,
            self_verify=full or "self" in name,
            dynamic_window=full,
        )
