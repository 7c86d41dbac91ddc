"""Fits the weights of a fused drafter to recorded answers: `specds fit`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from specds._core import Datastore
from specds.bench.replay.measure import replay_all, together
from specds.bench.transcripts import Transcript
from specds.drafters import FusedDrafter

_MAX_NODES = 32


def fit(
    transcripts: Sequence[Transcript],
    datastore: Datastore | None,
    weights: bytes | None = None,
    progress: Callable[[str, int, int], object] = lambda _stage, _done, _total: None,
) -> tuple[bytes, dict[str, Any]]:
    """Learns weights by drafting for recorded answers, with drafts of 32 nodes.

    Transcripts, at least one, are learned from in their order. Without `weights`, learning starts
    from the datastore's prior. `progress` is told a stage, how many requests are done, and how many
    there are.

    Returns:
        The weights, and what they were fitted to: `before` and `after` are acceptance lengths of
        the last tenth of the answers, with the initial weights and with those fitted to the rest.
    """
    num_compared = max(len(transcripts) // 10, 1)
    first, last = transcripts[:-num_compared], transcripts[-num_compared:]
    total, done = len(transcripts) + num_compared, 0

    def learn(drafter: FusedDrafter, chosen: Sequence[Transcript]) -> float:
        def report() -> None:
            nonlocal done
            progress("fit", done, total)
            done += 1

        traces = replay_all(lambda: drafter, _MAX_NODES, chosen, report)
        return together(traces.values()).stats.mean_acceptance_length

    before = learn(FusedDrafter(datastore, weights=weights), last)
    start = time.perf_counter()
    drafter = FusedDrafter(datastore, weights=weights)
    learn(drafter, first)
    # With an empty memory as before, so that the weights alone make the difference.
    drafter = FusedDrafter(datastore, weights=drafter.weights())
    after = learn(drafter, last)
    progress("fit", total, total)
    report = {
        "num_requests": len(transcripts),
        "num_tokens": sum(len(transcript.completion_ids) for transcript in transcripts),
        "seconds": time.perf_counter() - start,
        "num_compared_requests": num_compared,
        "before": before,
        "after": after,
    }
    return drafter.weights(), report
