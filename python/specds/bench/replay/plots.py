"""The figures of a replay as one page that needs nothing else."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specds.bench.page import Columns, page_of, require_plotly
from specds.bench.replay.report import label
from specds.bench.transcripts import ALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from specds.bench.replay.report import Row, Settings

Series = dict[str, tuple[list[Any], list[Any]]]
"""The x and y values of each line by its name."""


def page(rows: Sequence[Row], settings: Settings) -> str:
    """The page, with the plotting library's script within.

    Raises:
        ImportError: plotly is not installed.
    """
    figures = _figures([row for row in rows if row["status"] == "ok"])
    return page_of("specds bench replay", _about(settings), figures, rows, _COLUMNS)


def _about(settings: Settings) -> str:
    return f"{settings.sentence()}. Tokenizer {settings.tokenizer}, specds {settings.specds}."


def _figures(rows: Sequence[Row]) -> Iterator[tuple[str, Any]]:
    """The id and the figure of each plot; of all transcripts together, where there are several."""
    graphs = require_plotly()
    together = [row for row in rows if row["transcripts"] == ALL] or list(rows)
    largest = [row for row in together if row["budget"] == _largest_budget(together)]
    # Where datastores are on the x axis, a line is named by its drafter alone.
    colors = _colors(_name(row, named, together) for named in ([], rows) for row in together)

    def lines(title: str, x: str, y: str, series: Series) -> Any:
        figure = graphs.Figure(
            [
                graphs.Scatter(
                    x=xs, y=ys, name=name, mode="lines+markers", line={"color": colors[name]}
                )
                for name, (xs, ys) in series.items()
            ]
        )
        return figure.update_layout(title=title, xaxis_title=x, yaxis_title=y)

    by_nodes = lines(
        "Acceptance length against nodes",
        "nodes per draft",
        _TOKENS,
        _series(together, rows, "nodes_per_draft", "mean_acceptance_length"),
    )
    yield "acceptance-by-nodes", by_nodes
    timed = [{**row, _TIME: _time(row)} for row in together if row["draft_p50_us"] is not None]
    by_time = lines(
        "Acceptance length against time",
        "µs to draft and to learn from it, at the median",
        _TOKENS,
        _series(timed, rows, _TIME, "mean_acceptance_length"),
    )
    yield "acceptance-by-time", by_time.update_xaxes(type="log")
    by_match = lines(
        f"Acceptance length against match length{_at_budget(largest)}",
        "tokens of context matched",
        _TOKENS,
        _nested(largest, rows, "acceptance_by_match_length", "match_length", _MEAN),
    )
    yield "acceptance-by-match-length", by_match
    with_datastore = [row for row in largest if row["datastore_tokens"]]
    by_size = lines(
        f"Acceptance length against datastore size{_at_budget(largest)}",
        "tokens in the datastore",
        _TOKENS,
        _series(with_datastore, [], "datastore_tokens", "mean_acceptance_length"),
    )
    sizes = sorted({row["datastore_tokens"] for row in with_datastore})
    shown = [f"{size / 1e6:.3g} M" for size in sizes]
    yield (
        "acceptance-by-datastore-size",
        by_size.update_xaxes(type="log", tickvals=sizes, ticktext=shown),
    )
    yield "emitted-by-source", _by_source(graphs, largest, rows)
    reliability = lines(
        f"Tokens accepted against tokens expected, by tenths of the drafts{_at_budget(largest)}",
        "expected accepted tokens of a draft",
        "accepted tokens",
        _nested(largest, rows, "reliability", "expected", "accepted"),
    )
    yield "reliability", _with_diagonal(reliability)


def _time(row: Row) -> float:
    """Microseconds of a step that a drafter takes; not every one learns from it."""
    return float(row["draft_p50_us"] + (row["observe_p50_us"] or 0.0))


def _colors(names: Iterable[str]) -> dict[str, str]:
    """A drafter has one color in all plots."""
    palette = import_module("plotly.colors").qualitative.Plotly
    return {
        name: palette[number % len(palette)] for number, name in enumerate(dict.fromkeys(names))
    }


_MEAN = "mean_acceptance_length"
_TIME = "step_p50_us"
_TOKENS = "tokens per forward"


def _largest_budget(rows: Sequence[Row]) -> int:
    return max((row["budget"] for row in rows), default=0)


def _at_budget(rows: Sequence[Row]) -> str:
    return f", {rows[0]['budget']} nodes at most" if rows else ""


def _series(chosen: Sequence[Row], rows: Sequence[Row], x: str, y: str) -> Series:
    """A line a drafter through its rows, in the order of x."""
    series: Series = {}
    for row in sorted(chosen, key=lambda row: row[x]):
        name = _name(row, rows, chosen)
        xs, ys = series.setdefault(name, ([], []))
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
    name = label(row, rows)
    return f"{name}, {row['transcripts']}" if several else name


def _by_source(graphs: Any, chosen: Sequence[Row], rows: Sequence[Row]) -> Any:
    names = [label(row, rows) for row in chosen]
    sources = sorted({source for row in chosen for source in row["emitted_by_source"]})
    bars = [
        graphs.Bar(name=source, x=names, y=[_share(row, source) for row in chosen])
        for source in sources
    ]
    title = f"Where each emitted token came from{_at_budget(chosen)}"
    figure = graphs.Figure(bars)
    return figure.update_layout(title=title, barmode="stack", yaxis_tickformat=".0%")


def _share(row: Row, source: str) -> float:
    emitted = row["emitted_by_source"]
    return float(emitted.get(source, 0) / max(sum(emitted.values()), 1))


def _with_diagonal(figure: Any) -> Any:
    largest = max((max(line.x, default=0) for line in figure.data), default=0)
    figure.add_shape(type="line", x0=0, y0=0, x1=largest, y1=largest, line={"dash": "dot"})
    return figure


_COLUMNS: Columns = (
    ("transcripts", "transcripts", str),
    ("drafter", "drafter", str),
    ("datastore", "datastore", str),
    ("budget", "budget", str),
    ("mean_acceptance_length", "tokens per forward", "{:.3f}".format),
    ("nodes_per_draft", "nodes per draft", "{:.1f}".format),
    ("draft_p50_us", "draft p50, µs", "{:.1f}".format),
    ("draft_p99_us", "draft p99, µs", "{:.1f}".format),
    ("observe_p50_us", "observe p50, µs", "{:.1f}".format),
    ("accepted_over_expected", "accepted / expected", "{:.2f}".format),
    ("status", "", str),
    ("reason", "", str),
)
