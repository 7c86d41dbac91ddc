"""The rows of the report: one for each group of prompts, mode, size of batch and way to generate.

docs/measuring.md lists the fields of a row. Times are seconds; a figure that there is not is null.
"""

from __future__ import annotations

from itertools import groupby
from statistics import mean
from typing import TYPE_CHECKING, Any

from specds.bench.harness import label, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specds.bench.generation.measure import Cell, Totals
    from specds.bench.harness import Columns, Document, Row
    from specds.stats import GenerationStats


def rows_of(cells: Sequence[Cell]) -> list[Row]:
    """The rows of all cells; speed-ups are over the baselines of the same place."""
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
        "kind": "drafter" if way.is_ours and not way.is_plain else "baseline",
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
        "decode_tokens_per_s": _mean([_decode_speed(run) for run in runs]),
        "first_token_s": _mean([run.first_s / run.num_calls for run in runs]),
        "fastest_plain": None if fastest is None else fastest.way.name,
        **_spread("speed_up", _ratios(cell, fastest, _speed)),
        "decode_speed_up": _mean(_ratios(cell, fastest, _decode_speed)),
        **_spread("speed_up_over_generate", _ratios(cell, generate, _speed)),
    }


def _speed(run: Totals) -> float:
    return run.num_tokens / run.seconds


def _decode_speed(run: Totals) -> float:
    """Tokens a second after the first token; of all tokens if the clock is too coarse."""
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


_COUNTS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "mean_acceptance_length")


def _drafting(cell: Cell) -> Row:
    stats, profiled = cell.stats, cell.profiled
    nodes = None if stats is None else stats.num_draft_tokens / max(stats.num_drafts, 1)
    return {
        **{name: getattr(stats, name, None) for name in _COUNTS},
        "nodes_per_draft": nodes,
        "shares": None if profiled is None else _shares(profiled),
        "outside_forward": None if profiled is None else _outside_forward(profiled),
        "num_differing": cell.num_differing,
    }


def _shares(stats: GenerationStats) -> dict[str, float]:
    shares = dict(stats.shares)
    return shares | {"rest": max(1 - sum(shares.values()), 0.0)}


def _outside_forward(stats: GenerationStats) -> float | None:
    shares = stats.shares
    # What an automatic budget measures before the first step belongs to none.
    steps = 1 - shares["prefill"] - shares.get("measure", 0.0)
    return 1 - shares["forward"] / steps if steps > 0 and stats.num_drafts else None


def altered(document: Document) -> list[Row]:
    """The rows of drafters that changed a greedy text in a precision where none may change."""
    if document["dtype"] not in ("float32", "float64"):
        return []
    rows = (row for row in document["rows"] if row["kind"] == "drafter")
    return [row for row in rows if row["num_differing"] and row["mode"] == "greedy"]


def sentence(document: Document) -> str:
    """One sentence on model, machine and versions."""
    threads = f", {document['num_threads']} threads" if document["device"] == "cpu" else ""
    runs = "one run" if document["runs"] == 1 else f"{document['runs']} runs"
    versions = ", ".join(f"{name} {document[name]}" for name in ("specds", "torch", "transformers"))
    about = f"{document['model']}, {document['dtype']}, {document['device']}{threads}"
    return f"{about}; {runs}; {versions}"


def tables(document: Document) -> list[Any]:
    """A table for each group, mode and size of batch, and the sentence."""
    rows = document["rows"]
    shown = [
        table(title, chosen, lambda row: way_label(row, rows), FIGURES)
        for title, chosen in groupby(rows, key=title_of)
    ]
    shown[-1].caption = CAPTION
    return [*shown, sentence(document)]


def title_of(row: Row) -> str:
    """Its group of prompts, mode and size of batch."""
    batch = f", batch {row['batch']}" if row["batch"] > 1 else ""
    return f"{row['transcripts']}, {row['mode']}{batch}"


def way_label(row: Row, rows: Sequence[Row]) -> str:
    """The name of a way, with datastore and budget where several ways share the name."""
    return label(row, rows, "datastore", "budget")


NAMES = ("transcripts", "mode", "name", "datastore", "budget", "batch")
FIGURES: Columns = (
    ("tokens_per_s", "/s", "{:.1f}"),
    ("speed_up", "x plain", "{:.2f}"),
    ("speed_up_min", "least", "{:.2f}"),
    ("speed_up_max", "most", "{:.2f}"),
    ("speed_up_over_generate", "x gen", "{:.2f}"),
    ("mean_acceptance_length", "tokens", "{:.2f}"),
    ("nodes_per_draft", "nodes", "{:.1f}"),
    ("outside_forward", "out", "{:.0%}"),
    ("num_differing", "diff", "{}"),
)
CAPTION = (
    "/s: tokens a second, prefill included, mean of the runs; x plain: speed over the fastest that "
    "makes one token a forward in the same run, from least to most; x gen: over model.generate; "
    "tokens: per forward; nodes: per draft; out: the share of a step, behind the prefill, that is "
    "not the forward; diff: texts that are not those of model.generate."
)
