"""The figures: one row a group of prompts, a mode, a size of batch and a way to generate.

A row, as `--json` prints it (times are seconds; a figure that there is not is null):

* ``transcripts``: the file's name without suffixes, ``held-out`` for the demo's prompts; ``all`` is
  all of them together.
* ``mode``: ``greedy``, ``sampled`` or ``forced``; ``batch``: prompts a call.
* ``name``, ``kind``: a baseline or a drafter; ``budget``: the most nodes of its drafts, or
  ``auto``; ``datastore``: what it drafts from.
* ``status``: ``ok``, or ``refused``, with the ``reason``: that cannot be run on this model.
* ``num_requests``, ``num_tokens``: prompts, and tokens generated, in one run.
* ``tokens_per_s`` with ``_min`` and ``_max``: mean, least and most of the runs, prefill included;
  ``decode_tokens_per_s``: without the prefill, that is the time of a call for one token.
* ``first_token_s``: time to the first token, mean of all calls.
* ``speed_up`` with ``_min`` and ``_max``: against ``fastest_plain``, the fastest baseline that
  makes one token a forward, run by run; ``decode_speed_up``: the same without the prefill;
  ``speed_up_over_generate`` with ``_min`` and ``_max``: against `model.generate` as it is.
* ``num_drafts``, ``num_draft_tokens``, ``num_accepted_tokens``: as in `GenerationStats`, of all
  runs; ``mean_acceptance_length``: tokens a forward, bonus token included; ``nodes_per_draft``;
  ``redundancy`` and ``target_utilization``: HSDDW's sigma and eta; ``levels``: of a hierarchy.
* ``shares``: of the time of a request, by phase; ``rest`` is the loop itself.
  ``outside_forward``: the share of the steps after the prefill that is not the target's forward.
* ``num_differing``: texts that are not those of `model.generate` or, where it is forced, not those
  of the record; ``divergences``: where, as `Divergence`.
"""

from __future__ import annotations

from itertools import groupby
from statistics import mean
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.table import Table

from specds.bench.transcripts import ALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from specds.bench.generation.measure import Cell, Totals
    from specds.stats import GenerationStats

Row = dict[str, Any]


def rows_of(cells: Sequence[Cell]) -> list[Row]:
    """The rows of all cells, each beside the baselines of its group, mode and size of batch."""
    rows = []
    for cell in cells:
        beside = [other for other in cells if _place(other) == _place(cell)]
        rows.append(_row(cell, beside))
    return rows


def _place(cell: Cell) -> tuple[str, str, int]:
    return cell.source, cell.mode, cell.batch


def _row(cell: Cell, beside: Iterable[Cell]) -> Row:
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
        **_times(cell, [other for other in beside if other.runs]),
        **_drafting(cell),
    }


def _times(cell: Cell, measured: Sequence[Cell]) -> Row:
    runs = cell.runs
    fastest = max(
        (other for other in measured if other.way.is_plain), key=_mean_speed, default=None
    )
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


def _mean_speed(cell: Cell) -> float:
    return mean(map(_speed, cell.runs))


def _ratios(cell: Cell, other: Cell | None, speed: Callable[[Totals], float]) -> list[float]:
    if other is None:
        return []
    return [
        speed(mine) / speed(theirs) for mine, theirs in zip(cell.runs, other.runs, strict=False)
    ]


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
    return {
        **{name: None if stats is None else getattr(stats, name) for name in counts},
        "levels": None if stats is None else {n: vars(lvl) for n, lvl in stats.levels.items()},
        "nodes_per_draft": (
            None if stats is None else stats.num_draft_tokens / max(stats.num_drafts, 1)
        ),
        "shares": None if profiled is None else _shares(profiled),
        "outside_forward": None if profiled is None else _outside_forward(profiled),
        "num_differing": None if divergences is None else len(divergences),
        "divergences": None if divergences is None else [vars(each) for each in divergences],
    }


def _shares(stats: GenerationStats) -> dict[str, float]:
    shares = dict(stats.shares)
    return shares | {"rest": max(1 - sum(shares.values()), 0.0)}


def _outside_forward(stats: GenerationStats) -> float | None:
    shares = stats.shares
    # What an automatic budget measures before the first step belongs to none.
    steps = 1 - shares["prefill"] - shares.get("measure", 0.0)
    return 1 - shares["forward"] / steps if steps > 0 and stats.num_drafts else None


def label(row: Row, rows: Iterable[Row]) -> str:
    """A row's name, with its datastore and its budget where the report has several."""
    alike = [other for other in rows if other["name"] == row["name"]]
    parts = [row["name"]]
    if len({other["datastore"] for other in alike}) > 1:
        parts.append(row["datastore"].rstrip("/").rpartition("/")[2])
    if len({other["budget"] for other in alike}) > 1:
        parts.append(str(row["budget"]))
    return ", ".join(parts)


def together(rows: Sequence[Row]) -> list[Row]:
    """The rows of all groups together, where there are several; else of the only one."""
    return [row for row in rows if row["transcripts"] == ALL] or list(rows)


def tables(rows: Sequence[Row], costs: Sequence[Row]) -> list[Table]:
    """All rows for people: speeds by group, mode and size of batch; time; passes by nodes."""
    shown = [
        _speed_table(place, list(chosen), rows) for place, chosen in groupby(rows, key=_place_of)
    ]
    shown[-1].caption, shown[-1].caption_justify = _CAPTION, "left"
    timed = [row for row in together(rows) if row["shares"]]
    if timed:
        shown.append(_share_table(timed, rows))
    layered = [row for row in rows if row["levels"]]
    if layered:
        shown.append(_level_table(layered, rows))
    if costs:
        shown.append(_cost_table(costs))
    return shown


_CAPTION = (
    "/s: tokens a second, prefill included, mean of the runs; dec/s: without the prefill; "
    "speed-up: against the fastest that makes one token a forward in the same run, from least to "
    "most; /gen: against model.generate; tokens: per forward; nodes: per draft; differ: texts that "
    "are not those of model.generate, or not the record where it is forced."
)


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.pad_edge, table.collapse_padding = False, True
    table.add_column(first, overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _place_of(row: Row) -> list[Any]:
    return [row[name] for name in ("transcripts", "mode", "batch")]


def _title(place: Sequence[Any]) -> str:
    source, mode, batch = place
    return f"{source}, {mode}" + (f", batch {batch}" if batch > 1 else "")


def _speed_table(place: Sequence[Any], chosen: Sequence[Row], rows: Sequence[Row]) -> Table:
    columns = ("/s", "dec/s", "speed-up", "", "/gen", "tokens", "nodes", "differ")
    table = _table(_title(place), "", *columns)
    for row in chosen:
        if row["status"] != "ok":
            table.add_row(label(row, rows), row["status"])
            continue
        table.add_row(
            label(row, rows),
            _shown(row["tokens_per_s"], "{:.1f}"),
            _shown(row["decode_tokens_per_s"], "{:.1f}"),
            _shown(row["speed_up"], "{:.2f}x"),
            _range(row),
            _shown(row["speed_up_over_generate"], "{:.2f}x"),
            _shown(row["mean_acceptance_length"], "{:.2f}"),
            _shown(row["nodes_per_draft"], "{:.1f}"),
            _shown(row["num_differing"], "{}"),
        )
    return table


def _range(row: Row) -> str:
    least, most = row["speed_up_min"], row["speed_up_max"]
    return "" if least is None else f"{least:.2f}-{most:.2f}"


def _share_table(timed: Sequence[Row], rows: Sequence[Row]) -> Table:
    phases = list(timed[0]["shares"])
    table = _table("Shares of time", "", *phases, "outside")
    table.caption = "outside: the share of a step, behind the prefill, that is not the forward."
    table.caption_justify = "left"
    for row in timed:
        name = f"{label(row, rows)}: {_title(_place_of(row))}"
        cells = [f"{row['shares'][phase]:.1%}" for phase in phases]
        table.add_row(name, *cells, _shown(row["outside_forward"], "{:.1%}"))
    return table


def _level_table(layered: Sequence[Row], rows: Sequence[Row]) -> Table:
    table = _table("Hierarchies", "", "sigma", "eta", "passes", "kept")
    table.caption = (
        "sigma: the share of drafted tokens that the target rejected; eta: target forwards a "
        "token; passes: of a level's model for each target forward; kept: the share of what a "
        "level handed up that the level above kept."
    )
    table.caption_justify = "left"
    for row in layered:
        sigma, eta = f"{row['redundancy']:.1%}", f"{row['target_utilization']:.1%}"
        table.add_row(f"{label(row, rows)}: {_title(_place_of(row))}", sigma, eta)
        for name, passes, kept in level_figures(row):
            table.add_row(f"  {name}", "", "", f"{passes:.1f}" if passes else "", f"{kept:.1%}")
    return table


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
    table = _table("A pass by its nodes, over one without", "context", "ms", *map(str, sizes))
    for context, chosen in groupby(costs, key=lambda row: row["context"]):
        passes = list(chosen)
        ratios = [f"{row['ratio']:.2f}" for row in passes]
        table.add_row(f"{context:,}", f"{passes[0]['seconds'] * 1e3:.2f}", *ratios)
    return table


def _shown(value: Any, form: str) -> str:
    return "" if value is None else form.format(value)
