"""Prompts, and how they are cut into calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specds.demo.held_out import prompts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transformers import PreTrainedTokenizerBase

    from specds.bench.transcripts import Transcript


@dataclass(frozen=True)
class Request:
    """One prompt.

    Attributes:
        prompt_ids: At least one token.
        num_tokens: At most this many tokens are generated.
    """

    prompt_ids: list[int]
    num_tokens: int


@dataclass(frozen=True)
class Batch:
    """Requests that are generated in one call."""

    requests: tuple[Request, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens to generate for each row: the minimum over the requests."""
        return min(request.num_tokens for request in self.requests)

    @property
    def length(self) -> int:
        """The length of the longest row, prompt included."""
        return max(len(request.prompt_ids) for request in self.requests) + self.num_tokens


def requests_of(transcripts: Iterable[Transcript], num_tokens: int) -> list[Request]:
    """The prompts of recorded answers."""
    return [Request(each.prompt_ids.tolist(), num_tokens) for each in transcripts]


def held_out_requests(
    tokenizer: PreTrainedTokenizerBase, count: int, seed: int, num_tokens: int
) -> list[Request]:
    """Prompts of modules that the demo's models and its datastore have not seen."""
    ids = [tokenizer(prompt.text)["input_ids"] for prompt in prompts(count, seed=seed)]
    return [Request(prompt_ids, num_tokens) for prompt_ids in ids]


def batches(requests: Sequence[Request], size: int) -> list[Batch]:
    """Cuts requests into batches of `size`; an incomplete last batch is left out.

    Single requests keep their order. Larger batches are made of requests of about the same length:
    a batch generates as many tokens as its shortest request asks for.
    """
    if len(requests) < size:
        raise ValueError(
            f"{len(requests)} prompts make no batch of {size}: give more prompts, or a smaller "
            "--batch"
        )
    ordered = list(requests)
    if size > 1:
        ordered.sort(key=lambda request: (request.num_tokens, len(request.prompt_ids)))
    starts = range(0, len(ordered) - size + 1, size)
    return [Batch(tuple(ordered[start : start + size])) for start in starts]
