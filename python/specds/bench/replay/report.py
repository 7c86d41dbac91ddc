"""The figures of a replay: one row a file of transcripts, a drafter, a datastore and a budget.

They are shown as tables, and as one page that needs no network.

docs/measuring.md lists the fields of a row. A rival that is absent, refused or failed has one row,
for ``all``, a ``reason``, and null for every figure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from rich.table import Table

from specds.bench.drawing import Style, Styles, bars, lines, shares
from specds.bench.harness import Columns, Document, Row, label, name_of, table, together
from specds.bench.page import figure, page_of
from specds.bench.replay.measure import TARGET, Cell, Trace
from specds.bench.transcripts import ALL

_PARTS = 10


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
    binades = [1 << (length.bit_length() - 1) for length in trace.context_lengths]
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
        **_of_predicted_output(trace),
        "draft_p50_us": _percentile_us(trace.draft_ns, 50),
        "draft_p99_us": _percentile_us(trace.draft_ns, 99),
        "observe_p50_us": _percentile_us(trace.observe_ns, 50),
        "observe_p99_us": _percentile_us(trace.observe_ns, 99),
        "emitted_by_source": dict(trace.sources),
        "acceptance_by_match_length": _acceptance_by("match_length", trace.match_lengths, trace),
        "acceptance_by_context_length": _acceptance_by("context_length", binades, trace),
        "acceptance_by_request": _acceptance_by("request", _tenths(trace.requests), trace),
        "acceptance_by_sample": _acceptance_by("sample", trace.samples, trace),
        "expected_accepted_tokens": expected or None,
        "accepted_over_expected": sum(trace.accepted) / expected if expected else None,
    }


def _percentile_us(elapsed_ns: Sequence[int], percentile: float) -> float | None:
    return float(np.percentile(elapsed_ns, percentile)) / 1e3 if elapsed_ns else None


def _of_predicted_output(trace: Trace) -> Row:
    """The tokens that callers expected: those drafted from there and accepted, and the rest."""
    names = ("accepted_prediction_tokens", "rejected_prediction_tokens")
    if trace.num_predicted_tokens is None:
        return dict.fromkeys(names)
    accepted = trace.sources["predicted"]
    return dict(zip(names, (accepted, max(trace.num_predicted_tokens - accepted, 0)), strict=True))


def _acceptance_by(name: str, keys: Sequence[int], trace: Trace) -> list[Row] | None:
    """The mean acceptance length of the drafts of each key; None where the keys are not known."""
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
    """The first number of the tenth that each is in."""
    parts = np.array_split(sorted(set(numbers)), _PARTS)
    first_of = {int(number): int(part[0]) for part in parts for number in part}
    return [first_of[number] for number in numbers]


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
_CURVES = (
    (
        "request",
        "over the requests served",
        "requests served before",
        "By tenths of the requests: what a drafter learns of those before.",
    ),
    (
        "sample",
        "by the samples of a group",
        "requests of the group served before",
        "What earlier samples of a prompt, or turns of a task, are worth.",
    ),
    (
        "context_length",
        "by context length",
        "tokens of context, at least",
        "What a request's own text is worth as it grows.",
    ),
)


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

    def name(row: Row) -> str:
        return label(row, rows, "datastore")

    merged = together(rows)
    budget = max((row["budget"] for row in merged), default=0)
    largest = [row for row in merged if row["budget"] == budget]
    at_budget = f", {budget} nodes at most" if largest else ""
    styles = _styles(rows, name)

    yield figure(
        "acceptance-by-nodes",
        "Acceptance length against nodes",
        "Tokens that a forward pass gives, the model's own included, by how many it checks. Higher "
        "is better; where a line is flat, more nodes are wasted.",
        lines(_series(merged, name, "nodes_per_draft"), styles, "nodes per draft", _TOKENS),
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
        lines(_series(timed, name, "step_us"), styles, x, _TOKENS, log_x=True),
    )
    rates = {name(row): row["acceptance_by_position"] for row in largest}
    by_position = {each: ([*range(1, len(rate) + 1)], rate) for each, rate in rates.items()}
    yield figure(
        "acceptance-by-position",
        f"Acceptance by position{at_budget}",
        "The share of drafts whose first, second, ... token was accepted.",
        lines(by_position, styles, "position in a draft", "share of drafts"),
    )
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["transcripts"] != ALL and row["budget"] == budget:
            groups.setdefault(row["transcripts"], {})[name(row)] = row[_MEAN]
    if len(groups) > 1:
        yield figure(
            "acceptance-by-transcript",
            f"Acceptance length by file of answers{at_budget}",
            "Texts differ: what resembles the datastore, or itself, is predicted best.",
            bars(groups, styles),
        )
    for x, title, x_title, caption in _CURVES:
        points = {name(row): _frequent(row[f"acceptance_by_{x}"] or []) for row in largest}
        if any(len(of_row) > 1 for of_row in points.values()):
            xs, ys, sizes = (
                {each: [point[field] for point in of_row] for each, of_row in points.items()}
                for field in (x, _MEAN, "num_drafts")
            )
            curves = {each: (xs[each], ys[each]) for each in points}
            yield figure(
                f"acceptance-by-{x.replace('_', '-')}",
                f"Acceptance length {title}{at_budget}",
                f"{caption} The larger a mark, the more drafts.",
                lines(curves, styles, x_title, _TOKENS, sizes=sizes),
            )
    by_source = {name(row): _by_source(row) for row in largest}
    sources = {each: Style(each) for share in by_source.values() for each in share}
    yield figure(
        "emitted-by-source",
        f"Where each emitted token came from{at_budget}",
        f"`{TARGET}` is the model's own token, one a pass; all others cost no pass.",
        shares(by_source, sources | {TARGET: Style("faint")}),
    )


def _styles(rows: Sequence[Row], name: Callable[[Row], str]) -> Styles:
    """One colour a drafter and one dash a datastore."""
    drafters = list(dict.fromkeys(map(name_of, rows)))
    datastores = list(dict.fromkeys(row["datastore"] for row in rows if row["datastore"]))
    return {
        name(row): Style(
            drafters.index(name_of(row)),
            datastores.index(row["datastore"]) if row["datastore"] else 0,
        )
        for row in rows
    }


def _series(
    chosen: Sequence[Row], name: Callable[[Row], str], x: str
) -> dict[str, tuple[list[float], list[float]]]:
    """A line a drafter through its rows, in the order of x."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for row in sorted(chosen, key=lambda row: row[x]):
        xs, ys = series.setdefault(name(row), ([], []))
        xs.append(row[x])
        ys.append(row[_MEAN])
    return series


def _frequent(points: Sequence[Row]) -> list[Row]:
    """Points with at least one in a hundred drafts."""
    least = sum(point["num_drafts"] for point in points) / 100
    return [point for point in points if point["num_drafts"] >= least]


def _by_source(row: Row) -> dict[str, float]:
    """The share of the emitted tokens that came from each source, by name."""
    emitted = row["emitted_by_source"]
    num_tokens = max(sum(emitted.values()), 1)
    return {source: emitted[source] / num_tokens for source in sorted(emitted)}
