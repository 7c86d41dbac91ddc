"""What a datastore costs in use: to open, to hold, to draft from when cold and when warm.

Each function is the job of a child.
"""

from __future__ import annotations

import gc
import mmap
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.child import memory
from index.tokens import load_transcripts
from specds import Datastore, FusedDrafter, RestDrafter
from specds.bench.replay.measure import replay

if TYPE_CHECKING:
    from specds.bench.transcripts import Transcript
    from specds.drafters import Drafter

NODES = 64


def start(name: str, datastore: str | Datastore) -> Drafter:
    """The drafter called `name`, over a datastore."""
    return FusedDrafter(datastore) if name == "fused" else RestDrafter(datastore)


def open_times(datastore: str, repeats: int) -> dict[str, Any]:
    """Seconds to open, one after the other."""
    elapsed = []
    for _ in range(repeats):
        began = time.perf_counter()
        opened = Datastore.open(datastore)
        elapsed.append(time.perf_counter() - began)
    return {"num_bytes": opened.num_bytes, "open_s": elapsed}


def verify_time(datastore: str) -> dict[str, Any]:
    """Seconds to check every byte, none of them in memory before."""
    _evict(Path(datastore))
    opened, began = Datastore.open(datastore), time.perf_counter()
    opened.verify()
    return {"verify_s": time.perf_counter() - began}


def private_memory(datastore: str, contexts: str) -> dict[str, Any]:
    """What opening and drafting after each context leaves in memory that is no file's."""
    rows = np.load(contexts)
    before = memory("RssAnon")
    drafter = RestDrafter(datastore)
    for context in rows:
        drafter.session(context).draft(NODES)
    return {"num_contexts": len(rows), "private_bytes": memory("RssAnon") - before}


def cold_drafts(
    datastore: str, contexts: str, num_contexts: int, drafter: str = "rest"
) -> dict[str, Any]:
    """Seconds to open and then to draft, with no byte of the datastore in memory before."""
    rows = np.load(contexts)
    open_s, draft_s, pages = [], [], []
    for context in rows[:: max(1, len(rows) // num_contexts)][:num_contexts]:
        _evict(Path(datastore))
        began = time.perf_counter()
        opened = start(drafter, datastore)
        open_s.append(time.perf_counter() - began)
        session = opened.session(context)
        bytes_before = _bytes_read()
        began = time.perf_counter()
        session.draft(NODES)
        draft_s.append(time.perf_counter() - began)
        pages.append((_bytes_read() - bytes_before) // mmap.PAGESIZE)
        # The next eviction spares pages that are still mapped.
        del session, opened
        gc.collect()
    return {"open_s": open_s, "draft_s": draft_s, "pages": pages}


def _bytes_read() -> int:
    """Bytes that this process had the disk read: also those that it asked for ahead."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def _evict(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def warm_drafts(
    datastore: str, transcripts: str, passes: int, drafter: str = "rest"
) -> dict[str, Any]:
    """Microseconds of `draft`, and of `observe` and `draft`, over replayed answers.

    `minimum` is over the least that each position took in any pass, which leaves out what the
    machine did beside; `passes` are the same percentiles of each pass alone.
    """
    recorded = load_transcripts(Path(transcripts))
    opened = Datastore.open(datastore)
    opened.warm()
    # A new drafter for each pass: one that learns would draft otherwise the next time.
    rows = [_replay_all(start(drafter, opened), recorded) for _ in range(passes + 1)]
    timings = np.stack(rows[1:]) / 1000
    num_tokens = sum(len(answer.completion_ids) for answer in recorded)
    result: dict[str, Any] = {
        "num_drafts": timings.shape[1],
        "acceptance_length": num_tokens / timings.shape[1],
    }
    for column, name in enumerate(("draft", "observe and draft")):
        result[name] = {
            "minimum": _percentiles(timings[:, :, column].min(axis=0)),
            "passes": [_percentiles(one[:, column]) for one in timings],
        }
    result["call alone"] = _percentiles(_empty_drafts(len(timings[0])) / 1000)
    return result


def _replay_all(drafter: Drafter, transcripts: list[Transcript]) -> np.ndarray:
    """Nanoseconds of each `draft`, and of it with the `observe` before it."""
    gc.collect()
    gc.disable()
    rows = [row for transcript in transcripts for row in _timed_replay(drafter, transcript)]
    gc.enable()
    return np.array(rows)


def _timed_replay(drafter: Drafter, transcript: Transcript) -> list[tuple[int, int]]:
    trace = replay(drafter.session(transcript.prompt_ids), transcript, NODES)
    # A draft is made after what was observed at the step before.
    observed = [0, *trace.observe_ns]
    return [(draft, draft + before) for draft, before in zip(trace.draft_ns, observed)]  # noqa: B905


def _empty_drafts(number: int) -> np.ndarray:
    """Nanoseconds of a `draft` that finds nothing: what a call into the core takes by itself."""
    from specds.build import DatastoreBuilder

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nothing.specds"
        with DatastoreBuilder(path, vocab_size=3, separator=2) as builder:
            builder.add_documents([0], [1])
            datastore = builder.finish()
        session = RestDrafter(datastore).session([1])
        elapsed, clock = np.empty(number), time.perf_counter_ns
        for index in range(number):
            start = clock()
            session.draft(NODES)
            elapsed[index] = clock() - start
    return elapsed


def _percentiles(values: np.ndarray) -> dict[str, float]:
    return {
        "mean": float(np.mean(values)),
        "p50": float(np.percentile(values, 50)),
        "p99": float(np.percentile(values, 99)),
        "max": float(np.max(values)),
    }
