"""What came of all drafts, for Prometheus: engines serve the registry of its client."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

_COUNTERS = {
    "draft_s": ("draft_seconds", "Seconds in which contexts were taken and drafts made"),
    "num_failures": ("failures", "Steps without drafts because something was raised"),
    "num_memory_failures": ("memory_failures", "Times that the memory could not be shared"),
    "num_refused": ("rows_refused", "Rows that could not be served"),
    "num_row_steps": ("row_steps", "Rows that went on, step by step"),
    "num_draft_tokens": ("draft_tokens", "Drafted tokens"),
}
_GAUGES = {
    "num_memory_bytes": ("memory_bytes", "Bytes of the memory of earlier requests", "livesum"),
    "memory_shared_at": ("memory_shared_timestamp_seconds", "When it was last shared", "livemax"),
}


@cache
def _metrics() -> dict[str, Any]:
    """The metrics by the names of statistics; one of each a process."""
    try:
        from prometheus_client import Counter, Gauge
    except ImportError:
        return {}
    made: dict[str, Any] = {
        key: Counter(f"specds:{name}", about) for key, (name, about) in _COUNTERS.items()
    }
    for key, (name, about, mode) in _GAUGES.items():
        made[key] = Gauge(f"specds:{name}", about, multiprocess_mode=mode)
    about = "Accepted tokens by what they were drafted from"
    made["num_accepted_by_source"] = Counter("specds:accepted_tokens", about, ["source"])
    return made


def publish(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Adds what came of the drafts between two statistics of a drafter."""
    for key, metric in _metrics().items():
        if key in _GAUGES:
            metric.set(now[key])
        elif key in _COUNTERS:
            metric.inc(now[key] - before[key])
        else:
            for source, number in now[key].items():
                metric.labels(source).inc(number - before[key].get(source, 0))
