"""Target of requests with a model of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import DynamicCache

from specds.generation.decode import GenerationOutput
from specds.generation.options import DrafterLike, Options, UnsupportedRequestError
from specds.generation.runner import Verification
from specds.models.tokenization import model_vocab_size
from specds.transformers.arguments import require_inputs, takes_past
from specds.transformers.custom_loop import run_custom_loop
from specds.transformers.native_model import NativeModel
from specds.transformers.rehearsal import rehearse
from specds.transformers.verify.states import MarkedCache
from specds.transformers.verify.support import is_recurrent


class TransformersTarget:
    """A model of transformers; see `specds.generation.target.Target`."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def vocab_size(self) -> int:
        return model_vocab_size(self.model)

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.model.generation_config.to_dict()
        return settings

    def seed(self, number: int) -> None:
        torch.manual_seed(number)

    def prompt(self, token_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor([token_ids], device=self.model.device)

    def new_cache(self) -> Any:
        if isinstance(self.model, NativeModel):
            return self.model.new_cache()
        if not takes_past(self.model):
            return None
        return MarkedCache() if is_recurrent(self.model) else DynamicCache()

    def require_settings(self, names: Iterable[str]) -> None:
        """Do nothing: `model.generate` checks them."""

    def generate(
        self, input_ids: Any, options: Options, seed: int | None = None, **settings: Any
    ) -> GenerationOutput:
        require_inputs(self.model, input_ids)
        if settings.get("custom_generate") is not None:
            raise UnsupportedRequestError(
                "custom_generate cannot be used: specds is itself a decoding loop"
            )
        if seed is not None:
            self.seed(seed)
        generate: Any = self.model.generate
        output: GenerationOutput = run_custom_loop(
            self.model, generate, options, inputs=input_ids, **settings
        )
        return replace(output, tokenizer=settings.get("tokenizer"))

    def warm_up(
        self,
        drafter: DrafterLike,
        max_context: int,
        rows: Sequence[int],
        verification: Verification,
    ) -> None:
        rehearse(self.model, drafter, max_context, rows, verification)
