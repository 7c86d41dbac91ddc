"""Figures of a replay: one row per file of transcripts, drafter, datastore and draft size."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from rich.table import Table

from specds.bench.acceptance.measure import ReplayCell, Trace
from specds.bench.harness import BenchReport, Columns, ReportRow, label, table


def sentence(document: BenchReport) -> str:
    """Describe the replay in one sentence."""
    tokens = document["memory_tokens"]
    memory = "one drafter for all requests" if document["warm_memory"] else "a new drafter for each"
    memory += f", {tokens:,} tokens in its memory" if tokens else ""
    limited = "" if document["limit"] is None else f", {document['limit']} a file at most"
    shape = "; drafts are chains" if document["shape"] == "chain" else ""
    return f"requests in file order{limited}{shape}; {memory}"


def rows_of(cell: ReplayCell) -> list[ReportRow]:
    """Return the rows of a cell, one per set of transcripts."""
    datastore = cell.drafter.datastore
    about = {
        "drafter": cell.drafter.name,
        "datastore": None if datastore is None else str(datastore.path),
        "datastore_tokens": None if datastore is None else datastore.num_tokens,
        "max_nodes": cell.max_nodes,
        "status": "ok",
        "reason": None,
    }
    traces = cell.traces.items()
    return [{"transcripts": group, **about, **figures(trace)} for group, trace in traces]


def figures(trace: Trace) -> ReportRow:
    stats = trace.stats
    drafts, reached = max(stats.num_drafts, 1), stats.num_accepted_tokens_per_pos
    expected = float(np.sum(trace.expected))
    return {
        "num_requests": trace.num_requests,
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "num_accepted_tokens_per_pos": stats.num_accepted_tokens_per_pos,
        "acceptance_histogram": stats.acceptance_histogram,
        "num_emitted_tokens": stats.num_emitted_tokens,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "interval": _interval(trace),
        "nodes_per_draft": stats.num_draft_tokens / drafts,
        "draft_acceptance_rate": stats.num_accepted_tokens / max(stats.num_draft_tokens, 1),
        "acceptance_by_position": [n / drafts for n in reached],
        **_of_predicted_output(trace),
        "draft_p50_us": _percentile_us(trace.draft_ns, 50),
        "draft_p99_us": _percentile_us(trace.draft_ns, 99),
        "observe_p50_us": _percentile_us(trace.observe_ns, 50),
        "observe_p99_us": _percentile_us(trace.observe_ns, 99),
        "emitted_by_source": dict(trace.sources),
        "acceptance_by_request": _acceptance_by("request", _tenths(trace.requests), trace),
        "acceptance_by_sample": _acceptance_by("sample", trace.samples, trace),
        "expected_accepted_tokens": expected or None,
        "accepted_over_expected": sum(trace.accepted) / expected if expected else None,
    }


def _percentile_us(elapsed_ns: Sequence[int], percentile: float) -> float | None:
    return float(np.percentile(elapsed_ns, percentile)) / 1e3 if elapsed_ns else None


def _interval(trace: Trace) -> list[float] | None:
    """Return the 95 % interval of the mean acceptance length, by bootstrap over requests."""
    if len(trace.lengths) < 2:
        return None
    tokens, forwards = np.array(trace.lengths).T
    drawn = np.random.default_rng(0).integers(0, len(tokens), (1000, len(tokens)))
    lengths = tokens[drawn].sum(1) / forwards[drawn].sum(1)
    interval: list[float] = np.percentile(lengths, (2.5, 97.5)).tolist()
    return interval


def _of_predicted_output(trace: Trace) -> ReportRow:
    accepted = rejected = None
    if trace.num_predicted_tokens is not None:
        accepted = trace.sources["predicted_output"]
        rejected = max(trace.num_predicted_tokens - accepted, 0)
    return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}


def _acceptance_by(name: str, keys: Sequence[int], trace: Trace) -> list[ReportRow] | None:
    """Return the mean acceptance length of the drafts of each key; None without keys."""
    if not keys:
        return None
    accepted: dict[int, list[int]] = defaultdict(list)
    for key, count in zip(keys, trace.accepted, strict=True):
        accepted[key].append(count)
    return [
        {
            name: key,
            "num_drafts": len(counts),
            "mean_acceptance_length": 1 + sum(counts) / len(counts),
        }
        for key, counts in sorted(accepted.items())
    ]


def _tenths(numbers: Sequence[int]) -> list[int]:
    """Return the first number of the tenth that each number is in."""
    parts = np.array_split(sorted(set(numbers)), 10)
    first_of = {int(number): int(part[0]) for part in parts for number in part}
    return [first_of[number] for number in numbers]


def tables(document: BenchReport) -> list[Table]:
    rows = document["rows"]
    shown = [
        table(f"Replay of {group}", chosen, lambda row: label(row, rows, "datastore"), FIGURES)
        for group, chosen in groupby(rows, key=lambda row: str(row["transcripts"]))
    ]
    shown[-1].caption = f"{sentence(document)}. {CAPTION}"
    return shown


FIGURES: Columns = (
    ("nodes_per_draft", "nodes", "{:.1f}"),
    ("max_nodes", "of", "{}"),
    ("mean_acceptance_length", "tokens", "{:.3f}"),
    ("interval", "95 %", "{0[0]:.2f} to {0[1]:.2f}"),
    ("draft_acceptance_rate", "rate", "{:.0%}"),
    ("accepted_over_expected", "calib", "{:.2f}"),
    ("draft_p50_us", "p50", "{:.1f}"),
    ("draft_p99_us", "p99", "{:.0f}"),
    ("observe_p50_us", "learn", "{:.1f}"),
)
CAPTION = (
    "nodes: mean of a draft; of: maximum; tokens: per forward pass, bonus token included; 95 %: "
    "interval of that, by bootstrap over requests; rate: accepted of the drafted tokens; calib: "
    "calibration, accepted over expected tokens; p50, p99: µs to draft; learn: median µs to "
    "observe new tokens."
)
