"""Configuration of a hierarchy: the switches of HSDDW, and those beyond the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Ablation = Literal["full", "sd", "self", "pre", "pre-self"]
ABLATIONS: tuple[Ablation, ...] = get_args(Ablation)
"""Rows of the paper's table 2: HSDDW, and speculative decoding alone, with self-verify, with
pre-verify, and with both."""


@dataclass(frozen=True)
class HierarchyConfig:
    """Configuration of a hierarchy; the defaults are HSDDW's (Syu and Lee 2025).

    Attributes:
        window: Maximum draft length of the lowest model (K), and of any level that does not stop
            by itself.
        pre_verify: Whether the top level verifies the drafts of the lower levels; otherwise it
            drafts alone, and the other models are not used.
        self_verify: Whether the lowest model stops when its entropy exceeds its threshold.
        dynamic_window: Whether pre-verifying levels stop by their own threshold too; otherwise
            they return a full window.
        joined: Whether the target also verifies the branches of a retrieval drafter, which the
            lowest model verifies. Under ``max_nodes="auto"``, the measured cost of steps then
            decides how many nodes are verified, so samples depend on timing; their distribution
            does not.
        max_nodes: Maximum nodes that the target verifies.
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
        """Return the switches of a row of the paper's table 2."""
        if name not in ABLATIONS:
            raise ValueError(f"ablation must be one of {', '.join(ABLATIONS)}, got {name!r}")
        full = name == "full"
        return cls(
            pre_verify=full or "pre" in name,
            self_verify=full or "self" in name,
            dynamic_window=full,
        )
