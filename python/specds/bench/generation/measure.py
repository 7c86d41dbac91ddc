"""Every way over the same requests, in turn, so that a drift of the machine's speed hits all."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from specds.bench.transcripts import ALL
from specds.demo.measure import timed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specds.bench.generation.requests import Batch
    from specds.bench.generation.ways import Target, Way
    from specds.stats import GenerationStats


@dataclass(frozen=True)
class Mode:
    """How tokens are chosen: a name and keyword arguments of `model.generate`."""

    name: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Totals:
    """Sums over one run of all requests of a group.

    Attributes:
        num_calls: Calls.
        seconds: Their time, prefill included.
        first_s: The time of separate calls for the first token alone: prefill and fixed costs.
        num_tokens: Generated tokens.
        num_rows: Sequences.
    """

    num_calls: int = 0
    seconds: float = 0.0
    first_s: float = 0.0
    num_tokens: int = 0
    num_rows: int = 0

    def __add__(self, other: Totals) -> Totals:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Totals(*(mine + theirs for mine, theirs in pairs))


@dataclass
class Cell:
    """One way over one group of requests, in one mode and one size of batch.

    Attributes:
        runs: One element a run.
        stats: Statistics of all timed calls; None for `model.generate`, which has none.
        profiled: Statistics whose times wait for the device.
        num_differing: Texts that differ from those of `model.generate`; None if it did not run.
        reason: Why the way could not run; None if it did.
    """

    source: str
    mode: str
    batch: int
    way: Way
    runs: list[Totals] = field(default_factory=list)
    stats: GenerationStats | None = None
    profiled: GenerationStats | None = None
    num_differing: int | None = None
    reason: str | None = None

    @property
    def place(self) -> tuple[str, str, int]:
        """Cells with the same key are compared with each other."""
        return self.source, self.mode, self.batch

    def merge(self, other: Cell) -> None:
        """Adds the figures of another group, run by run."""
        runs = self.runs or [Totals() for _ in other.runs]
        self.runs = [mine + theirs for mine, theirs in zip(runs, other.runs, strict=True)]
        for name in ("stats", "profiled", "num_differing"):
            setattr(self, name, _sum(getattr(self, name), getattr(other, name)))


def _sum(first: Any, second: Any) -> Any:
    """The sum; the other one where one is None."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        target: The model.
        ways: Baselines and drafters.
        modes: How tokens are chosen.
        batches: The calls, by size of batch.
        runs: How often each call is made.
        seed: Every way starts a call from the same state of the random generator.
        warm_memory: Whether one drafter serves all calls of a run; no run profits from another.
    """

    target: Target
    ways: Sequence[Way]
    modes: Sequence[Mode]
    batches: dict[int, list[Batch]]
    runs: int
    seed: int
    warm_memory: bool

    @property
    def num_rounds(self) -> int:
        """Rounds of the plan; in a round every way does the same call."""
        calls = sum(len(batches) for batches in self.batches.values())
        return calls * len(self.modes) * (self.runs + self.profiles)

    @property
    def profiles(self) -> int:
        """Additional runs for `Cell.profiled`: 1 on a GPU, where waiting for it takes time."""
        return int(self.target.model.device.type != "cpu")

    def warming(self, way: Way, batches: Sequence[Batch]) -> list[Batch]:
        """The calls that a way does before it is timed: the longest and the shortest.

        The longest sizes the static cache, so nothing is compiled again later. Where passes are
        recorded as CUDA graphs, our loop does all calls, as drafts need passes of many sizes.
        """
        ordered = sorted(batches, key=lambda batch: batch.length, reverse=True)
        return ordered if way.is_ours and self.profiles else [ordered[0], ordered[-1]]


def measure(plan: Plan, progress: Callable[[str], None] = lambda _: None) -> list[Cell]:
    """Measures every way in every mode and size of batch.

    `progress` is told the mode before each round of calls.

    Returns:
        A cell for each size of batch, mode, group and way; if there are several groups, also for
        all of them together.
    """
    cells = []
    for size, batches in plan.batches.items():
        refused = _warm_up(plan, batches)
        for mode in plan.modes:
            cells += _measure_mode(plan, refused, mode, size, progress)
    return [*cells, *_together(cells)]


def _warm_up(plan: Plan, batches: Sequence[Batch]) -> dict[Way, str]:
    """Lets every way do some calls; returns the ways that fail, with the reason."""
    refused: dict[Way, str] = {}
    for way in plan.ways:
        try:
            call = way.start()
            for mode, batch in product(plan.modes, plan.warming(way, batches)):
                call(batch, batch.num_tokens, mode.settings)
        except (ValueError, RuntimeError) as error:  # whatever transformers or torch cannot do
            refused[way] = " ".join(str(error).split()) or type(error).__name__
    return refused


def _measure_mode(
    plan: Plan,
    refused: dict[Way, str],
    mode: Mode,
    size: int,
    progress: Callable[[str], None],
) -> list[Cell]:
    device = plan.target.model.device
    cells = {
        (source, way): Cell(source, mode.name, size, way, reason=refused.get(way))
        for source in dict.fromkeys(batch.source for batch in plan.batches[size])
        for way in plan.ways
    }
    ways = [way for way in plan.ways if way not in refused]
    for number in range(plan.runs + plan.profiles):
        is_profile = number >= plan.runs
        settings = mode.settings | ({"profile": True} if is_profile else {})
        chosen = [way for way in ways if way.is_ours or not is_profile]
        calls = [(way, way.start() if plan.warm_memory else None) for way in chosen]
        for place, batch in enumerate(plan.batches[size]):
            progress(mode.name)
            seed = plan.seed + place
            texts: dict[Way, list[list[int]]] = {}
            for way, call in calls:
                given = (batch, batch.num_tokens, settings)
                result, seconds = timed(seed, device, call or way.start(), *given)
                cell = cells[batch.source, way]
                if is_profile:
                    cell.profiled = _sum(cell.profiled, result.stats)
                    continue
                _, first_s = timed(seed, device, way.start(), batch, 1, settings)
                rows = result.token_ids
                if number == len(cell.runs):
                    cell.runs.append(Totals())
                cell.runs[number] += Totals(1, seconds, first_s, sum(map(len, rows)), len(rows))
                cell.stats = _sum(cell.stats, result.stats)
                texts[way] = rows
            if number == 0:
                _compare(batch.source, cells, texts)
    for cell in cells.values():
        cell.profiled = cell.profiled or cell.stats
    return list(cells.values())


def _compare(
    source: str,
    cells: dict[tuple[str, Way], Cell],
    texts: dict[Way, list[list[int]]],
) -> None:
    """Compares the texts of all ways with those of `model.generate`, if it ran."""
    expected = next((rows for way, rows in texts.items() if way.name == "generate"), None)
    if expected is not None:
        for way, rows in texts.items():
            cell = cells[source, way]
            number = sum(mine != theirs for mine, theirs in zip(rows, expected, strict=True))
            cell.num_differing = _sum(cell.num_differing, number)


def _together(cells: Sequence[Cell]) -> list[Cell]:
    """If there are several groups, one more cell for each mode, size and way: all groups."""
    merged: dict[tuple[int, str, Way], Cell] = {}
    if len({cell.source for cell in cells}) > 1:
        for cell in cells:
            key = (cell.batch, cell.mode, cell.way)
            together = Cell(ALL, cell.mode, cell.batch, cell.way, reason=cell.reason)
            merged.setdefault(key, together).merge(cell)
    return list(merged.values())
