"""Indexes tokens, by specds or a rival, and times its answers: run as a script in a child.

The interpreter is that which has the index installed, so nothing of specds is imported but to build
with it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import rival_engines

# Documents of about this many tokens are added at once.
BATCH = 1 << 18


def build_specds(request: dict[str, Any]) -> Any:
    from specds.build import DatastoreBuilder

    corpus = rival_engines.Corpus(request)
    text, starts = corpus.text(), corpus.starts()
    ends = np.append(starts[1:], len(text)) - 1  # without the separators
    # Shards of half the corpus: two bytes a token of it, and what sorting always takes.
    limit = {"max_memory": int(2.1 * len(text)) + (2 << 20)} if request["num_shards"] == 2 else {}
    sizes = {"vocab_size": corpus.vocab_size, "separator": corpus.separator}
    with DatastoreBuilder(corpus.folder / "corpus.specds", **sizes, **limit) as builder:
        cuts = np.flatnonzero(np.diff(ends // BATCH)) + 1
        for of_batch in np.split(np.arange(len(ends)), cuts):
            lengths = (ends - starts)[of_batch]
            whole = np.array(text[starts[of_batch[0]] : ends[of_batch[-1]] + 1])
            builder.add_documents(np.delete(whole, np.cumsum(lengths + 1) - 1), lengths)
        return builder.finish()


def index(request: dict[str, Any]) -> dict[str, Any]:
    """Builds, then counts patterns and times queries; an index that is absent says so."""
    folder = Path(request["folder"])
    folder.mkdir()
    with suppress(ImportError):  # importing is no part of a build
        engines = rival_engines.ENGINES
        import_module("specds.build" if request["num_shards"] else engines[request["name"]][0])
    started, before = time.perf_counter(), processor_s()
    if request["num_shards"]:
        made = build_specds(request)
        count, follows = made.count, made.continuations
    else:
        engine, said = rival_engines.start(request)
        if engine is None:
            return said
        count, follows = engine.count, engine.follows
    built = {"wall_s": time.perf_counter() - started, "cpu_s": processor_s() - before}
    with np.load(request["queries"]) as arrays:
        queries = np.split(arrays["tokens"], np.cumsum(arrays["lengths"])[:-1])
    return {
        **built,
        "num_bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "counts": [count(pattern) for pattern in request["patterns"]],
        "count_us": time_us(count, queries),
        "follows_us": time_us(follows, queries),
    }


def processor_s() -> float:
    """User and system time of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def time_us(ask: Callable[[list[int]], Any], queries: Sequence[np.ndarray]) -> float:
    """The median microseconds of a call; all was asked once before."""
    elapsed = []
    for pattern in [*queries, *queries]:
        given = pattern.tolist()
        start = time.perf_counter_ns()
        ask(given)
        elapsed.append(time.perf_counter_ns() - start)
    return median(elapsed[len(queries) :]) / 1000


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(index(json.loads(sys.argv[1]))))
