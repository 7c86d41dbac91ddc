"""What takes the time of `specds build`? The seconds and the processor of each of its stages."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from index.child import cpu_seconds, metered


class Stages:
    """Charges the time since the last report of progress to the stage that it reports."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._last = (time.perf_counter(), cpu_seconds())

    def __call__(self, stage: str, _done: int, _total: int | None, **_counts: int) -> None:
        now = (time.perf_counter(), cpu_seconds())
        for kind in range(2):
            self.seconds[stage][kind] += now[kind] - self._last[kind]
        self._last = now

    def to_dict(self, num_tokens: int) -> dict[str, Any]:
        return {
            stage: {
                "wall_s": wall_s,
                "cpu_s": cpu_s,
                "cores": cpu_s / wall_s,
                "tokens_per_s": num_tokens / wall_s,
            }
            for stage, (wall_s, cpu_s) in self.seconds.items()
            if wall_s > 0
        }


def build(documents: str, tokenizer: str, out: str) -> dict[str, Any]:
    """The job of a child: what `specds build` calls, on documents that are not tokenised yet."""
    from specds.build import build_datastore
    from specds.corpora import open_corpus
    from specds.loading import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    corpus = open_corpus(documents)
    with metered() as cost:
        stages = Stages()
        report = build_datastore(corpus, loaded, Path(out), progress=stages)
        stages("finish", 0, 0)
    return {
        "cost": cost,
        "num_cores": os.cpu_count(),
        "report": report.to_dict(),
        "stages": stages.to_dict(report.num_tokens),
    }
