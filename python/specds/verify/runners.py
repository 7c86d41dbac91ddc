"""Which ways to verify a draft are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specds.verify.batched import BatchedRunner
from specds.verify.graphs import GraphRunner
from specds.verify.packed_runner import PackedRunner
from specds.verify.runner import Runner

if TYPE_CHECKING:
    import torch

RUNNERS: dict[str, type[Runner]] = {
    "fast": PackedRunner,
    "tree": Runner,
    "batched": BatchedRunner,
}
"""The ways to verify a draft, by name."""

AUTO = "auto"
"""The name of whichever of them is the fastest on a model."""


def runner_class(verification: str, device: torch.device) -> type[Runner]:
    """What runs a way to verify on a device."""
    if verification == "fast" and device.type == "cuda":
        return GraphRunner
    return RUNNERS[verification]
