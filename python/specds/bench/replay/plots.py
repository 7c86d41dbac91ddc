"""The figures of a replay as one page that needs nothing else."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from specds.bench.harness import label, together
from specds.bench.page import line_plot, page_of, require_plotly, share_bars
from specds.bench.replay.report import sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from specds.bench.harness import Columns, Document, Row
    from specds.bench.page import Series

_MEAN = "mean_acceptance_length"
_TIME = "step_p50_us"
_TOKENS = "tokens per forward"


def page(document: Document) -> str:
    """The page, with the plotting library's script within.

    Raises:
        ImportError: plotly is not installed.
    """
    require_plotly()
    rows = document["rows"]
    about = f"{sentence(document)}. Tokenizer {document['tokenizer']}, specds {document['specds']}."
    figures = _figures([row for row in rows if row["status"] == "ok"])
    return page_of("specds bench replay", about, figures, rows, _COLUMNS)


def _figures(rows: Sequence[Row]) -> Iterator[tuple[str, Any]]:
    """The id and the figure of each plot; of all transcripts together, where there are several."""
    merged = together(rows)
    budget = max((row["budget"] for row in merged), default=0)
    largest = [row for row in merged if row["budget"] == budget]
    at_budget = f", {budget} nodes at most" if largest else ""
    # Where datastores are on the x axis, a line is named by its drafter alone.
    colors = _colors(_name(row, named, merged) for named in ([], rows) for row in merged)
    lines = partial(line_plot, colors=colors)

    series = _series(merged, rows, "nodes_per_draft", _MEAN)
    title = "Acceptance length against nodes"
    yield "acceptance-by-nodes", lines(title, "nodes per draft", _TOKENS, series)

    # Not every drafter learns from a step.
    timed = [
        {**row, _TIME: row["draft_p50_us"] + (row["observe_p50_us"] or 0.0)}
        for row in merged
        if row["draft_p50_us"] is not None
    ]
    series, x = (
        _series(timed, rows, _TIME, _MEAN),
        "µs to draft and to learn from it, at the median",
    )
    by_time = lines("Acceptance length against time", x, _TOKENS, series)
    yield "acceptance-by-time", by_time.update_xaxes(type="log")

    series = _nested(largest, rows, "acceptance_by_match_length", "match_length", _MEAN)
    title = f"Acceptance length against match length{at_budget}"
    by_match = lines(title, "tokens of context matched", _TOKENS, series)
    yield "acceptance-by-match-length", by_match

    with_datastore = [row for row in largest if row["datastore_tokens"]]
    series = _series(with_datastore, [], "datastore_tokens", _MEAN)
    title = f"Acceptance length against datastore size{at_budget}"
    by_size = lines(title, "tokens in the datastore", _TOKENS, series)
    sizes = sorted({row["datastore_tokens"] for row in with_datastore})
    shown = [f"{size / 1e6:.3g} M" for size in sizes]
    by_size.update_xaxes(type="log", tickvals=sizes, ticktext=shown)
    yield "acceptance-by-datastore-size", by_size

    shares = {label(row, rows, "datastore"): _by_source(row) for row in largest}
    title = f"Where each emitted token came from{at_budget}"
    yield "emitted-by-source", share_bars(title, shares)

    series = _nested(largest, rows, "reliability", "expected", "accepted")
    title = f"Tokens accepted against tokens expected, by tenths of the drafts{at_budget}"
    figure = lines(title, "expected accepted tokens of a draft", "accepted tokens", series)
    most = max((max(xs, default=0) for xs, _ in series.values()), default=0)
    figure.add_shape(type="line", x0=0, y0=0, x1=most, y1=most, line={"dash": "dot"})
    yield "reliability", figure


def _colors(names: Iterable[str]) -> dict[str, str]:
    """A drafter has one color in all plots."""
    palette = import_module("plotly.colors").qualitative.Plotly
    return {
        name: palette[number % len(palette)] for number, name in enumerate(dict.fromkeys(names))
    }


def _series(chosen: Sequence[Row], rows: Sequence[Row], x: str, y: str) -> Series:
    """A line a drafter through its rows, in the order of x."""
    series: Series = {}
    for row in sorted(chosen, key=lambda row: row[x]):
        xs, ys = series.setdefault(_name(row, rows, chosen), ([], []))
        xs.append(row[x])
        ys.append(row[y])
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
    ("datastore", "datastore", str),
    ("budget", "budget", str),
    (_MEAN, _TOKENS, "{:.3f}".format),
    ("nodes_per_draft", "nodes per draft", "{:.1f}".format),
    ("draft_p50_us", "draft p50, µs", "{:.1f}".format),
    ("draft_p99_us", "draft p99, µs", "{:.1f}".format),
    ("observe_p50_us", "observe p50, µs", "{:.1f}".format),
    ("accepted_over_expected", "accepted / expected", "{:.2f}".format),
    ("status", "", str),
    ("reason", "", str),
)
