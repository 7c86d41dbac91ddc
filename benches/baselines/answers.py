"""Checks of a baseline's drafts, which run before it is measured."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from specds.bench.drafters import DrafterError
from specds.bench.transcripts import Transcript
from specds.drafters import Drafter


class BaselineError(DrafterError):
    """A baseline failed; the message says why."""


class BaselineAbsentError(BaselineError):
    """A baseline is not installed for the given interpreter."""

    status = "absent"


class BaselineAnswerError(BaselineError):
    """A baseline's draft is wrong."""

    status = "refused"


def prompt_lookup(context: Sequence[int], max_tokens: int, max_match: int = 2) -> list[int]:
    """Return the tokens after the first occurrence of the longest known suffix (naive search)."""
    for length in range(min(max_match, len(context) - 1), 0, -1):
        suffix = context[-length:]
        for end in range(length, len(context)):
            if context[end - length : end] == suffix:
                return list(context[end : end + max_tokens])
    return []


def contexts_of(requests: Sequence[Transcript], number: int = 20) -> Iterator[list[int]]:
    places = np.linspace(0, len(requests) - 1, min(number, len(requests))).astype(int)
    for request in (requests[place] for place in places):
        whole = [*request.prompt_ids.tolist(), *request.completion_ids.tolist()]
        yield whole[:-1][-256:]


def check_drafts(
    drafter: Drafter, contexts: Iterable[Sequence[int]], max_nodes: int, vocab_size: int | None
) -> None:
    """Draft once after each context; reject drafts that are too large or have invalid tokens."""
    for context in contexts:
        session = drafter.session(context)
        tree = session.draft(max_nodes)
        session.finish()
        if len(tree) > max_nodes:
            raise BaselineAnswerError(f"{len(tree)} nodes drafted, {max_nodes} asked for")
        largest = max(tree.token_ids.tolist(), default=0)
        if vocab_size is not None and largest >= vocab_size:
            raise BaselineAnswerError(f"token {largest} drafted, the vocabulary has {vocab_size}")
