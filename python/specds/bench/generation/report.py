"""The figures: one row a group of prompts, a mode, a size of batch and a way to generate.

docs/measuring.md lists the fields of a row. Times are seconds; a figure that there is not is null.
"""

from __future__ import annotations

from itertools import groupby
from statistics import mean
from typing import TYPE_CHECKING, Any

from specds.bench.harness import label, table, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table

    from specds.bench.generation.measure import Cell, Totals
    from specds.bench.harness import Document, Row
    from specds.stats import GenerationStats


def rows_of(cells: Sequence[Cell]) -> list[Row]:
    """The rows of all cells, each beside the baselines of its group, mode and size of batch."""
    return [
        _row(cell, [other for other in cells if other.place == cell.place and other.runs])
        for cell in cells
    ]


def _row(cell: Cell, measured: Sequence[Cell]) -> Row:
    way = cell.way
    return {
        "transcripts": cell.source,
        "mode": cell.mode,
        "batch": cell.batch,
        "name": way.name,
        "kind": "drafter" if way.baseline is None else "baseline",
        "budget": way.budget,
        "datastore": None if way.datastore is None else str(way.datastore.path),
        "status": "ok" if cell.reason is None else "refused",
        "reason": cell.reason,
        **_times(cell, measured),
        **_drafting(cell),
    }


def _times(cell: Cell, measured: Sequence[Cell]) -> Row:
    runs = cell.runs
    plain = (other for other in measured if other.way.is_plain)
    fastest = max(plain, key=lambda other: mean(map(_speed, other.runs)), default=None)
    generate = next((other for other in measured if other.way.name == "generate"), None)
    return {
        "num_requests": runs[0].num_rows if runs else None,
        "num_tokens": runs[0].num_tokens if runs else None,
        **_spread("tokens_per_s", [_speed(run) for run in runs]),
        "decode_tokens_per_s": mean(map(_decode_speed, runs)) if runs else None,
        "first_token_s": mean(run.first_s for run in runs) / cell.num_calls if runs else None,
        "fastest_plain": None if fastest is None else fastest.way.name,
        **_spread("speed_up", _ratios(cell, fastest, _speed)),
        "decode_speed_up": _mean(_ratios(cell, fastest, _decode_speed)),
        **_spread("speed_up_over_generate", _ratios(cell, generate, _speed)),
    }


def _speed(run: Totals) -> float:
    return run.num_tokens / run.seconds


def _decode_speed(run: Totals) -> float:
    """Tokens a second behind the first; that of all where the clock cannot tell them apart."""
    seconds, num_tokens = run.seconds - run.first_s, run.num_tokens - run.num_rows
    return num_tokens / seconds if seconds > 0 and num_tokens > 0 else _speed(run)


def _ratios(cell: Cell, other: Cell | None, speed: Callable[[Totals], float]) -> list[float]:
    pairs = zip(cell.runs, [] if other is None else other.runs, strict=False)
    return [speed(mine) / speed(theirs) for mine, theirs in pairs]


def _spread(name: str, values: Sequence[float]) -> Row:
    return {
        name: _mean(values),
        f"{name}_min": min(values, default=None),
        f"{name}_max": max(values, default=None),
    }


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _drafting(cell: Cell) -> Row:
    stats, profiled, divergences = cell.stats, cell.profiled, cell.divergences
    counts = (
        *("num_drafts", "num_draft_tokens", "num_accepted_tokens"),
        *("mean_acceptance_length", "redundancy", "target_utilization"),
    )
    figures: Row = dict.fromkeys((*counts, "levels", "nodes_per_draft", *_OF_TIME, *_OF_TEXT))
    if stats is not None:
        figures |= {name: getattr(stats, name) for name in counts}
        figures["levels"] = {name: vars(level) for name, level in stats.levels.items()}
        figures["nodes_per_draft"] = stats.num_draft_tokens / max(stats.num_drafts, 1)
    if profiled is not None:
        figures |= zip(_OF_TIME, (_shares(profiled), _outside_forward(profiled)), strict=True)
    if divergences is not None:
        texts = [vars(each) for each in divergences]
        figures |= zip(_OF_TEXT, (len(texts), texts), strict=True)
    return figures


_OF_TIME = ("shares", "outside_forward")
_OF_TEXT = ("num_differing", "divergences")


def _shares(stats: GenerationStats) -> dict[str, float]:
    shares = dict(stats.shares)
    return shares | {"rest": max(1 - sum(shares.values()), 0.0)}


def _outside_forward(stats: GenerationStats) -> float | None:
    shares = stats.shares
    # What an automatic budget measures before the first step belongs to none.
    steps = 1 - shares["prefill"] - shares.get("measure", 0.0)
    return 1 - shares["forward"] / steps if steps > 0 and stats.num_drafts else None


def altered(document: Document) -> list[Row]:
    """The rows of drafters that changed a text which rounding cannot excuse."""
    exact = document["dtype"] in ("float32", "float64")
    return [
        row
        for row in document["rows"]
        if row["kind"] == "drafter"
        and row["num_differing"]
        and (row["mode"] == "forced" or (row["mode"] == "greedy" and exact))
    ]


def sentence(document: Document) -> str:
    """What was measured on what, for people."""
    name = document["model"] or f"random weights of the shape {document['shape']}"
    threads = f", {document['num_threads']} threads" if document["device"] == "cpu" else ""
    runs = "one run" if document["runs"] == 1 else f"{document['runs']} runs"
    versions = ", ".join(f"{name} {document[name]}" for name in ("specds", "torch", "transformers"))
    return f"{name}, {document['dtype']}, {document['device']}{threads}; {runs}; {versions}"


def tables(document: Document) -> list[Any]:
    """All rows for people: speeds by group, mode and size of batch; time; passes by nodes."""
    rows, costs = document["rows"], document["verification_costs"]
    shown = [_speed_table(list(chosen), rows) for _, chosen in groupby(rows, key=_title)]
    shown[-1].caption = _CAPTION
    timed = [row for row in together(rows) if row["shares"]]
    if timed:
        shown.extend(_share_tables(timed, rows))
    layered = [row for row in rows if row["levels"]]
    if layered:
        shown.append(_level_table(layered, rows))
    if costs:
        shown.append(_cost_table(costs))
    return [*shown, sentence(document)]


_CAPTION = (
    "/s: tokens a second, prefill included, mean of the runs; dec/s: without the prefill; "
    "speed-up: against the fastest that makes one token a forward in the same run, from least to "
    "most; /gen: against model.generate; tokens: per forward; nodes: per draft; differ: texts that "
    "are not those of model.generate, or not the record where it is forced."
)


def _title(row: Row) -> str:
    batch = f", batch {row['batch']}" if row["batch"] > 1 else ""
    return f"{row['transcripts']}, {row['mode']}{batch}"


def way_label(row: Row, rows: Sequence[Row]) -> str:
    """What generated, with its datastore and its budget where there are several."""
    return label(row, rows, "datastore", "budget")


def _speed_table(chosen: Sequence[Row], rows: Sequence[Row]) -> Table:
    columns = ("/s", "dec/s", "speed-up", "", "/gen", "tokens", "nodes", "differ")
    made = table(_title(chosen[0]), "", *columns)
    for row in chosen:
        cells = [row["status"]]
        if row["status"] == "ok":
            cells = [_shown(row[name], form) for name, form in _SPEEDS]
            cells.insert(3, _range(row))
        made.add_row(way_label(row, rows), *cells)
    return made


_SPEEDS = (
    ("tokens_per_s", "{:.1f}"),
    ("decode_tokens_per_s", "{:.1f}"),
    ("speed_up", "{:.2f}x"),
    ("speed_up_over_generate", "{:.2f}x"),
    ("mean_acceptance_length", "{:.2f}"),
    ("nodes_per_draft", "{:.1f}"),
    ("num_differing", "{}"),
)


def _range(row: Row) -> str:
    least, most = row["speed_up_min"], row["speed_up_max"]
    return "" if least is None else f"{least:.2f}-{most:.2f}"


def _share_tables(timed: Sequence[Row], rows: Sequence[Row]) -> Iterator[Table]:
    phases = [
        phase
        for phase in timed[0]["shares"]
        if any(row["shares"][phase] >= _LEAST_SHARE for row in timed)
    ]
    for title, chosen in groupby(timed, key=_title):
        made = table(f"Shares of time: {title}", "", *phases, "outside")
        for row in chosen:
            cells = [f"{row['shares'][phase]:.0%}" for phase in phases]
            made.add_row(way_label(row, rows), *cells, _shown(row["outside_forward"], "{:.0%}"))
        yield made
    made.caption = "outside: the share of a step, behind the prefill, that is not the forward."


_LEAST_SHARE = 0.005
"""What is less in every row has no column."""


def _level_table(layered: Sequence[Row], rows: Sequence[Row]) -> Table:
    caption = (
        "sigma: the share of drafted tokens that the target rejected; eta: target forwards a "
        "token; passes: of a level's model for each target forward; kept: the share of what a "
        "level handed up that the level above kept."
    )
    made = table("Hierarchies", "", "sigma", "eta", "passes", "kept", caption=caption)
    for row in layered:
        sigma, eta = f"{row['redundancy']:.1%}", f"{row['target_utilization']:.1%}"
        made.add_row(f"{way_label(row, rows)}: {_title(row)}", sigma, eta)
        for name, passes, kept in level_figures(row):
            made.add_row(f"  {name}", "", "", f"{passes:.1f}" if passes else "", f"{kept:.1%}")
    return made


def level_figures(row: Row) -> list[tuple[str, float, float]]:
    """Of each level its name, its passes for each target forward, and the share that was kept."""
    return [
        (
            name,
            level["num_forwards"] / max(row["num_drafts"], 1),
            level["num_accepted"] / max(level["num_drafted"], 1),
        )
        for name, level in (row["levels"] or {}).items()
    ]


def _cost_table(costs: Sequence[Row]) -> Table:
    sizes = list(dict.fromkeys(row["num_nodes"] for row in costs))
    made = table("A pass by its nodes, over one without", "context", "ms", *map(str, sizes))
    for context, chosen in groupby(costs, key=lambda row: row["context"]):
        passes = list(chosen)
        ratios = [f"{row['ratio']:.2f}" for row in passes]
        made.add_row(f"{context:,}", f"{passes[0]['seconds'] * 1e3:.2f}", *ratios)
    return made


def _shown(value: Any, form: str) -> str:
    return "" if value is None else form.format(value)
