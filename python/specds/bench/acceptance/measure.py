"""Replay of recorded answers: accepted tokens and times of a drafter.

Greedy acceptance depends only on the tokens that the target generates: each step drafts, compares
the draft with the recorded tokens, and continues after the accepted ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import repeat
from time import perf_counter_ns
from typing import Any, Literal, TypeAlias

import numpy as np

from specds._core import DraftSession, Session, TokenTree
from specds.bench.drafters import BenchDrafter
from specds.bench.transcripts import ALL, Transcript
from specds.drafters import KINDS, Drafter, FusedDrafter
from specds.drafters.registry import DrafterKind
from specds.drafters.session import EMPTY_TREE
from specds.drafters.step import Step
from specds.generation.stats import GenerationStats

DraftShape: TypeAlias = Literal["tree", "chain"]
"""Shape of a draft; engines without tree verification take chains."""


@dataclass
class Replayed:
    """Step of a replay, which the session has not observed yet.

    Attributes:
        draft_ns: Time of `draft` in nanoseconds; None if it was not called.
        observe_ns: Time of `observe`; set before the next step is yielded.
    """

    step: Step
    draft_ns: int | None = None
    observe_ns: int = 0


def follow(
    session: Session, transcript: Transcript, max_nodes: int, shape: DraftShape = "tree"
) -> Generator[Replayed, None, None]:
    """Yield the steps of one answer, with a session that has its prompt; finish it at the end.

    The last token of an answer is the target's own, so a draft has at most the remaining tokens
    less one, as generation cuts it at `max_length`.
    """
    truth, position = transcript.completion_ids, 0
    try:
        while position < len(truth):
            max_depth = len(truth) - position - 1
            tree, draft_ns = EMPTY_TREE, None
            if max_nodes > 0 and max_depth > 0:
                if transcript.suggested:
                    session.suggest(suggestion(transcript, position))
                start = perf_counter_ns()
                tree = _draft(session, max_nodes, max_depth, shape)
                draft_ns = perf_counter_ns() - start
                tree = tree.limited(max_nodes, max_depth)
            path = tree.follow(truth[position : position + len(tree)])
            emitted = truth[position : position + len(path) + 1]
            replayed = Replayed(Step(tree, path, emitted.tolist()), draft_ns)
            yield replayed
            start = perf_counter_ns()
            session.observe(emitted)
            replayed.observe_ns = perf_counter_ns() - start
            position += len(emitted)
    finally:
        session.finish()


def _draft(session: Session, max_nodes: int, max_depth: int, shape: DraftShape) -> TokenTree:
    if isinstance(session, DraftSession):
        return session.draft(max_nodes, max_depth, is_chain=shape == "chain")
    tree = session.draft(max_nodes, max_depth)
    return tree.best_chain() if shape == "chain" else tree


def suggestion(transcript: Transcript, position: int) -> list[int]:
    """Return the recorded draft for the answer's token at `position`.

    A record has only the number of right tokens. A wrong one becomes the true token less 1 (1 for
    0), the same in every run. It is easier to distinguish from a right one than a real mistake.
    """
    if position >= len(transcript.suggested):
        return []
    right, length = transcript.suggested[position]
    truth: list[int] = transcript.completion_ids[position : position + length].tolist()
    truth += [0] * (length - len(truth))
    return truth[:right] + [token - 1 if token else 1 for token in truth[right:]]


class SuggestedDrafter:
    """Recorded drafter alone: it drafts exactly the external proposal."""

    vocab_size = None

    def session(self, prompt_ids: Any) -> Session:
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
        return tree.limited(max_nodes)

    def observe(self, *_: Any) -> None:
        pass


KINDS["suggested"] = DrafterKind(lambda _: SuggestedDrafter)


TARGET = "target"
"""Source of bonus tokens."""


@dataclass
class Trace:
    """Record of one or several answers; lists have one element for each draft.

    Attributes:
        stats: Counts, and times of `draft` and `observe`.
        expected: Expected accepted tokens: the sum of the drafter's probabilities.
        requests: Index of the request in the run.
        samples: Earlier requests of the same group.
        lengths: Tokens and forward passes of each request.
        num_predicted_tokens: Tokens of predicted outputs; None if no request had one.
        observe_ns: Time of each `observe` after the prompt.
        sources: New tokens by the source that drafted them, or the target.
    """

    stats: GenerationStats = field(default_factory=GenerationStats)
    num_requests: int = 0
    accepted: list[int] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    lengths: list[tuple[int, int]] = field(default_factory=list)
    num_predicted_tokens: int | None = None
    draft_ns: list[int] = field(default_factory=list)
    observe_ns: list[int] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)

    def record(self, replayed: Replayed) -> None:
        """Append a step, whose `observe_ns` is not known yet."""
        step = replayed.step
        self.stats.record_draft(len(step.tree), len(step.path))
        self.sources.update(source or TARGET for source in step.sources)
        if replayed.draft_ns is None:
            return
        self.draft_ns.append(replayed.draft_ns)
        self.accepted.append(len(step.path))
        self.expected.append(float(step.tree.probs.sum(dtype=np.float64)))

    def merge(self, other: Trace) -> None:
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
    session: Session, transcript: Transcript, max_nodes: int, shape: DraftShape = "tree"
) -> Trace:
    trace, steps = Trace(num_requests=1), []
    for replayed in follow(session, transcript, max_nodes, shape):
        trace.record(replayed)
        steps.append(replayed)
    trace.observe_ns = [replayed.observe_ns for replayed in steps]
    stats = trace.stats
    stats.num_emitted_tokens = len(transcript.completion_ids)
    trace.lengths = [(stats.num_emitted_tokens, len(steps))]
    if transcript.predicted_ids is not None:
        trace.num_predicted_tokens = len(transcript.predicted_ids)
    stats.draft_s, stats.observe_s = sum(trace.draft_ns) / 1e9, sum(trace.observe_ns) / 1e9
    return trace


@dataclass(frozen=True)
class ReplayCell:
    """One drafter with one number of nodes: its traces by file of transcripts, and of all files."""

    drafter: BenchDrafter
    max_nodes: int
    traces: dict[str, Trace]


def measure(
    drafters: Sequence[BenchDrafter],
    limits: Sequence[int],
    transcripts: Sequence[Transcript],
    *,
    warm_memory: bool,
    shape: DraftShape = "tree",
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[ReplayCell]:
    """Yield each cell as it is measured, with a new drafter.

    `progress` receives the drafter's name before each request.
    """
    for drafter in drafters:
        make = drafter.load()
        for max_nodes in limits:
            drafter_of = repeat(make()).__next__ if warm_memory else make
            count = partial(progress, drafter.name)
            traces = replay_all(drafter_of, max_nodes, transcripts, count, shape)
            if len(traces) > 1:
                traces[ALL] = together(traces.values())
            yield ReplayCell(drafter, max_nodes, traces)


def replay_all(
    drafter_of: Callable[[], Drafter],
    max_nodes: int,
    transcripts: Sequence[Transcript],
    progress: Callable[[], None] = lambda: None,
    shape: DraftShape = "tree",
) -> dict[str, Trace]:
    """Replay every transcript in turn; return a trace for each file of transcripts, by name."""
    traces: dict[str, Trace] = {}
    served: Counter[Hashable] = Counter()
    for number, transcript in enumerate(transcripts):
        progress()
        trace = replay(_session(drafter_of(), transcript), transcript, max_nodes, shape)
        group = transcript.prompt_ids.tobytes() if transcript.group is None else transcript.group
        trace.requests = [number] * len(trace.accepted)
        trace.samples = [served[transcript.source, group]] * len(trace.accepted)
        served[transcript.source, group] += 1
        traces.setdefault(transcript.source, Trace()).merge(trace)
    return dict(sorted(traces.items()))


def _session(drafter: Drafter, transcript: Transcript) -> Session:
    if isinstance(drafter, FusedDrafter):
        expected, group = transcript.predicted_ids, transcript.group
        return drafter.session(transcript.prompt_ids, predicted_output=expected, group=group)
    return drafter.session(transcript.prompt_ids)


def together(traces: Iterable[Trace]) -> Trace:
    merged = Trace()
    for trace in traces:
        merged.merge(trace)
    return merged
