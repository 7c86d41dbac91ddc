"""The figures of a replay: one row a file of transcripts, a drafter, a datastore and a budget.

A rival that is absent, refused or failed has one row, for ``all``, and null for every figure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from rich.table import Table

from specds.bench.drawing import Points, lines, shares
from specds.bench.harness import Columns, Document, Row, label, name_of, table, together
from specds.bench.page import figure, page_of
from specds.bench.replay.measure import TARGET, Cell, Trace
from specds.bench.transcripts import ALL


def sentence(document: Document) -> str:
    """How requests were replayed, for people."""
    tokens = document["memory_tokens"]
    memory = "one drafter for all requests" if document["warm_memory"] else "a new drafter for each"
    memory += f", {tokens:,} tokens in its memory" if tokens else ""
    limited = "" if document["limit"] is None else f", {document['limit']} a file at most"
    started = "" if document["weights"] is None else f"; fused from {document['weights']}"
    shape = "; drafts are chains" if document["shape"] == "chain" else ""
    return f"requests in file order{limited}{shape}; {memory}{started}"


def rows_of(cell: Cell) -> list[Row]:
    """The rows of a cell, one a group of transcripts."""
    traces: dict[str, Trace | None] = dict(cell.traces) or {ALL: None}
    datastore = cell.engine.datastore
    about = {
        "drafter": cell.engine.name,
        "datastore": None if datastore is None else str(datastore.path),
        "datastore_tokens": None if datastore is None else datastore.num_tokens,
        "budget": cell.budget,
        "status": cell.status,
        "reason": cell.reason,
    }
    return [{"transcripts": group, **about, **figures(trace)} for group, trace in traces.items()]


def figures(trace: Trace | None) -> Row:
    """The figures of a trace; all null where there is none."""
    if trace is None:
        return dict.fromkeys(figures(Trace()))
    stats = trace.stats
    drafts, reached = max(stats.num_drafts, 1), stats.num_accepted_tokens_per_pos
    expected = float(np.sum(trace.expected))
    return {
        "num_requests": trace.num_requests,
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "num_accepted_tokens_per_pos": stats.num_accepted_tokens_per_pos,
        "num_emitted_tokens": stats.num_emitted_tokens,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "nodes_per_draft": stats.num_draft_tokens / drafts,
        "draft_acceptance_rate": stats.num_accepted_tokens / max(stats.num_draft_tokens, 1),
        "acceptance_by_position": [n / drafts for n in reached],
        "draft_p50_us": _percentile_us(trace.draft_ns, 50),
        "draft_p99_us": _percentile_us(trace.draft_ns, 99),
        "observe_p50_us": _percentile_us(trace.observe_ns, 50),
        "observe_p99_us": _percentile_us(trace.observe_ns, 99),
        "emitted_by_source": dict(trace.sources),
        "acceptance_by_match_length": _by_match_length(trace),
        "expected_accepted_tokens": expected or None,
        "accepted_over_expected": sum(trace.accepted) / expected if expected else None,
    }


def _percentile_us(elapsed_ns: Sequence[int], percentile: float) -> float | None:
    return float(np.percentile(elapsed_ns, percentile)) / 1e3 if elapsed_ns else None


def _by_match_length(trace: Trace) -> list[Row] | None:
    """The mean acceptance length by the tokens matched; None where these are not known."""
    if not trace.match_lengths:
        return None
    accepted: dict[int, list[int]] = defaultdict(list)
    for length, count in zip(trace.match_lengths, trace.accepted, strict=True):
        accepted[length].append(count)
    return [
        {
            "match_length": length,
            "num_drafts": len(counts),
            "mean_acceptance_length": 1 + sum(counts) / len(counts),
        }
        for length, counts in sorted(accepted.items())
    ]


def tables(document: Document) -> list[Table]:
    """All rows for people: a table for each group of transcripts."""
    rows = document["rows"]
    shown = [
        table(f"Replay of {group}", chosen, lambda row: label(row, rows, "datastore"), FIGURES)
        for group, chosen in groupby(rows, key=lambda row: str(row["transcripts"]))
    ]
    shown[-1].caption = f"{sentence(document)}. {CAPTION}"
    return shown


NAMES = ("transcripts", "drafter", "datastore")
FIGURES: Columns = (
    ("nodes_per_draft", "nodes", "{:.1f}"),
    ("budget", "of", "{}"),
    ("mean_acceptance_length", "tokens", "{:.3f}"),
    ("draft_acceptance_rate", "rate", "{:.0%}"),
    ("accepted_over_expected", "hoped", "{:.2f}"),
    ("draft_p50_us", "p50", "{:.1f}"),
    ("draft_p99_us", "p99", "{:.0f}"),
    ("observe_p50_us", "learn", "{:.1f}"),
)
CAPTION = (
    "nodes: drafted; of: the budget; tokens: per forward, bonus token included; rate: of the "
    "drafted tokens, those accepted; hoped: tokens accepted over those that the drafter expected; "
    "p50, p99: µs to draft; learn: median µs to observe what was accepted."
)

_MEAN = "mean_acceptance_length"
_TOKENS = "tokens per forward"


def page(document: Document, stories: Sequence[dict[str, Any]] = ()) -> str:
    rows = document["rows"]
    measured = [row for row in rows if row["status"] == "ok"]
    about = f"{sentence(document)}. Tokenizer {document['tokenizer']}, specds {document['specds']}."
    return page_of(
        "specds bench replay",
        _headline(measured),
        about,
        document,
        _figures(measured),
        (NAMES, FIGURES, CAPTION),
        stories,
    )


def _headline(rows: Sequence[Row]) -> str:
    """The headline: the best drafter against the next best of another name."""
    merged = sorted(together(rows), key=lambda row: -row[_MEAN])
    if not merged:
        return "Nothing could be measured."
    best = merged[0]
    others = (row for row in merged if name_of(row) != name_of(best))
    second = next((row for row in others if row["budget"] == best["budget"]), None)
    told = f"{name_of(best)} gives {best[_MEAN]:.2f} tokens a forward pass"
    if second is not None:
        told += f", {best[_MEAN] / second[_MEAN]:.2f} times {name_of(second)}"
    if best["draft_p50_us"] is not None:
        told += f", in {best['draft_p50_us']:.0f} µs a draft"
    return f"{told} (at most {best['budget']} nodes, {best['num_requests']:,} answers)."


def _figures(rows: Sequence[Row]) -> Iterator[str]:
    """The plots; over all transcripts together if there are several files."""
    merged = together(rows)
    budget = max((row["budget"] for row in merged), default=0)
    largest = {label(row, rows, "datastore"): row for row in merged if row["budget"] == budget}
    at_budget = f", {budget} nodes at most" if largest else ""
    yield figure(
        "acceptance-by-nodes",
        "Acceptance length against nodes",
        "Tokens that a forward pass gives, the model's own included, by how many it checks. Higher "
        "is better; where a line is flat, more nodes are wasted.",
        lines(_series(merged, "nodes_per_draft"), "nodes per draft", _TOKENS),
    )
    # Not every drafter learns from a step.
    timed = [
        {**row, "step_us": row["draft_p50_us"] + (row["observe_p50_us"] or 0.0)}
        for row in merged
        if row["draft_p50_us"] is not None
    ]
    x = "µs to draft and to learn from it, at the median"
    yield figure(
        "acceptance-by-time",
        "Acceptance length against time",
        "What a step costs beside the model's pass. To the left and up is better; what it costs "
        "matters as far as a pass of the model is as short.",
        lines(_series(timed, "step_us"), x, _TOKENS, log_x=True),
    )
    rates = {name: row["acceptance_by_position"] for name, row in largest.items()}
    by_position = {name: ([*range(1, len(rate) + 1)], rate) for name, rate in rates.items()}
    yield figure(
        "acceptance-by-position",
        f"Acceptance by position{at_budget}",
        "The share of drafts whose first, second, ... token was accepted.",
        lines(by_position, "position in a draft", "share of drafts"),
    )
    by_source = {name: _by_source(row) for name, row in largest.items()}
    colours = {source: f"var(--{source})" for of_row in by_source.values() for source in of_row}
    yield figure(
        "emitted-by-source",
        f"Where each emitted token came from{at_budget}",
        f"`{TARGET}` is the model's own token, one a pass; all others cost no pass.",
        shares(by_source, colours | {TARGET: "var(--faint)"}),
    )


def _series(rows: Sequence[Row], x: str) -> dict[str, Points]:
    """A line a drafter through its rows, in the order of x."""
    series: dict[str, Points] = {}
    for row in sorted(rows, key=lambda row: row[x]):
        xs, ys = series.setdefault(label(row, rows, "datastore"), ([], []))
        xs.append(row[x])
        ys.append(row[_MEAN])
    return series


def _by_source(row: Row) -> dict[str, float]:
    """The share of the emitted tokens that came from each source, by name."""
    emitted = row["emitted_by_source"]
    num_tokens = max(sum(emitted.values()), 1)
    return {source: emitted[source] / num_tokens for source in sorted(emitted)}
