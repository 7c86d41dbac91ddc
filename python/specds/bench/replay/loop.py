"""The loop of a replay: one recorded answer, drafted for from its prompt to its end.

Greedy acceptance depends on the tokens that the target writes and on nothing else: draft, compare
with what was written, go on behind it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Literal, TypeAlias

from specds._core import DraftSession, TokenTree
from specds.bench.transcripts import Transcript
from specds.drafters.session import EMPTY_TREE, Session, within
from specds.drafters.step import Step, right_path

Shape: TypeAlias = Literal["tree", "chain"]
"""Of a draft; engines that verify no trees take chains."""


@dataclass
class Replayed:
    """One step of a replay, which the session has not observed yet.

    Attributes:
        position: Tokens of the answer before this step.
        draft_ns: Time of `draft` in nanoseconds; None if it was not called.
        observe_ns: Time of `observe`; set before the next step is yielded.
    """

    session: Session
    position: int
    step: Step
    draft_ns: int | None = None
    observe_ns: int = 0


def follow(
    session: Session,
    transcript: Transcript,
    max_nodes: int,
    shape: Shape = "tree",
) -> Generator[Replayed, None, None]:
    """Yields the steps of one answer. The session has its prompt, and is finished at the end.

    The last token of an answer is the target's own: a draft is cut to the tokens left, less one, as
    generation cuts it at `max_length`.
    """
    truth, position = transcript.completion_ids, 0
    try:
        while position < len(truth):
            max_depth = len(truth) - position - 1
            tree, draft_ns = EMPTY_TREE, None
            if max_nodes > 0 and max_depth > 0:
                start = perf_counter_ns()
                tree = _draft(session, max_nodes, max_depth, shape)
                draft_ns = _elapsed(session, start)
                tree = within(tree, max_nodes, max_depth)
            path = right_path(tree, truth[position:])
            emitted = truth[position : position + len(path) + 1]
            replayed = Replayed(session, position, Step(tree, path, emitted.tolist()), draft_ns)
            yield replayed
            start = perf_counter_ns()
            session.observe(emitted)
            replayed.observe_ns = _elapsed(session, start)
            position += len(emitted)
    finally:
        session.finish()


def _draft(session: Session, max_nodes: int, max_depth: int, shape: Shape) -> TokenTree:
    if isinstance(session, DraftSession):
        return session.draft(max_nodes, max_depth, is_chain=shape == "chain")
    tree = session.draft(max_nodes, max_depth)
    return tree.best_chain() if shape == "chain" else tree


def _elapsed(session: Session, start: int) -> int:
    """Nanoseconds of a call that has just returned, by the session's own clock if it has one."""
    elapsed = perf_counter_ns() - start
    own: int | None = getattr(session, "elapsed_ns", None)
    return elapsed if own is None else own
