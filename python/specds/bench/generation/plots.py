"""The figures as one page that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specds.bench.generation.report import level_figures, sentence, way_label
from specds.bench.harness import folder_name, together
from specds.bench.page import line_plot, page_of, require_plotly, share_bars

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specds.bench.harness import Columns, Document, Row
    from specds.bench.page import Series


def page(document: Document) -> str:
    """The page, with the plotting library's script within.

    Raises:
        ImportError: plotly is not installed.
    """
    require_plotly()
    rows = document["rows"]
    measured = [row for row in rows if row["status"] == "ok"]
    shown = [{**row, "levels": _levels(row)} for row in rows]
    figures = _figures(measured, document["verification_costs"])
    return page_of("specds bench generate", sentence(document), figures, shown, _COLUMNS)


def _levels(row: Row) -> str:
    """What the levels of a hierarchy did for each target forward."""
    parts = [
        f"{name}: {passes:.1f} passes, {kept:.0%} kept" if passes else f"{name}: {kept:.0%} kept"
        for name, passes, kept in level_figures(row)
    ]
    return "; ".join(parts)


def _figures(rows: Sequence[Row], costs: Sequence[Row]) -> Iterator[tuple[str, Any]]:
    """The id and the figure of each plot."""
    smallest = min((row["batch"] for row in rows), default=1)
    single = [row for row in rows if row["batch"] == smallest]
    yield "speed-up", _speed_ups(single, rows)
    shares = {
        f"{_group(row)}: {way_label(row, rows)}": row["shares"] for row in single if row["shares"]
    }
    yield "time-shares", share_bars("Where the time of a request went", shares)
    if costs:
        yield "pass-by-nodes", _passes(costs)
    if len(single) < len(rows):
        yield "speed-up-by-batch", _by_batch(rows)


def _speed_ups(chosen: Sequence[Row], rows: Sequence[Row]) -> Any:
    """A group of bars for each file and mode, the spread of the runs on each bar."""
    figure = require_plotly().Figure()
    for name, alike in _by_label(chosen, rows).items():
        figure.add_bar(
            name=name,
            x=[_group(row) for row in alike],
            y=[row["speed_up"] for row in alike],
            error_y={
                "type": "data",
                "array": [row["speed_up_max"] - row["speed_up"] for row in alike],
                "arrayminus": [row["speed_up"] - row["speed_up_min"] for row in alike],
            },
        )
    figure.add_hline(y=1, line_dash="dot")
    return figure.update_layout(
        title="Speed-up over the fastest plain decoding of the same run",
        barmode="group",
        yaxis_title="times as fast",
    )


def _passes(costs: Sequence[Row]) -> Any:
    series: Series = {}
    for row in costs:
        name = f"{row['context']:,} tokens of context"
        sizes, ratios = series.setdefault(name, ([], []))
        sizes.append(row["num_nodes"])
        ratios.append(row["ratio"])
    title = "A pass by the nodes it verifies, over a pass without"
    return line_plot(title, "nodes", "times as long", series, showlegend=True)


def _by_batch(rows: Sequence[Row]) -> Any:
    series: Series = {}
    for name, alike in _by_label(together(rows), rows).items():
        for row in alike:
            sizes, speeds = series.setdefault(f"{name}, {row['mode']}", ([], []))
            sizes.append(row["batch"])
            speeds.append(row["speed_up"])
    title = "Speed-up over the fastest plain decoding by prompts a call"
    figure = line_plot(title, "prompts a call", "times as fast", series)
    figure.add_hline(y=1, line_dash="dot")
    sizes = sorted({row["batch"] for row in rows})
    return figure.update_xaxes(type="log", tickvals=sizes, ticktext=list(map(str, sizes)))


def _by_label(chosen: Sequence[Row], rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that can be held against plain decoding, by what generated."""
    grouped: dict[str, list[Row]] = {}
    for row in chosen:
        if row["speed_up"] is not None:
            grouped.setdefault(way_label(row, rows), []).append(row)
    return grouped


def _group(row: Row) -> str:
    return f"{row['transcripts']}, {row['mode']}"


_COLUMNS: Columns = (
    ("transcripts", "transcripts", str),
    ("mode", "mode", str),
    ("name", "", str),
    ("datastore", "datastore", folder_name),
    ("budget", "budget", str),
    ("batch", "batch", str),
    ("tokens_per_s", "tokens/s", "{:.1f}".format),
    ("decode_tokens_per_s", "without prefill", "{:.1f}".format),
    ("speed_up", "speed-up", "{:.2f}".format),
    ("fastest_plain", "over", str),
    ("speed_up_over_generate", "over generate", "{:.2f}".format),
    ("mean_acceptance_length", "tokens per forward", "{:.2f}".format),
    ("nodes_per_draft", "nodes per draft", "{:.1f}".format),
    ("redundancy", "sigma", "{:.1%}".format),
    ("target_utilization", "eta", "{:.1%}".format),
    ("levels", "levels", str),
    ("outside_forward", "outside the forward", "{:.1%}".format),
    ("num_differing", "differing", str),
    ("status", "", str),
    ("reason", "", str),
)
