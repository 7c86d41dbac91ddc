"""The HTML page of `specds bench generate`: one file, no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specds.bench.drawing import Style, bars, shares
from specds.bench.generation.report import CAPTION, FIGURES, NAMES, sentence, title_of, way_label
from specds.bench.harness import Document, Row
from specds.bench.page import figure, page_of


def page(document: Document) -> str:
    measured = [row for row in document["rows"] if row["status"] == "ok"]
    return page_of(
        "specds bench generate",
        _headline(measured),
        sentence(document),
        document,
        _figures(measured),
        (NAMES, FIGURES, CAPTION),
    )


def _headline(rows: Sequence[Row]) -> str:
    """The headline: the fastest drafter against plain decoding of the same run."""
    drafted = [row for row in rows if row["kind"] == "drafter" and row["speed_up"]]
    if not drafted:
        return "No drafter could be held against plain decoding."
    best = max(drafted, key=lambda row: row["speed_up"])
    return (
        f"{best['name']} writes {best['tokens_per_s']:.0f} tokens/s, {best['speed_up']:.2f} times "
        f"the fastest plain decoding ({best['fastest_plain']}), {best['mode']}, "
        f"{best['mean_acceptance_length']:.2f} tokens a forward pass."
    )


def _figures(rows: Sequence[Row]) -> Iterator[str]:
    names = list(dict.fromkeys(way_label(row, rows) for row in rows))
    styles = {name: Style(number) for number, name in enumerate(names)}
    for field, title, caption in (
        (
            "speed_up",
            "Speed-up over the fastest plain decoding of the same run",
            "Above 1, drafts pay. In brackets the least and the most of the runs.",
        ),
        ("tokens_per_s", "Tokens a second", "What one waits for, prefill included."),
        (
            "expected_speed_up",
            "Speed-up to expect: tokens of a pass over its cost",
            "What drafts would gain over our plain loop if passes took all of the time. What is "
            "measured is lower by the time of drafting and of the loop.",
        ),
    ):
        groups: dict[str, dict[str, float]] = {}
        spread = {}
        for row in rows:
            if row[field] is not None:
                name = way_label(row, rows)
                groups.setdefault(title_of(row), {})[name] = row[field]
                if f"{field}_min" in row:
                    spread[title_of(row), name] = (row[f"{field}_min"], row[f"{field}_max"])
        yield figure(field.replace("_", "-"), title, caption, bars(groups, styles, spread))
    times = {
        f"{way_label(row, rows)}, {title_of(row)}": row["shares"] for row in rows if row["shares"]
    }
    phases = list(dict.fromkeys(phase for of_phase in times.values() for phase in of_phase))
    yield figure(
        "time-shares",
        "Where the time of a request went",
        "All but `prefill` and `forward` is what drafting costs; `measure` is spent once in a "
        "process.",
        shares(times, {phase: Style(number) for number, phase in enumerate(phases)}),
    )
