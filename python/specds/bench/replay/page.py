"""The page of a replay: headline, answers step by step, plots with captions, a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import PurePath
from typing import Any

from specds.bench.harness import Document, Row, label, name_of, together
from specds.bench.page import Points, asset, figure, filled, lines, shares
from specds.bench.replay.measure import TARGET
from specds.bench.replay.report import CAPTION, FIGURES, sentence

_MEAN = "mean_acceptance_length"
_TOKENS = "tokens per forward"


def page(document: Document, stories: Sequence[dict[str, Any]] = ()) -> str:
    measured = [row for row in document["rows"] if row["status"] == "ok"]
    about = (
        f"{sentence(document)}. Tokenizer {document['tokenizer']}, specds {document['specds']}. "
        f"{document['date']}, {document['machine']}"
    )
    return filled(
        asset("replay.html"),
        headline=escape(_headline(measured)),
        about=escape(about),
        command=escape(document["command"]),
        figures="\n".join(_figures(measured)),
        table=_table(document["rows"]),
        caption=escape(CAPTION),
        # As JSON in a script, `<` would end it where a text says so.
        stories=json.dumps(stories).replace("<", "\\u003c"),
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


def _table(rows: Sequence[Row]) -> str:
    """A sortable table of all rows; null is an empty cell."""
    texts = ("transcripts", "drafter", "datastore", "status", "reason")
    columns = [(field, field, "{}") for field in texts] + list(FIGURES)

    def side(field: str) -> str:
        return ' class="name"' if field in texts else ""

    def cell(row: Row, field: str, form: str) -> str:
        value = row[field]
        if value is None:
            return "<td></td>"
        text = PurePath(value).name if field == "datastore" else form.format(value)
        return f'<td{side(field)} data-of="{escape(str(value))}">{escape(text)}</td>'

    head = "".join(
        f'<th{side(field)} title="{field}"><button>{escape(title)}</button></th>'
        for field, title, _ in columns
    )
    body = "\n".join(
        f"<tr>{''.join(cell(row, field, form) for field, _, form in columns)}</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )
