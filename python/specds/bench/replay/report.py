"""The figures of a replay: one row a file of transcripts, an engine and a budget.

A row, as `--json` prints it (rates and lengths are numbers, times are microseconds):

* ``transcripts``: the file's name without suffixes; ``all`` is all of them together.
* ``drafter``, ``datastore``, ``datastore_tokens``, ``budget``: what drafted, from what, and the
  most nodes of a draft; the datastore is null where the drafter takes none.
* ``status``: ``ok``; or ``absent``, a rival that is not installed; ``refused``, one whose answers
  were wrong; ``failed``, one that broke down. These have one row, for ``all``, a ``reason``, and
  null for every figure.
* ``num_requests``, ``num_drafts``, ``num_draft_tokens``, ``num_accepted_tokens``,
  ``num_accepted_tokens_per_pos``, ``num_emitted_tokens``: counts as in `GenerationStats`.
* ``mean_acceptance_length``: tokens a forward, the bonus token included; ``nodes_per_draft``.
* ``acceptance_by_position``: the share of drafts whose first, second, ... token was accepted.
* ``draft_p50_us``, ``draft_p99_us``, ``observe_p50_us``, ``observe_p99_us``: time to draft, and to
  learn what was accepted.
* ``emitted_by_source``: how many emitted tokens came from where; ``target`` is bonus tokens.
* ``acceptance_by_match_length``: ``match_length``, ``num_drafts`` and ``mean_acceptance_length`` of
  the drafts that were made from a match of that length; null where the drafter does not tell.
* ``expected_accepted_tokens``: how many tokens the drafter expected to be accepted, the sum of its
  nodes' probabilities; ``accepted_over_expected``: what came of it, 1 at best; ``reliability``: the
  mean of both, ``expected`` and ``accepted``, in ``num_drafts`` drafts, for ten equal parts of the
  drafts in the order of what was expected. Null where the drafter gives no probabilities.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

from specds.bench.replay.trace import Trace
from specds.bench.transcripts import ALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specds.bench.replay.measure import Cell

Row = dict[str, Any]

_PARTS = 10


@dataclass(frozen=True)
class Settings:
    """What the rows of a report have in common.

    Attributes:
        specds: The release.
        tokenizer: Its name.
        order: Of the requests.
        seed: Of the order, where it is a shuffled one.
        warm_memory: Whether a drafter keeps what earlier requests taught it.
        memory_tokens: So many tokens were in the fused drafter's memory when it started.
        limit: The most requests of a file; None is all.
        weights: The file of weights that the fused drafter started from, or ``none``; None is the
            datastore's prior.
    """

    specds: str
    tokenizer: str
    order: str
    seed: int
    warm_memory: bool
    limit: int | None
    memory_tokens: int = 0
    weights: str | None = None

    def sentence(self) -> str:
        """The mode of the run, for people."""
        order = "in file order" if self.order == "file" else f"shuffled by seed {self.seed}"
        memory = "one drafter for all requests" if self.warm_memory else "a new drafter for each"
        memory += f", {self.memory_tokens:,} tokens in its memory" if self.memory_tokens else ""
        limited = "" if self.limit is None else f", {self.limit} a file at most"
        started = "" if self.weights is None else f"; fused from {self.weights}"
        return f"requests {order}{limited}; {memory}{started}"


def rows_of(cell: Cell) -> list[Row]:
    """The rows of a cell, one a group of transcripts."""
    traces: dict[str, Trace | None] = dict(cell.traces) or {ALL: None}
    datastore = cell.engine.datastore
    about = {
        "drafter": cell.engine.name,
        "datastore": None if datastore is None else str(datastore.path),
        "datastore_tokens": None if datastore is None else datastore.num_tokens,
        "budget": cell.budget,
        "status": cell.status,
        "reason": cell.reason,
    }
    return [{"transcripts": group, **about, **figures(trace)} for group, trace in traces.items()]


def figures(trace: Trace | None) -> Row:
    """The figures of a trace; all null where there is none."""
    if trace is None:
        return dict.fromkeys(figures(Trace()))
    stats = trace.stats
    drafts = max(stats.num_drafts, 1)
    return {
        "num_requests": trace.num_requests,
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "num_accepted_tokens_per_pos": stats.num_accepted_tokens_per_pos,
        "num_emitted_tokens": stats.num_emitted_tokens,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "nodes_per_draft": stats.num_draft_tokens / drafts,
        "acceptance_by_position": [n / drafts for n in stats.num_accepted_tokens_per_pos],
        "draft_p50_us": _percentile_us(trace.draft_ns, 50),
        "draft_p99_us": _percentile_us(trace.draft_ns, 99),
        "observe_p50_us": _percentile_us(trace.observe_ns, 50),
        "observe_p99_us": _percentile_us(trace.observe_ns, 99),
        "emitted_by_source": dict(trace.sources),
        "acceptance_by_match_length": _by_match_length(trace),
        **_calibration(trace),
    }


def _percentile_us(elapsed_ns: Sequence[int], percentile: float) -> float | None:
    return float(np.percentile(elapsed_ns, percentile)) / 1e3 if elapsed_ns else None


def _by_match_length(trace: Trace) -> list[Row] | None:
    if not trace.match_lengths:
        return None
    accepted: dict[int, list[int]] = defaultdict(list)
    for length, count in zip(trace.match_lengths, trace.accepted, strict=True):
        accepted[length].append(count)
    return [
        {
            "match_length": length,
            "num_drafts": len(counts),
            "mean_acceptance_length": 1 + sum(counts) / len(counts),
        }
        for length, counts in sorted(accepted.items())
    ]


def _calibration(trace: Trace) -> Row:
    expected, accepted = np.array(trace.expected), np.array(trace.accepted)
    total = float(expected.sum())
    if total == 0:
        return dict.fromkeys(("expected_accepted_tokens", "accepted_over_expected", "reliability"))
    parts = np.array_split(np.argsort(expected, kind="stable"), _PARTS)
    return {
        "expected_accepted_tokens": total,
        "accepted_over_expected": float(accepted.sum()) / total,
        "reliability": [
            {
                "expected": float(expected[part].mean()),
                "accepted": float(accepted[part].mean()),
                "num_drafts": len(part),
            }
            for part in parts
            if len(part)
        ],
    }


def label(row: Row, rows: Iterable[Row]) -> str:
    """A drafter's name, with its datastore where the report has several."""
    several = len({other["datastore"] for other in rows if other["datastore"]}) > 1
    if row["datastore"] is None or not several:
        return str(row["drafter"])
    return f"{row['drafter']}, {row['datastore'].rstrip('/').rpartition('/')[2]}"


def tables(rows: Sequence[Row], settings: Settings) -> list[Table]:
    """All rows for people: a table for each group of transcripts."""
    shown = []
    for group, chosen in groupby(rows, key=lambda row: str(row["transcripts"])):
        table = Table(title=f"Replay of {group}", title_justify="left", box=SIMPLE)
        table.pad_edge, table.collapse_padding = False, True
        table.add_column("drafter", overflow="fold")
        for name in ("nodes", "of", "tokens", "1st", "2nd", "4th", "p50", "p99", "learn"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in chosen:
            table.add_row(label(row, rows), *_shown_figures(row))
        shown.append(table)
    shown[-1].caption = f"{settings.sentence()}. {_CAPTION}"
    shown[-1].caption_justify = "left"
    return shown


_CAPTION = (
    "nodes: drafted, of so many at most; tokens: per forward, bonus token included; 1st: share of "
    "drafts whose first token was accepted; p50, p99: µs to draft; learn: median "
    "µs to observe what was accepted."
)


def _shown_figures(row: Row) -> list[str]:
    if row["status"] != "ok":
        return [row["status"], str(row["budget"])]
    rates = dict(enumerate(row["acceptance_by_position"], start=1))
    names = ("draft_p50_us", "draft_p99_us", "observe_p50_us")
    times = (row[name] for name in names)
    return [
        f"{row['nodes_per_draft']:.1f}",
        str(row["budget"]),
        f"{row['mean_acceptance_length']:.3f}",
        *(f"{rates.get(position, 0):.0%}" for position in (1, 2, 4)),
        *map(_microseconds, times),
    ]


def _microseconds(time: float | None) -> str:
    if time is None:
        return ""
    return f"{time:.1f}" if time < 1000 else f"{time:.0f}"
