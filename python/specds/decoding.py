"""The loop over the sequences of a request: draft, verify in one forward, accept, observe."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import torch

from specds._core import TokenTree
from specds.drafters.protocol import RecyclingSession, within
from specds.stats import GenerationStats
from specds.verify.accept import Emitter, Sampler, accept_greedy, walk
from specds.verify.fast import FastRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specds.drafters import Session
    from specds.verify.device import Chooser, Decision
    from specds.verify.runner import Runner

_Verified = TypeVar("_Verified")
_EMPTY_TREE = TokenTree([], [])


@dataclass(frozen=True)
class Limits:
    """What bounds the drafts of a request.

    Attributes:
        max_length: Most tokens of a sequence, prompt and its padding included.
        vocab_size: Of the model.
        known_tokens: Token ids from this one on are not in the drafter's vocabulary: models have
            spare ones.
    """

    max_length: int
    vocab_size: int
    known_tokens: int


@dataclass
class Row:
    """One sequence of a request, and what it has come to so far.

    Attributes:
        prompt_ids: int64 `(1, prompt_length)`, without padding.
        sampler: Chooses its tokens.
        emitter: Takes them.
        session: Drafts them.
        drafted: For each emitted token, whether it had been drafted.
        new: The tokens that the last step emitted.
    """

    prompt_ids: torch.Tensor
    sampler: Sampler
    emitter: Emitter
    session: Session
    drafted: list[bool] = field(default_factory=list)
    new: list[int] = field(default_factory=list)

    def draft(self, max_nodes: int, limits: Limits) -> TokenTree | None:
        """A draft cut to the budget and to the tokens left; None where nothing can be gained."""
        # The deepest node that can still be emitted: the pass itself gives one token more.
        max_depth = limits.max_length - self.emitter.length - 1
        if max_nodes == 0 or max_depth <= 0:
            return None
        tree = within(self.session.draft(max_nodes), max_nodes, max_depth)
        if len(tree) == 0:
            return None
        refuse_tokens_beyond(limits.vocab_size, int(tree.token_ids.max()))
        return tree

    def accept(self, logits: torch.Tensor, tree: TokenTree | None) -> list[int]:
        """Emits what the target chose; returns the accepted nodes."""
        num_before = len(self.emitter.emitted)
        if self.sampler.is_argmax:
            path = accept_greedy(logits, tree, self.emitter)
        else:
            path = walk(logits, tree, self.emitter, self.sampler)
        self._note(num_before, len(path))
        return path

    def take(self, decision: Decision) -> list[int]:
        """Emits what was decided already, up to a stop; returns the accepted nodes."""
        num_before = len(self.emitter.emitted)
        for token in decision.tokens:
            self.emitter.emit(token)
            if self.emitter.finished:
                break
        path = decision.nodes[: len(self.emitter.emitted) - num_before]
        self._note(num_before, len(path))
        return path

    def _note(self, num_before: int, num_accepted: int) -> None:
        self.new = self.emitter.emitted[num_before:]
        self.drafted += [index < num_accepted for index in range(len(self.new))]

    def observe(self, logits: torch.Tensor, tree: TokenTree | None, limits: Limits) -> None:
        """Tells the session what was emitted and, if it wants to know, predicted at every node."""
        session = self.session
        num_predictions = int(getattr(session, "num_predictions", 0))
        if num_predictions and isinstance(session, RecyclingSession):
            known = logits[:, : limits.known_tokens]
            top = known.topk(min(num_predictions, known.shape[-1]), dim=-1).indices
            session.recycle(_EMPTY_TREE if tree is None else tree, top.cpu().numpy())
        session.observe(self.new)


class Decoding:
    """Decodes sequences together: one draft each and one forward pass over all, a step.

    Args:
        runner: Verifies the drafts; it has not seen the prompts yet.
        limits: Of the drafts.
        max_nodes: Most nodes of a draft.
        chooser: Chooses the tokens of all rows alike, where it can; used where the runner decides
            by itself what is accepted.
        clock: Tells the seconds, for the statistics.
    """

    def __init__(
        self,
        runner: Runner,
        limits: Limits,
        max_nodes: int,
        chooser: Chooser | None,
        clock: Callable[[], float],
    ) -> None:
        self.stats = GenerationStats()
        self._runner = runner
        # The runner that also accepts, where one does.
        self._accepts: tuple[FastRunner, Chooser] | None = None
        if chooser is not None and isinstance(runner, FastRunner) and runner.decides:
            self._accepts = runner, chooser
        self._limits = limits
        self._max_nodes = max_nodes
        self._watch = _Stopwatch(self.stats, clock)

    def run(self, rows: Sequence[Row], chunk_size: int | None) -> None:
        """Emits tokens until a stopping criterion has ended each of the sequences."""
        for number, row in enumerate(rows):
            self._prefill(number, row, chunk_size)
        active = list(rows)
        self._dismiss(active)
        while active:
            self._step(active)
            self._dismiss(active)
        self._watch.stop()
        self.stats.num_emitted_tokens = sum(len(row.emitter.emitted) for row in rows)

    def _prefill(self, number: int, row: Row, chunk_size: int | None) -> None:
        logits = self._runner.prefill(row.prompt_ids, chunk_size, number)
        self._watch.lap("prefill_s")
        row.accept(logits, None)
        self._watch.lap("accept_s")
        row.observe(logits, None, self._limits)
        self._watch.lap("observe_s")

    def _step(self, rows: Sequence[Row]) -> None:
        lap = self._watch.lap
        trees = [row.draft(self._max_nodes, self._limits) for row in rows]
        lap("draft_s")
        token_ids = [row.new[-1] for row in rows]
        if self._accepts is None:
            logits = self._within_memory(partial(self._runner.verify_rows, token_ids), trees)
            lap("forward_s")
            by_row = zip(rows, logits, trees, strict=True)
            paths = [row.accept(row_logits, tree) for row, row_logits, tree in by_row]
            lap("accept_s")
            kept = zip(paths, rows, strict=True)
            self._runner.commit_rows([path[: len(row.new) - 1] for path, row in kept])
        else:
            runner, choose = self._accepts
            forced = [row.emitter.forced_ahead for row in rows]
            accept = partial(runner.accept_rows, token_ids, forced=forced, choose=choose)
            logits, decided = self._within_memory(accept, trees)
            lap("forward_s")
            paths = [row.take(decision) for row, decision in zip(rows, decided, strict=True)]
            lap("accept_s")
            runner.keep_rows([len(row.new) for row in rows])
        lap("compact_s")
        for tree, path in zip(trees, paths, strict=True):
            self.stats.record_draft(0 if tree is None else len(tree), len(path))
        for row, row_logits, tree in zip(rows, logits, trees, strict=True):
            row.observe(row_logits, tree, self._limits)
        lap("observe_s")

    def _within_memory(
        self, verify: Callable[[list[TokenTree | None]], _Verified], trees: list[TokenTree | None]
    ) -> _Verified:
        """What `verify` gives of `trees`, cut where memory does not hold a pass over them."""
        while True:
            try:
                return verify(trees)
            except torch.OutOfMemoryError:
                largest = max(0 if tree is None else len(tree) for tree in trees)
                if largest == 0:
                    raise
                self._max_nodes = largest // 2
            warnings.warn(
                f"no memory for drafts of {largest} nodes: going on with {self._max_nodes}",
                stacklevel=2,
            )
            for number, tree in enumerate(trees):
                if tree is not None and len(tree) > self._max_nodes:
                    trees[number] = tree.prefix(self._max_nodes) if self._max_nodes else None

    def _dismiss(self, rows: list[Row]) -> None:
        """Takes finished sequences off the batch, in the order that the runner gives the others."""
        for number in reversed(range(len(rows))):
            if rows[number].emitter.finished:
                if len(rows) > 1:
                    self._runner.leave(number)
                rows[number] = rows[-1]
                rows.pop()


class _Stopwatch:
    """Adds the time since its last lap to a phase of the statistics."""

    def __init__(self, stats: GenerationStats, clock: Callable[[], float]) -> None:
        self._stats = stats
        self._clock = clock
        self._start = self._last = clock()

    def lap(self, phase: str) -> None:
        now = self._clock()
        setattr(self._stats, phase, getattr(self._stats, phase) + now - self._last)
        self._last = now

    def stop(self) -> None:
        self._stats.total_s += self._clock() - self._start


def clock_of(device: torch.device, profile: bool) -> Callable[[], float]:
    """The clock of a request; with `profile` it waits for a CUDA device at each reading."""
    if not profile or device.type != "cuda":
        return perf_counter

    def synchronised() -> float:
        torch.cuda.synchronize(device)
        return perf_counter()

    return synchronised


def refuse_tokens_beyond(vocab_size: int, largest_token_id: int) -> None:
    """Refuses a drafter that has tokens which the model lacks.

    Raises:
        ValueError: Naming the token and the way out.
    """
    if largest_token_id >= vocab_size:
        raise ValueError(
            f"the drafter drafts token {largest_token_id}, the model has {vocab_size}: "
            "use a drafter made with the model's own tokenizer"
        )
