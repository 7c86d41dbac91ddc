"""Prometheus metrics of all drafts, in the default registry, which engines serve."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

_COUNTERS = {
    "draft_s": ("draft_seconds", "Time spent on reading contexts and drafting"),
    "num_failures": ("failures", "Steps without drafts because of an error"),
    "num_limited": ("requests_limited", "Requests without drafts because of a costly grammar"),
    "num_memory_failures": ("memory_failures", "Failed exchanges of the shared memory"),
    "num_refused": ("rows_refused", "Rows that the drafter rejected"),
    "num_refused_options": ("options_refused", "Per-request options that were ignored"),
    "num_row_steps": ("row_steps", "Decode steps of rows"),
    "num_draft_tokens": ("draft_tokens", "Drafted tokens that were verified"),
    "num_cut_tokens": ("cut_tokens", "Drafted tokens that the engine did not verify"),
}
_GAUGES: dict[str, tuple[str, str, Literal["livesum", "livemax"]]] = {
    "num_memory_bytes": ("memory_bytes", "Size of the memory of earlier requests", "livesum"),
    "memory_shared_at": ("memory_shared_timestamp_seconds", "Time of the last exchange", "livemax"),
}


@cache
def _metrics() -> dict[str, Any]:
    """Return the metrics by name of statistic, each registered once per process."""
    try:
        from prometheus_client import Counter, Gauge
    except ImportError:
        return {}
    made: dict[str, Any] = {
        key: Counter(f"specds:{name}", about) for key, (name, about) in _COUNTERS.items()
    }
    for key, (name, about, mode) in _GAUGES.items():
        made[key] = Gauge(f"specds:{name}", about, multiprocess_mode=mode)
    about = "Accepted tokens by drafting source"
    made["num_accepted_by_source"] = Counter("specds:accepted_tokens", about, ["source"])
    return made


def publish(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Add the difference of two statistics of a drafter to the metrics."""
    for key, metric in _metrics().items():
        if key in _GAUGES:
            metric.set(now[key])
        elif key in _COUNTERS:
            metric.inc(now[key] - before[key])
        else:
            for source, number in now[key].items():
                metric.labels(source).inc(number - before[key].get(source, 0))
