"""The figures of a replay as one page that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specds.bench.harness import folder_name, label, name_of, together
from specds.bench.page import Figure, page_of, styles_of
from specds.bench.replay.measure import TARGET
from specds.bench.replay.report import sentence
from specds.bench.svg import Style, bars, lines
from specds.bench.transcripts import ALL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specds.bench.harness import Columns, Document, Row
    from specds.bench.svg import Points

_MEAN = "mean_acceptance_length"
_TOKENS = "tokens per forward"
_CURVES = (
    (
        "match_length",
        "against match length",
        "tokens of context matched",
        "How far a context that occurs is to be trusted; what fewer than one draft in a hundred "
        "had is left out.",
    ),
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
Series = dict[str, "Points"]


def page(document: Document, stories: Sequence[dict[str, Any]] = ()) -> str:
    """The page."""
    rows = document["rows"]
    measured = [row for row in rows if row["status"] == "ok"]
    about = f"{sentence(document)}. Tokenizer {document['tokenizer']}, specds {document['specds']}."
    return page_of(
        "specds bench replay",
        _headline(measured),
        about,
        document,
        _figures(measured),
        _COLUMNS,
        stories,
    )


def _headline(rows: Sequence[Row]) -> str:
    """What came out: the best drafter, beside the next one of another name."""
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


def _figures(rows: Sequence[Row]) -> Iterator[Figure]:
    """Each plot; of all transcripts together, where there are several."""
    merged = together(rows)
    budget = max((row["budget"] for row in merged), default=0)
    largest = [row for row in merged if row["budget"] == budget]
    at_budget = f", {budget} nodes at most" if largest else ""
    styles = styles_of(rows, [(_name(row, rows, merged), row) for row in merged])
    styles |= styles_of(
        rows, [(_name(row, [], merged), {**row, "datastore": None}) for row in merged]
    )

    yield Figure(
        "acceptance-by-nodes",
        "Acceptance length against nodes",
        "Tokens that a forward pass gives, the model's own included, by how many it checks. Higher "
        "is better; where a line is flat, more nodes are wasted.",
        lines(_series(merged, rows, "nodes_per_draft"), styles, "nodes per draft", _TOKENS),
    )
    # Not every drafter learns from a step.
    timed = [
        {**row, "step_us": row["draft_p50_us"] + (row["observe_p50_us"] or 0.0)}
        for row in merged
        if row["draft_p50_us"] is not None
    ]
    x = "µs to draft and to learn from it, at the median"
    yield Figure(
        "acceptance-by-time",
        "Acceptance length against time",
        "What a step costs beside the model's pass. To the left and up is better; what it costs "
        "matters as far as a pass of the model is as short.",
        lines(_series(timed, rows, "step_us"), styles, x, _TOKENS, log_x=True),
    )
    yield Figure(
        "acceptance-by-position",
        f"Acceptance by position{at_budget}",
        "The share of drafts whose first, second, ... token was accepted.",
        lines(_by_position(largest, rows), styles, "position in a draft", "share of drafts"),
    )
    groups = _by_group(rows, budget)
    if len(groups) > 1:
        yield Figure(
            "acceptance-by-transcript",
            f"Acceptance length by file of answers{at_budget}",
            "Texts differ: what resembles the datastore, or itself, is foretold best.",
            bars(groups, styles, _TOKENS),
        )
    for x, title, x_title, caption in _CURVES:
        field = f"acceptance_by_{x}"
        curves = [{**row, field: _frequent(row[field])} for row in largest if row[field]]
        if any(len(row[field]) > 1 for row in curves):
            yield Figure(
                field.replace("_", "-"),
                f"Acceptance length {title}{at_budget}",
                f"{caption} The larger a mark, the more drafts.",
                lines(
                    _nested(curves, rows, field, x, _MEAN),
                    styles,
                    x_title,
                    _TOKENS,
                    sizes={
                        _name(row, rows, curves): [point["num_drafts"] for point in row[field]]
                        for row in curves
                    },
                ),
            )
    with_datastore = [row for row in largest if row["datastore_tokens"]]
    if len({row["datastore_tokens"] for row in with_datastore}) > 1:
        yield Figure(
            "acceptance-by-datastore-size",
            f"Acceptance length against datastore size{at_budget}",
            "What a larger corpus of the same kind is worth.",
            lines(
                _series(with_datastore, [], "datastore_tokens"),
                styles,
                "tokens in the datastore",
                _TOKENS,
                log_x=True,
            ),
        )
    shares = {label(row, rows, "datastore"): _by_source(row) for row in largest}
    sources = {name: Style(variable=name) for share in shares.values() for name in share}
    yield Figure(
        "emitted-by-source",
        f"Where each emitted token came from{at_budget}",
        f"`{TARGET}` is the model's own token, one a pass; all others cost no pass.",
        bars(
            shares,
            sources | {TARGET: Style(variable="faint")},
            "share of tokens",
            stacked=True,
            percent=True,
        ),
    )
    yield Figure(
        "reliability",
        f"Tokens accepted against tokens expected{at_budget}",
        "By tenths of the drafts. On the dotted line a drafter's probabilities are right.",
        lines(
            _nested(largest, rows, "reliability", "expected", "accepted"),
            styles,
            "expected accepted tokens of a draft",
            "accepted tokens",
            diagonal=True,
        ),
    )


def _series(chosen: Sequence[Row], rows: Sequence[Row], x: str) -> Series:
    """A line a drafter through its rows, in the order of x."""
    series: Series = {}
    for row in sorted(chosen, key=lambda row: row[x]):
        xs, ys = series.setdefault(_name(row, rows, chosen), ([], []))
        xs.append(row[x])
        ys.append(row[_MEAN])
    return series


def _nested(chosen: Sequence[Row], rows: Sequence[Row], field: str, x: str, y: str) -> Series:
    """A line a row through what one of its fields lists."""
    return {
        _name(row, rows, chosen): (
            [point[x] for point in row[field]],
            [point[y] for point in row[field]],
        )
        for row in chosen
        if row[field]
    }


def _frequent(points: Sequence[Row]) -> list[Row]:
    least = sum(point["num_drafts"] for point in points) / 100
    return [point for point in points if point["num_drafts"] >= least]


def _by_position(chosen: Sequence[Row], rows: Sequence[Row]) -> Series:
    rates = {_name(row, rows, chosen): row["acceptance_by_position"] for row in chosen}
    return {name: ([*range(1, len(rate) + 1)], rate) for name, rate in rates.items()}


def _by_group(rows: Sequence[Row], budget: int) -> dict[str, dict[str, float]]:
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["transcripts"] != ALL and row["budget"] == budget:
            groups.setdefault(row["transcripts"], {})[label(row, rows, "datastore")] = row[_MEAN]
    return groups


def _name(row: Row, rows: Sequence[Row], chosen: Sequence[Row]) -> str:
    several = len({other["transcripts"] for other in chosen}) > 1
    name = label(row, rows, "datastore")
    return f"{name}, {row['transcripts']}" if several else name


def _by_source(row: Row) -> dict[str, float]:
    """The share of the emitted tokens that came from each source, by name."""
    emitted = row["emitted_by_source"]
    num_tokens = max(sum(emitted.values()), 1)
    return {source: emitted[source] / num_tokens for source in sorted(emitted)}


_COLUMNS: Columns = (
    ("transcripts", "transcripts", str),
    ("drafter", "drafter", str),
    ("datastore", "datastore", folder_name),
    ("budget", "budget", "{}".format),
    (_MEAN, _TOKENS, "{:.3f}".format),
    ("nodes_per_draft", "nodes per draft", "{:.1f}".format),
    ("draft_p50_us", "draft p50, µs", "{:.1f}".format),
    ("draft_p99_us", "draft p99, µs", "{:.1f}".format),
    ("observe_p50_us", "observe p50, µs", "{:.1f}".format),
    ("accepted_over_expected", "accepted / expected", "{:.2f}".format),
    ("status", "", str),
    ("reason", "", str),
)
