"""The figures as one page that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specds.bench.generation.report import label, level_figures, together
from specds.bench.page import Columns, page_of, require_plotly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specds.bench.generation.report import Row


def page(rows: Sequence[Row], costs: Sequence[Row], about: str) -> str:
    """The page, with the plotting library's script within.

    Args:
        rows: As `report` describes them.
        costs: As `curve` gives them.
        about: What was measured on what, in a sentence.

    Raises:
        ImportError: plotly is not installed.
    """
    measured = [row for row in rows if row["status"] == "ok"]
    shown = [{**row, "levels": _levels(row)} for row in rows]
    return page_of("specds bench generate", about, _figures(measured, costs), shown, _COLUMNS)


def _levels(row: Row) -> str:
    """What the levels of a hierarchy did for each target forward."""
    parts = [
        f"{name}: {passes:.1f} passes, {kept:.0%} kept" if passes else f"{name}: {kept:.0%} kept"
        for name, passes, kept in level_figures(row)
    ]
    return "; ".join(parts)


def _figures(rows: Sequence[Row], costs: Sequence[Row]) -> Iterator[tuple[str, Any]]:
    """The id and the figure of each plot."""
    graphs = require_plotly()
    single = [row for row in rows if row["batch"] == min(row["batch"] for row in rows)]
    yield "speed-up", _speed_ups(graphs, single, rows)
    yield "time-shares", _shares(graphs, single, rows)
    if costs:
        yield "pass-by-nodes", _passes(graphs, costs)
    if len(single) < len(rows):
        yield "speed-up-by-batch", _by_batch(graphs, rows)


def _speed_ups(graphs: Any, chosen: Sequence[Row], rows: Sequence[Row]) -> Any:
    """A group of bars for each file and mode, the spread of the runs on each bar."""
    figure = graphs.Figure()
    for name, alike in _by_label(chosen, rows).items():
        heights = [row["speed_up"] for row in alike]
        figure.add_bar(
            name=name,
            x=[_group(row) for row in alike],
            y=heights,
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


def _shares(graphs: Any, chosen: Sequence[Row], rows: Sequence[Row]) -> Any:
    timed = [row for row in chosen if row["shares"]]
    names = [f"{_group(row)}: {label(row, rows)}" for row in timed]
    phases = list(dict.fromkeys(phase for row in timed for phase in row["shares"]))
    bars = [
        graphs.Bar(name=phase, x=names, y=[row["shares"].get(phase, 0) for row in timed])
        for phase in phases
    ]
    return graphs.Figure(bars).update_layout(
        title="Where the time of a request went", barmode="stack", yaxis_tickformat=".0%"
    )


def _passes(graphs: Any, costs: Sequence[Row]) -> Any:
    figure = graphs.Figure()
    for context in dict.fromkeys(row["context"] for row in costs):
        of_context = [row for row in costs if row["context"] == context]
        figure.add_scatter(
            name=f"{context:,} tokens of context",
            x=[row["num_nodes"] for row in of_context],
            y=[row["ratio"] for row in of_context],
            mode="lines+markers",
        )
    return figure.update_layout(
        title="A pass by the nodes it verifies, over a pass without",
        xaxis_title="nodes",
        yaxis_title="times as long",
        showlegend=True,
    )


def _by_batch(graphs: Any, rows: Sequence[Row]) -> Any:
    figure = graphs.Figure()
    for name, alike in _by_label(together(rows), rows).items():
        for mode in dict.fromkeys(row["mode"] for row in alike):
            of_mode = [row for row in alike if row["mode"] == mode]
            figure.add_scatter(
                name=f"{name}, {mode}",
                x=[row["batch"] for row in of_mode],
                y=[row["speed_up"] for row in of_mode],
                mode="lines+markers",
            )
    figure.add_hline(y=1, line_dash="dot")
    sizes = sorted({row["batch"] for row in rows})
    figure.update_xaxes(type="log", tickvals=sizes, ticktext=list(map(str, sizes)))
    return figure.update_layout(
        title="Speed-up over the fastest plain decoding by prompts a call",
        xaxis_title="prompts a call",
        yaxis_title="times as fast",
    )


def _by_label(chosen: Sequence[Row], rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that can be held against plain decoding, by what generated."""
    grouped: dict[str, list[Row]] = {}
    for row in chosen:
        if row["speed_up"] is not None:
            grouped.setdefault(label(row, rows), []).append(row)
    return grouped


def _group(row: Row) -> str:
    return f"{row['transcripts']}, {row['mode']}"


_COLUMNS: Columns = (
    ("transcripts", "transcripts", str),
    ("mode", "mode", str),
    ("name", "", str),
    ("datastore", "datastore", lambda path: path.rstrip("/").rpartition("/")[2]),
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
