"""Figures with their thresholds, times of computations, and the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch

REPEATS = 15


@dataclass(frozen=True)
class Figure:
    name: str
    value: float | None
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def bar(self) -> str:
        """Describe the threshold; empty if there is none."""
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return "" if self.at_least is None else f"at least {self.at_least:g}"

    @property
    def met(self) -> bool | None:
        """Return whether the threshold is met; None without a threshold or a value."""
        if self.value is None or not self.bar:
            return None
        if self.at_most is not None and self.value > self.at_most:
            return False
        return self.at_least is None or self.value >= self.at_least

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}


def machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def seconds_of(compute: Callable[[], torch.Tensor], device: torch.device) -> float:
    """Return the median time of a computation: on a device by events around a CUDA graph."""
    if device.type != "cuda":
        compute()
        started = perf_counter()
        compute()
        return perf_counter() - started
    for _ in range(2):
        compute()
    torch.cuda.set_sync_debug_mode("error")  # a host synchronization would break the capture
    try:
        compute()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        compute()
    for _ in range(1 + REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return median(times[1:])
