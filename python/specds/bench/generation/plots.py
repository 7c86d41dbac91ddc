"""The figures as one page that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specds.bench.generation.report import level_figures, sentence, way_label
from specds.bench.harness import folder_name, together
from specds.bench.page import Figure, page_of, styles_of
from specds.bench.svg import Style, bars, lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specds.bench.harness import Columns, Document, Row
    from specds.bench.svg import Points


def page(document: Document) -> str:
    """The page."""
    rows = [{**row, "levels": _levels(row)} for row in document["rows"]]
    measured = [row for row in document["rows"] if row["status"] == "ok"]
    return page_of(
        "specds bench generate",
        _headline(measured),
        sentence(document),
        {**document, "rows": rows},
        _figures(measured, document["verification_costs"]),
        _COLUMNS,
    )


def _headline(rows: Sequence[Row]) -> str:
    """What came out: the fastest drafter, beside plain decoding of the same run."""
    drafted = [row for row in together(rows) if row["kind"] == "drafter" and row["speed_up"]]
    if not drafted:
        return "No drafter could be held against plain decoding."
    best = max(drafted, key=lambda row: row["speed_up"])
    return (
        f"{best['name']} writes {best['tokens_per_s']:.0f} tokens/s, {best['speed_up']:.2f} times "
        f"the fastest plain decoding ({best['fastest_plain']}), {best['mode']}, "
        f"{best['mean_acceptance_length']:.2f} tokens a forward pass."
    )


def _levels(row: Row) -> str:
    """What the levels of a hierarchy did for each target forward."""
    parts = [
        f"{name}: {passes:.1f} passes, {kept:.0%} kept" if passes else f"{name}: {kept:.0%} kept"
        for name, passes, kept in level_figures(row)
    ]
    return "; ".join(parts)


def _figures(rows: Sequence[Row], costs: Sequence[Row]) -> Iterator[Figure]:
    smallest = min((row["batch"] for row in rows), default=1)
    single = [row for row in rows if row["batch"] == smallest]
    styles = styles_of(
        [{**row, "drafter": way_label(row, rows)} for row in rows],
        [(way_label(row, rows), {**row, "drafter": way_label(row, rows)}) for row in rows],
    )
    yield Figure(
        "speed-up",
        "Speed-up over the fastest plain decoding of the same run",
        "Above 1, drafts pay. The thin lines go from the least to the most of the runs.",
        bars(
            _grouped(single, rows, "speed_up"),
            styles,
            "times as fast",
            spread=_spread(single, rows),
        ),
    )
    yield Figure(
        "tokens-per-s",
        "Tokens a second",
        "What one waits for, prefill included.",
        bars(_grouped(single, rows, "tokens_per_s"), styles, "tokens/s"),
    )
    shares = {
        f"{way_label(row, rows)}, {_group(row, rows)}": row["shares"]
        for row in single
        if row["shares"]
    }
    phases = list(dict.fromkeys(phase for share in shares.values() for phase in share))
    yield Figure(
        "time-shares",
        "Where the time of a request went",
        "All but `prefill` and `forward` is what drafting costs; `measure` is spent once for a "
        "model and a machine, and kept.",
        bars(
            shares,
            {phase: Style(number) for number, phase in enumerate(phases)},
            "share of time",
            stacked=True,
            percent=True,
        ),
    )
    if costs:
        yield _passes(costs)
        yield Figure(
            "speed-up-to-expect",
            "Speed-up to expect: tokens of a forward over the cost of its pass",
            "What drafts would gain if passes took all of the time, at the shortest context above. "
            "What is measured is lower by the time that drafting and the loop take.",
            bars(_grouped(_expecting(single, costs), rows, "expected"), styles, "times as fast"),
        )
    if len(single) < len(rows):
        series: dict[str, Points] = {}
        for row in together(rows):
            if row["speed_up"] is not None:
                name = f"{way_label(row, rows)}, {row['mode']}"
                sizes, speeds = series.setdefault(name, ([], []))
                sizes.append(row["batch"])
                speeds.append(row["speed_up"])
        in_batches = {
            f"{way_label(row, rows)}, {row['mode']}": styles[way_label(row, rows)] for row in rows
        }
        yield Figure(
            "speed-up-by-batch",
            "Speed-up over the fastest plain decoding by prompts a call",
            "A batch uses what a single prompt leaves idle, so drafts gain less.",
            lines(series, in_batches, "prompts a call", "times as fast", log_x=True),
        )


def _expecting(rows: Sequence[Row], costs: Sequence[Row]) -> list[Row]:
    """The rows that drafted, and the speed-up that their acceptance is worth."""
    shortest = [row for row in costs if row["context"] == costs[0]["context"]]
    sizes, ratios = ([row[name] for row in shortest] for name in ("num_nodes", "ratio"))
    return [
        row
        | {
            "expected": row["mean_acceptance_length"]
            / float(np.interp(row["nodes_per_draft"], sizes, ratios))
        }
        for row in rows
        if row["mean_acceptance_length"] is not None
    ]


def _passes(costs: Sequence[Row]) -> Figure:
    """What a pass costs by its nodes."""
    series: dict[str, Points] = {}
    for row in costs:
        sizes, ratios = series.setdefault(f"{row['context']:,} tokens of context", ([], []))
        sizes.append(row["num_nodes"])
        ratios.append(row["ratio"])
    return Figure(
        "pass-by-nodes",
        "A pass by the nodes it verifies, over a pass without",
        "As long as the line is near 1, nodes are free.",
        lines(
            series,
            {name: Style(number) for number, name in enumerate(series)},
            "nodes",
            "times as long",
        ),
    )


def _grouped(chosen: Sequence[Row], rows: Sequence[Row], field: str) -> dict[str, dict[str, float]]:
    grouped: dict[str, dict[str, float]] = {}
    for row in chosen:
        if row[field] is not None:
            grouped.setdefault(_group(row, rows), {})[way_label(row, rows)] = row[field]
    return grouped


def _spread(
    chosen: Sequence[Row], rows: Sequence[Row]
) -> dict[tuple[str, str], tuple[float, float]]:
    return {
        (_group(row, rows), way_label(row, rows)): (row["speed_up_min"], row["speed_up_max"])
        for row in chosen
        if row["speed_up"] is not None
    }


def _group(row: Row, rows: Sequence[Row]) -> str:
    several = len({other["transcripts"] for other in rows}) > 1
    return f"{row['transcripts']}, {row['mode']}" if several else str(row["mode"])


_COLUMNS: Columns = (
    ("transcripts", "transcripts", str),
    ("mode", "mode", str),
    ("name", "", str),
    ("datastore", "datastore", folder_name),
    ("budget", "budget", "{}".format),
    ("batch", "batch", "{}".format),
    ("tokens_per_s", "tokens/s", "{:.1f}".format),
    ("decode_tokens_per_s", "without prefill", "{:.1f}".format),
    ("speed_up", "speed-up", "{:.2f}".format),
    ("fastest_plain", "over the plain", str),
    ("speed_up_over_generate", "over generate", "{:.2f}".format),
    ("mean_acceptance_length", "tokens per forward", "{:.2f}".format),
    ("nodes_per_draft", "nodes per draft", "{:.1f}".format),
    ("redundancy", "rejected of drafted", "{:.1%}".format),
    ("target_utilization", "passes a token", "{:.1%}".format),
    ("levels", "levels of a hierarchy", str),
    ("outside_forward", "outside the forward", "{:.1%}".format),
    ("num_differing", "differing", "{}".format),
    ("status", "", str),
    ("reason", "", str),
)
