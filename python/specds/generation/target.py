"""Targets of requests: a model with what its framework does, the core or torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from specds._lazy import advising
from specds.generation.arrays import ArrayTarget
from specds.generation.decode import GenerationOutput
from specds.generation.options import DrafterLike, Options
from specds.generation.runner import Verification
from specds.models.gguf_model import GgufModel


class Target(Protocol):
    """A model, and what its framework does for requests."""

    @property
    def vocab_size(self) -> int:
        """The tokens that it has logits of."""

    @property
    def settings(self) -> dict[str, Any]:
        """Its defaults of requests, by the names of the generation configuration."""

    def seed(self, number: int) -> None:
        """Seed the random numbers of samples."""

    def prompt(self, token_ids: Sequence[int]) -> Any:
        """Return a prompt for `generate`, int64 `(1, length)`."""

    def new_cache(self) -> Any:
        """Return an empty cache for a conversation; None if drafts cannot continue from one."""

    def require_settings(self, names: Iterable[str]) -> None:
        """Raise an error for a setting that no request can have."""

    def generate(
        self, input_ids: Any, options: Options, seed: int | None = None, **settings: Any
    ) -> GenerationOutput:
        """Decode a request, whose settings are those of `model.generate`."""

    def warm_up(
        self,
        drafter: DrafterLike,
        max_context: int,
        rows: Sequence[int],
        verification: Verification,
    ) -> None:
        """Run passes as `specds.warm_up` says."""


def target_of(model: Any) -> Target:
    """Return what requests need of a model; the only import of what needs torch."""
    if type(model) is GgufModel:
        return ArrayTarget(model)
    with advising():
        from specds.transformers.target import TransformersTarget
    return TransformersTarget(model)
