"""Rows of the report, one for each mode, batch size and way to generate, and their tables.

docs/measuring.md lists the fields of a row.
"""

from collections.abc import Sequence
from itertools import groupby
from statistics import mean
from typing import Any

from specds.bench.generation.measure import GenerationCell
from specds.bench.generation.target import PLAIN
from specds.bench.harness import BenchReport, Columns, ReportRow, label, table
from specds.generation.stats import GenerationStats

_COUNTS = (
    *("num_drafts", "num_draft_tokens", "num_accepted_tokens"),
    *("mean_acceptance_length", "acceptance_histogram"),
)
_COSTS = ("nodes_per_draft", "pass_cost", "expected_speed_up", "shares", "outside_forward")


def rows_of(cells: Sequence[GenerationCell]) -> list[ReportRow]:
    """Return the rows of all cells, with speedups over baselines of the same mode and batch."""
    rows = []
    for _, chosen in groupby(cells, key=lambda cell: (cell.mode, cell.batch)):
        beside = list(chosen)
        rows += [_row(cell, [other for other in beside if other.runs]) for cell in beside]
    return rows


def _row(cell: GenerationCell, measured: Sequence[GenerationCell]) -> ReportRow:
    way = cell.way
    plain = (other for other in measured if other.way.is_plain)
    fastest = max(plain, key=lambda other: mean(_speeds(other)), default=None)
    named = {other.way.name: other for other in measured}
    generate = named.get("generate")
    return {
        "mode": cell.mode,
        "batch": cell.batch,
        "name": way.name,
        "kind": "drafter" if way.is_ours and not way.is_plain else "baseline",
        "max_nodes": way.max_nodes,
        "datastore": None if way.datastore is None else str(way.datastore.path),
        "status": "ok" if cell.reason is None else "refused",
        "reason": cell.reason,
        "num_requests": len(cell.runs[0].texts) if cell.runs else None,
        "num_tokens": sum(map(len, cell.runs[0].texts)) if cell.runs else None,
        **_spread("tokens_per_s", _speeds(cell)),
        "fastest_plain": None if fastest is None else fastest.way.name,
        **_spread("speed_up", _ratios(cell, fastest)),
        **_spread("speed_up_over_generate", _ratios(cell, generate)),
        **_drafting(cell, named.get(PLAIN)),
        "num_differing": _num_differing(cell, generate or named.get(PLAIN)),
    }


def _speeds(cell: GenerationCell) -> list[float]:
    return [run.tokens_per_s for run in cell.runs]


def _ratios(cell: GenerationCell, other: GenerationCell | None) -> list[float]:
    """Return the speed of each run over that of another cell."""
    pairs = zip(_speeds(cell), [] if other is None else _speeds(other), strict=False)
    return [mine / theirs for mine, theirs in pairs]


def _spread(name: str, values: Sequence[float]) -> ReportRow:
    return {
        name: mean(values) if values else None,
        f"{name}_min": min(values, default=None),
        f"{name}_max": max(values, default=None),
    }


def _drafting(cell: GenerationCell, plain: GenerationCell | None) -> ReportRow:
    """Return the figures of drafting, all null where our loop did not run."""
    if not cell.way.is_ours or cell.profile is None:
        return dict.fromkeys((*_COUNTS, *_COSTS))
    stats = sum((run.stats for run in cell.runs), GenerationStats())
    shares = cell.profile.stats.shares
    steps = 1 - shares["prefill"]
    cost = _pass_cost(cell, plain)
    has_steps = steps > 0 and cell.profile.stats.num_drafts
    return {
        **{name: getattr(stats, name) for name in _COUNTS},
        "nodes_per_draft": stats.num_draft_tokens / max(stats.num_drafts, 1),
        "pass_cost": cost,
        "expected_speed_up": stats.mean_acceptance_length / cost if cost else None,
        "shares": shares | {"rest": max(1 - sum(shares.values()), 0.0)},
        "outside_forward": 1 - shares["forward"] / steps if has_steps else None,
    }


def _pass_cost(cell: GenerationCell, plain: GenerationCell | None) -> float | None:
    """Return the time of a pass over that of our loop without drafts, in the same run."""
    runs = [of.profile.stats for of in (cell, plain) if of is not None and of.profile is not None]
    if len(runs) < 2 or not all(stats.num_drafts and stats.forward_s for stats in runs):
        return None
    mine, theirs = (stats.forward_s / stats.num_drafts for stats in runs)
    return mine / theirs


def _num_differing(cell: GenerationCell, baseline: GenerationCell | None) -> int | None:
    if baseline is None or not cell.runs:
        return None
    pairs = zip(cell.runs, baseline.runs, strict=True)
    texts = (zip(mine.texts, theirs.texts, strict=True) for mine, theirs in pairs)
    return sum(one != other for of_run in texts for one, other in of_run)


def altered(document: BenchReport) -> list[ReportRow]:
    """Return the rows of drafters that changed a greedy text in full precision."""
    if document["dtype"] not in ("float32", "float64"):
        return []
    rows = (row for row in document["rows"] if row["kind"] == "drafter")
    return [row for row in rows if row["num_differing"] and row["mode"] == "greedy"]


def sentence(document: BenchReport) -> str:
    """Describe the model, machine and versions in one sentence."""
    threads = f", {document['num_threads']} threads" if document["device"] == "cpu" else ""
    runs = "one run" if document["runs"] == 1 else f"{document['runs']} runs"
    named = (name for name in ("specds", "torch", "transformers") if document[name])
    versions = ", ".join(f"{name} {document[name]}" for name in named)
    about = f"{document['model']}, {document['dtype']}, {document['device']}{threads}"
    return f"{about}; {runs}; {versions}"


def tables(document: BenchReport) -> list[Any]:
    """Return a table for each mode and batch size, and the sentence."""
    rows = document["rows"]
    shown = [
        table(title, chosen, lambda row: way_label(row, rows), FIGURES)
        for title, chosen in groupby(rows, key=title_of)
    ]
    shown[-1].caption = CAPTION
    return [*shown, sentence(document)]


def title_of(row: ReportRow) -> str:
    return f"{row['mode']}, batch {row['batch']}" if row["batch"] > 1 else str(row["mode"])


def way_label(row: ReportRow, rows: Sequence[ReportRow]) -> str:
    """Return the name of a way, with datastore and nodes where several ways share the name."""
    return label(row, rows, "datastore", "max_nodes")


FIGURES: Columns = (
    ("tokens_per_s", "/s", "{:.1f}"),
    ("speed_up", "x plain", "{:.2f}"),
    ("speed_up_over_generate", "x gen", "{:.2f}"),
    ("mean_acceptance_length", "tokens", "{:.2f}"),
    ("num_differing", "diff", "{}"),
    ("nodes_per_draft", "nodes", "{:.1f}"),
    ("outside_forward", "out", "{:.0%}"),
    ("speed_up_min", "least", "{:.2f}"),
    ("speed_up_max", "most", "{:.2f}"),
)
CAPTION = (
    "/s: tokens a second, prefill included, mean of the runs; x plain: speed over the fastest that "
    "makes one token a forward in the same run, from least to most; x gen: over model.generate; "
    "tokens: per forward; diff: texts that are not those of model.generate; nodes: per draft; out: "
    "the share of a step, behind the prefill, that is not the forward."
)
