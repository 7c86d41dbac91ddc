"""Prometheus metrics of the engine; no label names a tenant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from specds.serving.engine import Engine

_COUNTERS = {
    "finished": ("requests_finished", "Texts that were written to their end"),
    "canceled": ("requests_canceled", "Texts whose client left"),
    "refused": ("requests_refused", "Requests for which the queue had no place"),
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts that were read"),
    "cached_tokens": ("cached_tokens", "Tokens of prompts whose states were kept"),
    "new_tokens": ("new_tokens", "Tokens that were written"),
    "passes": ("passes", "Forward passes that wrote tokens"),
}


class Metrics:
    def __init__(self, engine: Engine) -> None:
        self._engine, self._registry = engine, CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Any]:
        engine = self._engine
        for name, (title, about) in _COUNTERS.items():
            yield CounterMetricFamily(f"specds_{title}", about, engine.counts[name])
        gauges = {"waiting": engine.num_waiting, "active": engine.num_active}
        for title, value in gauges.items():
            yield GaugeMetricFamily(f"specds_requests_{title}", f"Texts that are {title}", value)
        about = "Accepted tokens by the source that drafted them"
        by_source = CounterMetricFamily("specds_accepted_tokens", about, labels=["source"])
        for source, number in sorted(engine.accepted.items()):
            by_source.add_metric([source], number)
        yield by_source
