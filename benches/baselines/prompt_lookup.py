"""Prompt lookup of transformers: the tokens after an earlier occurrence of the last two or one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from baselines.answers import BaselineAbsentError, BaselineAnswerError, contexts_of, prompt_lookup
from specds.bench.transcripts import Transcript
from specds.drafters import Session, TokenTree

_CHECKED_TOKENS = 10


@contextmanager
def open_prompt_lookup(
    _: None, requests: Sequence[Transcript]
) -> Iterator[Callable[[], CandidateDrafter]]:
    """Yield the drafter's class after comparing its drafts with a naive search."""
    try:
        drafter = CandidateDrafter()
    except ImportError as error:
        raise BaselineAbsentError(f"{error}: pip install '.[transformers]'") from error
    for context in contexts_of(requests):
        drafted = drafter.session(context).draft(_CHECKED_TOKENS).token_ids.tolist()
        expected = prompt_lookup(context, _CHECKED_TOKENS)
        if drafted != expected:
            raise BaselineAnswerError(f"{drafted} drafted, {expected} followed the context earlier")
    yield CandidateDrafter


class CandidateDrafter:
    """Drafter that calls `PromptLookupCandidateGenerator`, with its default of two tokens."""

    vocab_size = None

    def __init__(self) -> None:
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        self.session = partial(CandidateSession, PromptLookupCandidateGenerator)


class CandidateSession(Session):
    """Session of one request; `elapsed_ns` is the time of the last call of the generator."""

    elapsed_ns = 0

    def __init__(self, generator: Any, prompt_ids: Sequence[int] | np.ndarray) -> None:
        self._generator, self._token_ids = generator, [int(token) for token in prompt_ids]

    def draft(self, max_nodes: int, *_: Any) -> TokenTree:
        import torch

        context = torch.tensor([self._token_ids])
        generator = self._generator(num_output_tokens=max_nodes, max_length=1 << 30)
        start = perf_counter_ns()
        candidates, _ = generator.get_candidates(context)
        self.elapsed_ns = perf_counter_ns() - start
        drafted = candidates[0, len(self._token_ids) :].tolist()
        return TokenTree(drafted, range(-1, len(drafted) - 1))

    def observe(
        self, token_ids: Sequence[int] | np.ndarray, num_verified: int | None = None
    ) -> None:
        start = perf_counter_ns()
        self._token_ids += [int(token) for token in token_ids]
        self.elapsed_ns = perf_counter_ns() - start
