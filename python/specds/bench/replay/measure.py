"""How many tokens of recorded answers does a drafter foretell, and how long does it take?

Greedy acceptance depends on nothing but the tokens that the target writes. So a recorded answer
gives the acceptance length of any drafter without a model: draft, compare with what was written,
go on behind it. Every engine at every budget goes over the same answers.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from specds._core import SOURCES, DraftSession, TokenTree
from specds.bench.engines import ENTRANTS, EngineError, Entrant
from specds.bench.transcripts import ALL
from specds.drafters import FusedDrafter
from specds.drafters.session import EMPTY_TREE, Session, within
from specds.drafters.watched import right_path
from specds.stats import GenerationStats

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from specds.bench.engines import Engine
    from specds.bench.transcripts import Transcript
    from specds.drafters import Drafter


def suggestion(transcript: Transcript, position: int) -> list[int]:
    """The tokens that were drafted before the answer's token at `position`.

    Only how many of them were right is recorded: each other one stands for itself less one, 0 for
    1, which is wrong in every run alike. A text is an easier judge of these than of a real
    drafter's, which are plausible.
    """
    if position >= len(transcript.suggested):
        return []
    right, length = transcript.suggested[position]
    truth: list[int] = transcript.completion_ids[position : position + length].tolist()
    truth += [0] * (length - len(truth))
    return truth[:right] + [token - 1 if token else 1 for token in truth[right:]]


class SuggestedDrafter:
    """A recorded drafter alone: drafts what is suggested to it, and nothing else."""

    vocab_size = None

    def session(self, prompt_ids: Any) -> Session:
        """Starts a request."""
        return _SuggestedSession()


class _SuggestedSession(Session):
    def __init__(self) -> None:
        self._tree = EMPTY_TREE

    def suggest(self, token_ids: Any, parents: Any = None, probs: Any = None) -> bool:
        chain = range(-1, len(token_ids) - 1)
        self._tree = TokenTree(token_ids, chain if parents is None else parents, probs)
        return True

    def draft(self, max_nodes: int, *_: Any, **__: Any) -> TokenTree:
        tree, self._tree = self._tree, EMPTY_TREE
        return tree.prefix(min(max_nodes, len(tree)))

    def observe(self, *_: Any) -> None:
        pass


ENTRANTS["suggested"] = Entrant(False, open=lambda _: nullcontext(SuggestedDrafter))


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

    def merge(self, other: Trace) -> None:
        """Appends the drafts of `other`."""
        self.stats.merge(other.stats)
        self.num_requests += other.num_requests
        if other.num_predicted_tokens is not None:
            self.num_predicted_tokens = (
                self.num_predicted_tokens or 0
            ) + other.num_predicted_tokens
        for name in _LISTS:
            getattr(self, name).extend(getattr(other, name))
        self.sources.update(other.sources)


_LISTS = tuple(each.name for each in fields(Trace) if each.default_factory is list)


Shape: TypeAlias = Literal["tree", "chain"]
"""Of a draft; engines that verify no trees take chains."""


def replay(
    open_session: Callable[[], Session],
    transcript: Transcript,
    max_nodes: int,
    shape: Shape = "tree",
) -> Trace:
    """Drafts for one answer from its prompt to its end.

    The last token of an answer is always the target's own: a draft is cut to the tokens left, less
    one, as generation cuts it at `max_length`. So tokens per forward is exact, and no forward is
    counted that a real request would not make.
    """
    trace = Trace(num_requests=1)
    session = open_session()
    try:
        _follow(session, transcript, max_nodes, shape, trace)
    finally:
        session.finish()
    stats = trace.stats
    stats.num_emitted_tokens = len(transcript.completion_ids)
    if transcript.predicted_ids is not None:
        trace.num_predicted_tokens = len(transcript.predicted_ids)
    stats.draft_s, stats.observe_s = sum(trace.draft_ns) / 1e9, sum(trace.observe_ns) / 1e9
    return trace


def _follow(
    session: Session, transcript: Transcript, max_nodes: int, shape: Shape, trace: Trace
) -> None:
    truth, position = transcript.completion_ids, 0
    while position < len(truth):
        path: list[int] = []
        max_depth = len(truth) - position - 1
        if max_nodes > 0 and max_depth > 0:
            if transcript.suggested:
                session.suggest(suggestion(transcript, position))
            start = perf_counter_ns()
            tree = _draft(session, max_nodes, max_depth, shape)
            trace.draft_ns.append(_elapsed(session, start))
            tree = within(tree, max_nodes, max_depth)
            path = right_path(tree, truth[position:])
            trace.context_lengths.append(len(transcript.prompt_ids) + position)
            _record(trace, session, tree, path)
        else:
            trace.stats.record_draft(0, 0)
        trace.sources[TARGET] += 1
        emitted = truth[position : position + len(path) + 1]
        position += len(emitted)
        start = perf_counter_ns()
        session.observe(emitted)
        trace.observe_ns.append(_elapsed(session, start))


def _draft(session: Session, max_nodes: int, max_depth: int, shape: Shape) -> TokenTree:
    if isinstance(session, DraftSession):
        return session.draft(max_nodes, max_depth, is_chain=shape == "chain")
    tree = session.draft(max_nodes, max_depth)
    return tree.best_chain() if shape == "chain" else tree


def _record(trace: Trace, session: Session, tree: TokenTree, path: list[int]) -> None:
    trace.stats.record_draft(len(tree), len(path))
    trace.accepted.append(len(path))
    trace.expected.append(float(tree.probs.sum(dtype=np.float64)))
    trace.sources.update(SOURCES[source] for source in tree.sources[path].tolist())
    if session.match_length is not None:
        trace.match_lengths.append(session.match_length)


def _elapsed(session: Session, start: int) -> int:
    """How long a call took that has just returned, in nanoseconds.

    Where another process did the work, the session itself measured it. The time of the processor
    is not asked for: that is a call of the system's, takes 0.6 µs and leaves caches colder.
    """
    elapsed = perf_counter_ns() - start
    own = session.elapsed_ns
    return elapsed if own is None else own


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
