"""Runs a job in a process of its own, so that the time and the memory it takes are its own."""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BENCHES = Path(__file__).parents[1]
RIVALS = BENCHES / "rivals"
"""Rivals are started by a file there that needs no specds, which their interpreter lacks."""
SAMPLE_S = 0.005


class ChildError(RuntimeError):
    """A job failed; the message is what it wrote to standard error."""


@dataclass
class Cost:
    """What a job took, beyond what its process held before it.

    Attributes:
        cpu_s: User and system time, that of its own children included.
        peak_bytes: The largest resident set, mapped files included; of the largest process, where
            the job starts more than one.
        private_bytes: The largest part of it that is no file's. Known to the parent alone.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    private_bytes: int = 0


def run(job: str, request: dict[str, Any], python: str | Path = sys.executable) -> dict[str, Any]:
    """Calls `MODULE:FUNCTION` of this package with `request` in a new process of `python`.

    Returns:
        What the function returned; where that holds a cost, its `private_bytes` filled in.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [str(python), "-m", "index.child", job, json.dumps(request), str(answer)]
        paths = [str(BENCHES), str(RIVALS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with tempfile.TemporaryFile() as errors:
            child = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=errors
            )
            peak = _watch(child)
            errors.seek(0)
            if child.returncode != 0:
                raise ChildError(f"{job} failed: {errors.read().decode(errors='replace').strip()}")
        result: dict[str, Any] = json.loads(answer.read_text())
    if "cost" in result:
        result["cost"]["private_bytes"] = max(0, peak - result["cost"]["private_bytes"])
    return result


def _watch(child: subprocess.Popen[bytes]) -> int:
    """Waits for a child; returns the most private memory that it was seen to hold."""
    peak, ended = 0, threading.Event()
    waiting = threading.Thread(target=lambda: (child.wait(), ended.set()))
    waiting.start()
    while not ended.wait(SAMPLE_S):
        peak = max(peak, memory("RssAnon", child.pid))
    waiting.join()
    return peak


def memory(field: str, pid: int | str = "self") -> int:
    """A field of /proc/PID/status in bytes: VmRSS, VmHWM (its peak), RssAnon; 0 once it ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    values = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return int(next(values, "0")) * 1024


@contextmanager
def metered() -> Iterator[Cost]:
    """Fills in a cost when the block ends; `private_bytes` is what was held before it."""
    cost = Cost(private_bytes=memory("RssAnon"))
    resident, cpu_s, started = memory("VmRSS"), cpu_seconds(), time.perf_counter()
    yield cost
    cost.wall_s = time.perf_counter() - started
    cost.cpu_s = cpu_seconds() - cpu_s
    descendants = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    cost.peak_bytes = max(memory("VmHWM") - resident, descendants)


def cpu_seconds() -> float:
    """User and system time of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    job, request, answer = sys.argv[1:]
    module, function = job.split(":")
    result = getattr(importlib.import_module(f"index.{module}"), function)(**json.loads(request))
    Path(answer).write_text(json.dumps(result, default=asdict))


if __name__ == "__main__":
    main()
