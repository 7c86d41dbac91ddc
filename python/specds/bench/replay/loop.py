"""The loop of a replay: one recorded answer, drafted for from its prompt to its end.

Greedy acceptance depends on nothing but the tokens that the target writes. So a recorded answer
gives the acceptance length of any drafter without a model: draft, compare with what was written,
go on behind it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Literal, TypeAlias

from specds._core import DraftSession, TokenTree
from specds.bench.engines import ENTRANTS, Entrant
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

    The last token of an answer is always the target's own: a draft is cut to the tokens left, less
    one, as generation cuts it at `max_length`. So tokens per forward is exact, and no forward is
    counted that a real request would not make.
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
    """Nanoseconds of a call that has just returned.

    If another process did the work, its session measured the time itself. Processor time is not
    used: reading it is a system call of 0.6 µs that leaves caches colder.
    """
    elapsed = perf_counter_ns() - start
    own: int | None = getattr(session, "elapsed_ns", None)
    return elapsed if own is None else own


def suggestion(transcript: Transcript, position: int) -> list[int]:
    """The recorded draft for the answer's token at `position`.

    A record says only how many tokens were right. Each wrong one is made from the true token: one
    less, or 1 for 0, so runs are repeatable. Such tokens are easier to tell from right ones than a
    real drafter's mistakes.
    """
    if position >= len(transcript.suggested):
        return []
    right, length = transcript.suggested[position]
    truth: list[int] = transcript.completion_ids[position : position + length].tolist()
    truth += [0] * (length - len(truth))
    return truth[:right] + [token - 1 if token else 1 for token in truth[right:]]


class SuggestedDrafter:
    """A recorded drafter alone: drafts exactly what is suggested to it."""

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
        return tree.prefix(min(max_nodes, len(tree)))

    def observe(self, *_: Any) -> None:
        pass


ENTRANTS["suggested"] = Entrant(False, open=lambda *_: nullcontext(SuggestedDrafter))
