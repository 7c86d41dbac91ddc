"""How many tokens of recorded answers does a drafter foretell, and how long does it take?

Every engine at every budget goes over the same answers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from specds.bench.engines import EngineError
from specds.bench.replay.loop import follow
from specds.bench.transcripts import ALL
from specds.drafters import FusedDrafter
from specds.stats import GenerationStats

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from specds.bench.engines import Engine
    from specds.bench.replay.loop import Replayed, Shape
    from specds.bench.transcripts import Transcript
    from specds.drafters import Drafter, Session

TARGET = "target"
"""The source of bonus tokens."""


@dataclass
class Trace:
    """What came of every draft of one or several answers, one element of a list a draft.

    Attributes:
        stats: The counts; their times are those of drafts and observations.
        num_requests: Answers replayed.
        accepted: Tokens accepted of each draft.
        expected: How many the drafter itself expected to be: the sum of its nodes' probabilities.
        match_lengths: The context that each draft was made from; empty where the session does not
            tell.
        context_lengths: Tokens before each draft, prompt included.
        requests: Which request of the run each draft was for.
        samples: How many requests of the same group had been served before it.
        num_predicted_tokens: Tokens that callers expected; None where no caller did.
        draft_ns: Time of each call of `draft`.
        observe_ns: Time of each call of `observe` behind the prompt.
        sources: How many emitted tokens came from where: what drafted them, or the target.
    """

    stats: GenerationStats = field(default_factory=GenerationStats)
    num_requests: int = 0
    accepted: list[int] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    match_lengths: list[int] = field(default_factory=list)
    context_lengths: list[int] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    num_predicted_tokens: int | None = None
    draft_ns: list[int] = field(default_factory=list)
    observe_ns: list[int] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)

    def record(self, replayed: Replayed, prompt_length: int) -> None:
        """Appends a step; its `observe_ns` is not known yet."""
        step, session = replayed.step, replayed.session
        self.stats.record_draft(len(step.tree), len(step.path))
        self.sources.update(source or TARGET for source in step.sources)
        if replayed.draft_ns is None:
            return
        self.draft_ns.append(replayed.draft_ns)
        self.accepted.append(len(step.path))
        self.expected.append(float(step.tree.probs.sum(dtype=np.float64)))
        self.context_lengths.append(prompt_length + replayed.position)
        if session.match_length is not None:
            self.match_lengths.append(session.match_length)

    def merge(self, other: Trace) -> None:
        """Appends the drafts of `other`."""
        self.stats.merge(other.stats)
        self.num_requests += other.num_requests
        if other.num_predicted_tokens is not None:
            known = self.num_predicted_tokens or 0
            self.num_predicted_tokens = known + other.num_predicted_tokens
        for name in _LISTS:
            getattr(self, name).extend(getattr(other, name))
        self.sources.update(other.sources)


_LISTS = tuple(each.name for each in fields(Trace) if each.default_factory is list)


def replay(
    session: Session, transcript: Transcript, max_nodes: int, shape: Shape = "tree"
) -> Trace:
    """Drafts for one answer from its prompt, which the session has, to its end."""
    trace, steps = Trace(num_requests=1), []
    for replayed in follow(session, transcript, max_nodes, shape):
        trace.record(replayed, len(transcript.prompt_ids))
        steps.append(replayed)
    trace.observe_ns = [replayed.observe_ns for replayed in steps]
    stats = trace.stats
    stats.num_emitted_tokens = len(transcript.completion_ids)
    if transcript.predicted_ids is not None:
        trace.num_predicted_tokens = len(transcript.predicted_ids)
    stats.draft_s, stats.observe_s = sum(trace.draft_ns) / 1e9, sum(trace.observe_ns) / 1e9
    return trace


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

    With `warm_memory`, one drafter serves all requests of a cell, as that of a server does, and
    keeps what earlier ones taught it; else there is a new one for each. No cell profits from
    another.
    `progress` is told the engine's name before each request.
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

    `progress` is told before each.

    Returns:
        A trace for each file of transcripts, by name.
    """
    traces: dict[str, Trace] = {}
    served: Counter[Hashable] = Counter()
    for number, transcript in enumerate(transcripts):
        progress()
        trace = replay(_session(drafter_of(), transcript), transcript, budget, shape)
        family = (transcript.source, transcript.family)
        trace.requests = [number] * len(trace.accepted)
        trace.samples = [served[family]] * len(trace.accepted)
        served[family] += 1
        traces.setdefault(transcript.source, Trace()).merge(trace)
    return dict(sorted(traces.items()))


def _session(drafter: Drafter, transcript: Transcript) -> Session:
    if isinstance(drafter, FusedDrafter):
        expected, group = transcript.predicted_ids, transcript.group
        return drafter.session(transcript.prompt_ids, predicted_output=expected, group=group)
    return drafter.session(transcript.prompt_ids)


def together(traces: Iterable[Trace]) -> Trace:
    """One trace of several."""
    merged = Trace()
    for trace in traces:
        merged.merge(trace)
    return merged
