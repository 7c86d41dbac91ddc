"""What is generated: prompts, one or several at a time, and where it is forced, the answers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from specds.demo.held_out import prompts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transformers import PreTrainedTokenizerBase

    from specds.bench.transcripts import Transcript

HELD_OUT_SOURCE = "held-out"
"""The group of the demo's prompts."""

USUAL_NEW_TOKENS = 128


@dataclass(frozen=True)
class Request:
    """One prompt.

    Attributes:
        source: The name of the group that it belongs to.
        prompt_ids: At least one token.
        num_tokens: The most tokens to generate.
        answer_ids: What is emitted whatever the model says; None leaves it to the model.
    """

    source: str
    prompt_ids: list[int]
    num_tokens: int
    answer_ids: list[int] | None = None


@dataclass(frozen=True)
class Batch:
    """Requests of one group that are generated in one call."""

    requests: tuple[Request, ...]

    @property
    def source(self) -> str:
        """The group of its requests."""
        return self.requests[0].source

    @property
    def num_tokens(self) -> int:
        """The tokens to generate for each: what the shortest of them asks for."""
        return min(request.num_tokens for request in self.requests)

    @property
    def length(self) -> int:
        """The most tokens of a sequence, prompt included."""
        return max(len(request.prompt_ids) for request in self.requests) + self.num_tokens


def requests_of(
    transcripts: Iterable[Transcript], *, forced: bool, max_new_tokens: int | None
) -> list[Request]:
    """The prompts of recorded answers, with the answers where they are forced.

    Args:
        transcripts: In the order in which they are generated.
        forced: Emit the answers; without `max_new_tokens` the whole of them.
        max_new_tokens: The most tokens of each.
    """
    requests = []
    for transcript in transcripts:
        prompt_ids, answer = transcript.prompt_ids.tolist(), None
        most = max_new_tokens or USUAL_NEW_TOKENS
        if forced:
            answer = transcript.completion_ids.tolist()[:max_new_tokens]
            most = len(answer)
        requests.append(Request(transcript.source, prompt_ids, most, answer))
    return requests


def held_out_requests(
    tokenizer: PreTrainedTokenizerBase, count: int, seed: int, max_new_tokens: int | None
) -> list[Request]:
    """Prompts of modules that the demo's models and its datastore have not seen."""
    most = max_new_tokens or USUAL_NEW_TOKENS
    ids = [tokenizer(prompt.text)["input_ids"] for prompt in prompts(count, seed=seed)]
    return [Request(HELD_OUT_SOURCE, prompt_ids, most) for prompt_ids in ids]


def batches(requests: Sequence[Request], size: int) -> list[Batch]:
    """Cuts each group into calls of `size` requests; the last ones that fill none are left out.

    Single requests keep their order. Larger batches are made of requests that ask for about as many
    tokens, so that a forced batch, which is as long as its shortest answer, loses little.

    Raises:
        ValueError: A group has too few requests for one call.
    """
    made = []
    for source, members in groupby(requests, key=lambda request: request.source):
        group = list(members)
        if size > 1:
            group.sort(key=lambda request: (request.num_tokens, len(request.prompt_ids)))
        if len(group) < size:
            raise ValueError(
                f"{len(group)} prompts of `{source}` make no batch of {size}: give more prompts, "
                "or a smaller --batch"
            )
        starts = range(0, len(group) - size + 1, size)
        made += [Batch(tuple(group[start : start + size])) for start in starts]
    return made
