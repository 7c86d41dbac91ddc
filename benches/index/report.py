"""Each figure against its bar, and the one table of all of them."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One row: what was measured and, where there is one, the bar that it is held to."""

    name: str
    value: float | None
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """None where there is no bar, or nothing to hold against it."""
        if self.value is None or (self.at_most is None and self.at_least is None):
            return None
        if self.at_most is not None and self.value > self.at_most:
            return False
        return self.at_least is None or self.value >= self.at_least

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}


def machine() -> dict[str, Any]:
    """What it was measured on."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def build_figures(builds: dict[str, Any]) -> Iterator[Figure]:
    """Our builds, each builder's processor time against ours, and rivals that are not there."""
    own_cpu = _least(builds["specds"], "cpu_s")
    for name, build in builds.items():
        if build is None:
            yield Figure(f"build, {name}", None, note="not installed")
            continue
        tokens, median = build["num_tokens"], _median(build, "cpu_s")
        note = f"median {median:.2f} s, wall {_least(build, 'wall_s'):.2f} s, {build['version']}"
        yield Figure(f"build, {name}: processor time", _least(build, "cpu_s"), "s", note=note)
        if build["rival"]:
            ratio = _least(build, "cpu_s") / own_cpu
            yield Figure(f"build, {name}: times our processor time", ratio, "x", at_least=15)
        little_memory = not build["rival"] and name != "specds"
        yield Figure(
            f"build, {name}: peak memory",
            _least(build, "peak_bytes") / tokens,
            "B/token",
            at_most=6.2 if name == "specds" else None,
        )
        yield Figure(
            f"build, {name}: private memory",
            _least(build, "private_bytes") / tokens,
            "B/token",
            at_most=2.5 if little_memory else None,
        )
        yield Figure(
            f"build, {name}: disk",
            build["num_bytes"] / tokens,
            "B/token",
            at_most=5.6 if name == "specds" else None,
        )


def build_and_query_figures(builds: dict[str, Any]) -> Iterator[Figure]:
    yield from build_figures(builds)
    present = {name: build for name, build in builds.items() if build}
    for query in ("count", "follows"):
        medians = {
            name: statistics.median(run[query] for run in build["query_us"])
            for name, build in present.items()
        }
        for name, p50 in medians.items():
            is_rival = present[name]["rival"]
            note = f"{p50 / medians['specds']:.1f} times ours" if is_rival else ""
            at_most = (
                None
                if is_rival
                else min(
                    (its for other, its in medians.items() if present[other]["rival"]), default=None
                )
            )
            what = "count" if query == "count" else "what follows"
            yield Figure(f"{what}, {name}: p50", p50, "µs", at_most, note=note)


def _least(build: dict[str, Any], field: str) -> float:
    return min(cost[field] for cost in build["costs"])


def _median(build: dict[str, Any], field: str) -> float:
    return statistics.median(cost[field] for cost in build["costs"])


def degenerate_figures(seconds: dict[str, float]) -> Iterator[Figure]:
    normal = seconds["normal text"]
    for name, elapsed in seconds.items():
        if name == "normal text":
            continue
        yield Figure(
            f"build of {name}: times that of text",
            elapsed / normal,
            "x",
            at_most=2,
            note=f"{elapsed:.2f} s to {normal:.2f} s of processor time",
        )


def serving_figures(serving: dict[str, Any]) -> Iterator[Figure]:
    opened, held, cold = serving["open"], serving["memory"], serving["cold"]
    size = f"a datastore of {opened['num_bytes'] / 1e9:.2f} GB"
    yield Figure("open", statistics.median(opened["open_s"]) * 1e3, "ms", at_most=10, note=size)
    yield Figure(
        "private memory to serve",
        held["private_bytes"] / serving["num_tokens"],
        "B/token",
        at_most=0.1,
        note=f"{held['private_bytes'] / 1e6:.1f} MB after {held['num_contexts']:,} drafts",
    )
    pages = f"{statistics.median(cold['pages']):.0f} pages read"
    cold_open_s = statistics.median(cold["open_s"])
    yield Figure("cold open, p50", cold_open_s * 1e3, "ms", note="nothing of it in memory before")
    yield Figure(
        "cold first draft, p50",
        statistics.median(cold["draft_s"]) * 1e3,
        "ms",
        at_most=5,
        note=pages,
    )
    yield from _latency_figures(serving["warm"])


def _latency_figures(warm: dict[str, Any]) -> Iterator[Figure]:
    for name in ("draft", "observe and draft"):
        for percentile, at_most in (("p50", 10), ("p99", 60)):
            passes = ", ".join(f"{one[percentile]:.1f}" for one in warm[name]["passes"])
            yield Figure(
                f"{name}, {percentile}",
                warm[name]["minimum"][percentile],
                "µs",
                at_most=at_most if name == "draft" else None,
                note=f"least of each position; single passes {passes}",
            )
    yield Figure("a draft that finds nothing, p50", warm["call alone"]["p50"], "µs")


def table(figures: list[Figure], title: str, machine: dict[str, Any]) -> Table:
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    caption = f"{machine['cores']} cores of {machine['processor']}, {memory}, load before "
    caption += f"{machine['load']:.1f}"
    shown = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    shown.add_column("figure")
    shown.add_column("measured", justify="right", no_wrap=True)
    shown.add_column("bar", justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    shown.add_column("", style="dim")
    marks = {True: "[green]met[/]", False: "[bold red]missed[/]", None: ""}
    for figure in figures:
        value = "absent" if figure.value is None else f"{figure.value:.3g} {figure.unit}".strip()
        shown.add_row(figure.name, value, _bar(figure), marks[figure.met], figure.note)
    return shown


def _bar(figure: Figure) -> str:
    if figure.at_most is not None:
        return f"≤ {figure.at_most:g}"
    return f"≥ {figure.at_least:g}" if figure.at_least is not None else ""
