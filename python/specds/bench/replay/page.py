"""The page of a replay: its headline and its plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from specds.bench.harness import Document, Row, label, name_of, together
from specds.bench.page import Points, bars, colours, dashes, figure, lines, report, shares
from specds.bench.replay.measure import TARGET
from specds.bench.replay.report import CAPTION, FIGURES, sentence
from specds.bench.transcripts import ALL

_MEAN = "mean_acceptance_length"
_TOKENS = "tokens per forward"
_NAMES = ("transcripts", "drafter", "datastore")
_CURVES = (
    (
        "request",
        "over the requests served",
        "requests served before",
        "By tenths of the requests: what a drafter learns from the earlier ones.",
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
    measured = [row for row in document["rows"] if row["status"] == "ok"]
    about = f"{sentence(document)}. Tokenizer {document['tokenizer']}, specds {document['specds']}"
    return report(
        "specds bench replay",
        _headline(measured),
        about,
        document,
        _figures(measured),
        (_NAMES, FIGURES, CAPTION),
        stories,
    )


def _headline(rows: Sequence[Row]) -> str:
    """The best drafter against the next best of another name."""
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
    largest = {name(row): row for row in merged if row["budget"] == budget}
    at_budget = f", {budget} nodes at most" if largest else ""
    # One colour a drafter, and one pattern of dashes a datastore.
    of_drafter, of_datastore = colours(map(name_of, rows)), dashes(map(_datastore, rows))
    colour_of = {name(row): of_drafter[name_of(row)] for row in rows}
    dash_of = {name(row): of_datastore[_datastore(row)] for row in rows}
    plot = partial(lines, colour_of=colour_of, dash_of=dash_of)
    yield figure(
        "acceptance-by-nodes",
        "Acceptance length against nodes",
        "Tokens that a forward pass gives, the model's own included, by how many it checks. Higher "
        "is better; where a line is flat, more nodes are wasted.",
        plot(_series(merged, name, "nodes_per_draft"), "nodes per draft", _TOKENS),
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
        plot(_series(timed, name, "step_us"), x, _TOKENS, log_x=True),
    )
    rates = {each: row["acceptance_by_position"] for each, row in largest.items()}
    by_position = {each: ([*range(1, len(rate) + 1)], rate) for each, rate in rates.items()}
    yield figure(
        "acceptance-by-position",
        f"Acceptance by position{at_budget}",
        "The share of drafts whose first, second, ... token was accepted.",
        plot(by_position, "position in a draft", "share of drafts"),
    )
    by_transcript: dict[str, dict[str, tuple[float, str]]] = {}
    for row in rows:
        if row["transcripts"] != ALL and row["budget"] == budget:
            values = by_transcript.setdefault(row["transcripts"], {})
            values[name(row)] = row[_MEAN], f"{row[_MEAN]:.2f}"
    if len(by_transcript) > 1:
        yield figure(
            "acceptance-by-transcript",
            f"Acceptance length by file of answers{at_budget}",
            "Answers that resemble the datastore, or repeat themselves, are predicted best.",
            bars(by_transcript, colour_of),
        )
    for x, title, x_title, caption in _CURVES:
        points = {each: row[f"acceptance_by_{x}"] or [] for each, row in largest.items()}
        if any(len(of_row) > 1 for of_row in points.values()):
            curves = {each: _curve(of_row, x) for each, of_row in points.items()}
            yield figure(
                f"acceptance-by-{x.replace('_', '-')}",
                f"Acceptance length {title}{at_budget}",
                caption,
                plot(curves, x_title, _TOKENS),
            )
    by_source = {each: _by_source(row) for each, row in largest.items()}
    source_colours = {
        source: f"var(--{source})" for of_row in by_source.values() for source in of_row
    }
    yield figure(
        "emitted-by-source",
        f"Where each emitted token came from{at_budget}",
        f"`{TARGET}` is the model's own token, one a pass; all others cost no pass.",
        shares(by_source, source_colours | {TARGET: "var(--faint)"}),
    )


def _datastore(row: Row) -> str:
    return str(row["datastore"] or "")


def _series(rows: Sequence[Row], name: Callable[[Row], str], x: str) -> dict[str, Points]:
    """A line a drafter through its rows, in the order of x."""
    series: dict[str, Points] = {}
    for row in sorted(rows, key=lambda row: row[x]):
        xs, ys = series.setdefault(name(row), ([], []))
        xs.append(row[x])
        ys.append(row[_MEAN])
    return series


def _curve(points: Sequence[Row], x: str) -> Points:
    """The points that stand for at least one in a hundred drafts."""
    least = sum(point["num_drafts"] for point in points) / 100
    chosen = [point for point in points if point["num_drafts"] >= least]
    return [point[x] for point in chosen], [point[_MEAN] for point in chosen]


def _by_source(row: Row) -> dict[str, float]:
    """The share of the emitted tokens that came from each source, by name."""
    emitted = row["emitted_by_source"]
    num_tokens = max(sum(emitted.values()), 1)
    return {source: emitted[source] / num_tokens for source in sorted(emitted)}
