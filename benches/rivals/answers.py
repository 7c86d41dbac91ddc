"""Are a rival's answers right? Held against naive ones before anything it does is believed."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from specds.bench.engines import EngineError
from specds.bench.transcripts import Transcript
from specds.drafters import Drafter


class RivalError(EngineError):
    """A rival broke down, and why."""


class RivalAbsentError(RivalError):
    """A rival is not installed, or not for the interpreter that was given."""

    status = "absent"


class RivalAnswerError(RivalError):
    """A rival's answer is not what it must be."""

    status = "refused"


def random_patterns(
    text: np.ndarray, vocab_size: int, separator: int, number: int, max_length: int = 16
) -> list[list[int]]:
    """Patterns within documents, of all lengths, and some whose last token is any token.

    Of `number` that are tried, those that would be empty or hold the separator are left out.
    """
    random = np.random.default_rng(0)
    patterns = []
    for index in range(number):
        start = int(random.integers(len(text)))
        window = text[start : start + 1 + index % max_length]
        inside = np.flatnonzero(window == separator)
        pattern = window[: inside[0] if len(inside) else None].tolist()
        if pattern and index % 8 == 0:
            pattern[-1] = int(random.integers(vocab_size))
        if pattern and separator not in pattern:
            patterns.append(pattern)
    return patterns


def scan(text: np.ndarray, patterns: Iterable[Sequence[int]]) -> list[int]:
    """How often each pattern occurs, by looking at every place."""
    counts = []
    for pattern in patterns:
        places = np.flatnonzero(text[: max(len(text) - len(pattern) + 1, 0)] == pattern[0])
        for offset, token in enumerate(pattern[1:], start=1):
            places = places[text[places + offset] == token]
        counts.append(len(places))
    return counts


def differences(
    patterns: Iterable[Sequence[int]], counts: Iterable[int], truth: Iterable[int]
) -> list[str]:
    """A line for each count that is not that of the scan."""
    return [
        f"{list(pattern)}: {count} counted, {expected} there"
        for pattern, count, expected in zip(patterns, counts, truth, strict=True)
        if count != expected
    ]


def prompt_lookup(context: Sequence[int], max_tokens: int, max_match: int = 2) -> list[int]:
    """What followed the first occurrence of the longest suffix that came before: naive."""
    for length in range(min(max_match, len(context) - 1), 0, -1):
        suffix = context[-length:]
        for end in range(length, len(context)):
            if context[end - length : end] == suffix:
                return list(context[end : end + max_tokens])
    return []


def contexts_of(requests: Sequence[Transcript], number: int = 20) -> Iterator[list[int]]:
    """Some contexts that a rival will be asked about, to check its answers with."""
    places = np.linspace(0, len(requests) - 1, min(number, len(requests))).astype(int)
    for request in (requests[place] for place in places):
        whole = [*request.prompt_ids.tolist(), *request.completion_ids.tolist()]
        yield whole[:-1][-256:]


def check_drafts(
    drafter: Drafter, contexts: Iterable[Sequence[int]], max_nodes: int, vocab_size: int | None
) -> None:
    """Drafts once after each context; refuses what is larger than asked for or holds no token."""
    for context in contexts:
        session = drafter.session(context)
        tree = session.draft(max_nodes)
        session.finish()
        if len(tree) > max_nodes:
            raise RivalAnswerError(f"{len(tree)} nodes drafted, {max_nodes} asked for")
        largest = max(tree.token_ids.tolist(), default=0)
        if vocab_size is not None and largest >= vocab_size:
            raise RivalAnswerError(f"token {largest} drafted, the vocabulary has {vocab_size}")
