"""The engine of models of transformers: one text after the other, by `specds.generate`."""

from __future__ import annotations

from copy import copy
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from specds.drafters.fused import FusedDrafter
from specds.generation.chat import num_shared
from specds.generation.generate import generate
from specds.models.context import context_length_of
from specds.models.tokenization import model_vocab_size
from specds.serving.engine import Engine
from specds.serving.job import Asked, TextJob, ends_of
from specds.transformers.arguments import takes_past
from specds.transformers.verify.support import is_recurrent


class TransformersModel:
    """A model of transformers, by the names with which requests are read."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.settings = model.generation_config.to_diff_dict()
        self.vocab_size = model_vocab_size(model)
        self.context_length = context_length_of(model) or 1 << 20


class SerialEngine(Engine):
    """Writes one text at a time; the cache of the last one stays for the next of its tenant."""

    def __init__(self, model: TransformersModel, **limits: int) -> None:
        self._model = model.model
        self._context_length, self._vocab_size = model.context_length, model.vocab_size
        self._keeps = takes_past(self._model) and not is_recurrent(self._model)
        # The states of these tokens of a tenant.
        self._kept: tuple[str, list[int], Any] = "", [], None
        ends = ends_of(model.settings)

        def make(asked: Asked, tokenizer: Any, drafter: FusedDrafter, **about: Any) -> _SerialJob:
            return _SerialJob(drafter, asked, tokenizer, ends, **about)

        super().__init__(make, **(limits | {"parallel": 1}))

    def _turn(self) -> None:
        job: Any = self._active[0]
        try:
            if job.asked.max_new_tokens > 0:
                self._generate(job)
        except Exception as error:
            self._kept = "", [], None
            job.failure = error
        self._end(job)

    def _generate(self, job: _SerialJob) -> None:
        asked, ids = job.asked, job.asked.prompt.tolist()
        tenant, tokens, cache = self._kept
        shared = num_shared(tokens, ids[:-1]) if tenant == asked.tenant else 0
        if cache is None or shared == 0:
            cache = DynamicCache() if self._keeps else None
        elif shared < cache.get_seq_length():
            cache.crop(shared - cache.get_seq_length())
        job.num_cached = 0 if cache is None else cache.get_seq_length()
        config = copy(self._model.generation_config)
        config.eos_token_id = sorted(job.ends) or None
        prompt = torch.tensor([ids], device=self._model.device)
        output = generate(
            self._model,
            prompt,
            job.drafter,
            attention_mask=torch.ones_like(prompt),
            cache=cache,
            return_dict_in_generate=True,
            generation_config=config,
            max_new_tokens=min(asked.max_new_tokens, self._context_length - len(ids)),
            seed=asked.seed,
            grammar=asked.grammar,
            on_step=job.on_step,
            on_prefill=job.on_prefill,
            stopping_criteria=[job.take],
            logits_processor=job.processors(self._vocab_size),
            **_changed(asked.processing),
            **(_changed(asked.sampling) if asked.sampling.do_sample else {"do_sample": False}),
        )
        self._kept = asked.tenant, output.sequences[0].tolist(), cache


class _SerialJob(TextJob):
    def __init__(self, drafter: FusedDrafter, *given: Any, **about: Any) -> None:
        super().__init__(*given, **about)
        self.drafter = self.bound(drafter).drafter
        self._logits: Any = None

    def on_step(self, step: Any) -> None:
        self.record(step)
        self.send_update()

    def on_prefill(self, num_read: int, num_tokens: int) -> None:
        if self.is_left:
            raise InterruptedError("the client has left")

    def processors(self, vocab_size: int) -> list[Any]:
        """Return what sees the scores before they are changed, and the API's own penalties."""
        return [self._see, *([self._penalize] if self.has_penalties else [])]

    def take(self, token_ids: Any, scores: Any = None) -> bool:
        if self._logits is not None:
            self.report(self._logits, int(token_ids[0, -1]))
        return super().take(token_ids)

    def _see(self, token_ids: Tensor, scores: Tensor) -> Tensor:
        if self.asked.top_logprobs is not None:
            self._logits = scores[0].float().cpu().numpy()
        return scores

    def _penalize(self, token_ids: Tensor, scores: Tensor) -> Tensor:
        changed = np.array(scores.float().cpu().numpy())
        return torch.from_numpy(self.penalized(token_ids.cpu().numpy(), changed)).to(scores)


def _changed(settings: Any) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    named = {each.name: (getattr(settings, each.name), each.default) for each in fields(settings)}
    return {name: value for name, (value, default) in named.items() if value != default}
