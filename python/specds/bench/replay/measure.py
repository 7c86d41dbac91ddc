"""Every engine at every budget over the same answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from specds.bench.engines import EngineError
from specds.bench.replay.trace import Trace, replay
from specds.bench.transcripts import ALL
from specds.drafters import FusedDrafter

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from specds.bench.engines import Engine
    from specds.bench.replay.trace import Shape
    from specds.bench.transcripts import Transcript
    from specds.drafters import Drafter, Session


@dataclass(frozen=True)
class Cell:
    """An engine at a budget.

    Attributes:
        engine: What drafted.
        budget: The most nodes of a draft.
        traces: By file of transcripts, and of all together; empty where it was not run.
        status: ``ok``, or that of the `EngineError` for which it was not run.
        reason: Why it was not run.
    """

    engine: Engine
    budget: int
    traces: dict[str, Trace] = field(default_factory=dict)
    status: str = "ok"
    reason: str | None = None


def measure(
    engines: Sequence[Engine],
    budgets: Sequence[int],
    transcripts: Sequence[Transcript],
    *,
    warm_memory: bool,
    shape: Shape = "tree",
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Cell]:
    """Yields each cell as it is measured.

    Args:
        engines: What drafts.
        budgets: The most nodes of a draft.
        transcripts: In the order in which they are replayed.
        warm_memory: Whether a drafter serves all requests of a cell, as that of a server does, and
            keeps what earlier ones taught it; otherwise there is a new one for each. No cell
            profits from another.
        shape: Of a draft.
        progress: Told the engine's name before each request.
    """
    for engine in engines:
        for budget in budgets:
            try:
                with engine.open() as make:
                    drafter_of = _warm(make) if warm_memory else make
                    told = partial(progress, engine.name)
                    traces = replay_all(drafter_of, budget, transcripts, told, shape)
            except EngineError as error:
                yield Cell(engine, budget, status=error.status, reason=str(error))
            else:
                if len(traces) > 1:
                    traces[ALL] = together(traces.values())
                yield Cell(engine, budget, traces)


def _warm(make: Callable[[], Drafter]) -> Callable[[], Drafter]:
    drafter = make()
    return lambda: drafter


def replay_all(
    drafter_of: Callable[[], Drafter],
    budget: int,
    transcripts: Sequence[Transcript],
    progress: Callable[[], None] = lambda: None,
    shape: Shape = "tree",
) -> dict[str, Trace]:
    """Replays every transcript in turn.

    Args:
        drafter_of: Gives the drafter of each request.
        budget: The most nodes of a draft.
        transcripts: In the order in which they are replayed.
        progress: Told before each.
        shape: Of a draft.

    Returns:
        A trace for each file of transcripts, by name.
    """
    traces: dict[str, Trace] = {}
    served: Counter[Hashable] = Counter()
    for number, transcript in enumerate(transcripts):
        progress()
        trace = replay(_starter(drafter_of(), transcript), transcript, budget, shape)
        family = (transcript.source, transcript.family)
        trace.requests = [number] * len(trace.accepted)
        trace.samples = [served[family]] * len(trace.accepted)
        served[family] += 1
        traces.setdefault(transcript.source, Trace()).merge(trace)
    return dict(sorted(traces.items()))


def _starter(drafter: Drafter, transcript: Transcript) -> Callable[[], Session]:
    given: dict[str, Any] = {}
    if isinstance(drafter, FusedDrafter):
        given = {"predicted_output": transcript.predicted_ids, "group": transcript.group}
    return partial(drafter.session, transcript.prompt_ids, **given)


def together(traces: Iterable[Trace]) -> Trace:
    """One trace of several."""
    merged = Trace()
    for trace in traces:
        merged.merge(trace)
    return merged
