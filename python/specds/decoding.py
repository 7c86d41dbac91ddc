"""The loop over the sequences of a request: draft, verify in one forward, accept, observe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from specds._core import TokenTree
from specds.accept.draws import Noise
from specds.accept.on_device import PassRequest, likeliest_on_host
from specds.accept.on_host import Emitter, Sampler, walk
from specds.budget.policy import Budget
from specds.drafters.session import EMPTY_TREE, Session, Silence
from specds.drafters.step import Step
from specds.stats import GenerationStats
from specds.verify.generic import Runner
from specds.verify.static import StaticRunner

# The accepted nodes of each row, and what the target predicts at all of them.
_Outcome = tuple[list[list[int]], Sequence[NDArray[np.int64] | None]]


@dataclass
class Row:
    """One sequence of a request, and what it has come to so far.

    Attributes:
        prompt_ids: int64 `(1, prompt_length)`, without padding.
        drafted: For each emitted token, whether it had been drafted.
        new: The tokens that the last step emitted.
    """

    prompt_ids: torch.Tensor
    sampler: Sampler
    emitter: Emitter
    open: Callable[[Sequence[int]], Session]
    known_tokens: int
    number: int = 0
    session: Session = field(init=False)
    drafted: list[bool] = field(default_factory=list)
    new: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begin(self.prompt_ids[0].tolist())

    def _begin(self, token_ids: list[int]) -> None:
        """Opens a session for what follows the last token that the drafter lacks."""
        if max(token_ids) >= self.known_tokens:
            unknown = [token >= self.known_tokens for token in reversed(token_ids)]
            token_ids = token_ids[len(token_ids) - unknown.index(True) :]
        self.session = self.open(token_ids) if token_ids else Silence()
        self.num_predictions = self.session.num_predictions

    def take(self, nodes: list[int], tokens: list[int]) -> list[int]:
        """Emits what was decided already, up to a stop; returns the accepted nodes."""
        for token in tokens:
            self.emitter.emit(token)
            if self.emitter.finished:
                break
        path = nodes[: len(self.emitter.emitted) - len(self.drafted)]
        self.note(len(path))
        return path

    def note(self, num_accepted: int) -> None:
        """Takes in the tokens emitted since the last call: the first ones had been drafted."""
        self.new = self.emitter.emitted[len(self.drafted) :]
        self.drafted += [index < num_accepted for index in range(len(self.new))]

    def observe(self, tree: TokenTree, predictions: NDArray[np.int64] | None) -> None:
        """Tells the session what was emitted and, where it was asked, predicted at every node."""
        if predictions is not None and predictions.size:
            self.session.observe_predictions(tree, predictions)
        if max(self.new) < self.known_tokens and not isinstance(self.session, Silence):
            self.session.observe(self.new, len(tree))
        else:
            # A token that the drafter lacks ends one text, and what follows it begins another.
            ended, self.session = self.session, Silence()
            ended.finish()
            self._begin(self.new)


@dataclass
class Decoding:
    """Decodes sequences together: one draft each and one forward pass over all, a step.

    Attributes:
        runner: Verifies the drafts; it has not seen the prompts yet.
        max_length: Most tokens of a sequence, prompt and its padding included.
        vocab_size: Of the model.
        waits_for: The CUDA device to wait for at each reading of the clock, so that its work counts
            in the phase that asked for it; None where nothing waits.
        noise: What samples are drawn by; None where each sampler draws for itself.
        on_step: Called with each step of each row, the prefill included.
    """

    runner: Runner
    budget: Budget
    max_length: int
    vocab_size: int
    waits_for: torch.device | None = None
    noise: Noise | None = None
    on_step: Callable[[Step], object] | None = None

    def __post_init__(self) -> None:
        self.stats = GenerationStats()
        # The runner that also accepts, where one does.
        self._accepts: StaticRunner | None = None

    def run(self, rows: Sequence[Row], chunk_size: int | None) -> None:
        """Emits tokens until a stopping criterion has ended each of the sequences."""
        runner, sampler = self.runner, rows[0].sampler
        is_decided = sampler.is_of_logits and (sampler.is_argmax or not rows[0].session.proposes)
        if is_decided and isinstance(runner, StaticRunner) and runner.accepts:
            self._accepts = runner
        start = self._last = self._now()
        self._prefill(rows, chunk_size)
        active = list(rows)
        self._dismiss(active)
        while active:
            self._step(active)
            self._dismiss(active)
        self.budget.learn()
        self.stats.total_s += self._now() - start
        self.stats.num_emitted_tokens = sum(len(row.emitter.emitted) for row in rows)
        for row in rows:
            self.stats.merge_levels(row.session.level_stats)

    def _prefill(self, rows: Sequence[Row], chunk_size: int | None) -> None:
        logits = self.runner.prefill_rows([row.prompt_ids for row in rows], chunk_size)
        self._lap("prefill_s")
        _, predictions = self._follow(rows, [*logits[:, None]], [EMPTY_TREE] * len(rows))
        self._lap("accept_s")
        for row, of_row in zip(rows, predictions, strict=True):
            row.observe(EMPTY_TREE, of_row)
            self._report(EMPTY_TREE, [], row)
        self._lap("observe_s")

    def _step(self, rows: Sequence[Row]) -> None:
        trees = self._draft(rows)
        self._lap("draft_s")
        accept = self._accept_on_host if self._accepts is None else self._accept_on_device
        paths, predictions = accept(rows, trees)
        self._lap("accept_s")
        kept = zip(paths, rows, strict=True)
        self.runner.commit_rows([path[: len(row.new) - 1] for path, row in kept])
        self._lap("compact_s")
        for row, tree, path, of_row in zip(rows, trees, paths, predictions, strict=True):
            self.stats.record_draft(len(tree), len(path))
            row.observe(tree, of_row)
            self._report(tree, path, row)
        new = [None if row.emitter.finished else row.new for row in rows]
        self.budget.record(new, self._now() - self._last)
        if self._accepts is None:
            self.budget.learn()
        self._lap("observe_s")

    def _report(self, tree: TokenTree, path: list[int], row: Row) -> None:
        if self.on_step is not None:
            self.on_step(Step(tree, path, row.new))

    def _now(self) -> float:
        if self.waits_for is not None:
            torch.cuda.synchronize(self.waits_for)
        return perf_counter()

    def _lap(self, phase: str) -> None:
        """Adds the time since the last lap to a phase of the statistics."""
        now = self._now()
        setattr(self.stats, phase, getattr(self.stats, phase) + now - self._last)
        self._last = now

    def _accept_on_host(self, rows: Sequence[Row], trees: list[TokenTree]) -> _Outcome:
        """Verifies the drafts and follows them here."""
        logits = self.runner.verify_rows([row.new[-1] for row in rows], trees)
        self._lap("forward_s")
        return self._follow(rows, logits, trees)

    def _follow(
        self,
        rows: Sequence[Row],
        logits: Sequence[torch.Tensor],
        trees: Sequence[TokenTree],
    ) -> _Outcome:
        paths = []
        for row, of_row, tree in zip(rows, logits, trees, strict=True):
            paths.append(walk(of_row, tree, row.emitter, row.sampler, row.session.proposals))
            row.note(len(paths[-1]))
        most = self._num_predictions(rows)
        if most == 0:
            return paths, [None] * len(rows)
        # Of all rows at once: a row by itself takes as long as six do together.
        joined = torch.cat([*logits]) if len(logits) > 1 else logits[0]
        predictions = likeliest_on_host(joined, most, rows[0].known_tokens)
        parts = zip(rows, logits, accumulate(map(len, logits)), strict=True)
        return paths, [
            predictions[end - len(of_row) : end, : row.num_predictions]
            for row, of_row, end in parts
        ]

    def _num_predictions(self, rows: Sequence[Row]) -> int:
        """How many of the likeliest tokens sessions use at most; 0 in a pause: none drafts next."""
        return 0 if self.budget.pauses else max(row.num_predictions for row in rows)

    def _accept_on_device(self, rows: Sequence[Row], trees: list[TokenTree]) -> _Outcome:
        """Has the runner verify and follow the drafts: all that it tells comes in one copy."""
        noise = None
        if self.noise is not None:
            depth = max(int(tree.depths().max(initial=0)) for tree in trees)
            positions = [len(row.emitter.emitted) for row in rows]
            noise = self.noise.ahead([row.number for row in rows], positions, depth + 1)
        wait = self._accepts.launch(  # type: ignore[union-attr]
            [row.new[-1] for row in rows],
            trees,
            PassRequest(rows[0].sampler, self._num_predictions(rows), rows[0].known_tokens, noise),
        )
        self.budget.learn()
        outcomes = wait()
        self._lap("forward_s")
        paths, predictions = [], []
        for row, tree, (nodes, tokens, likeliest) in zip(rows, trees, outcomes, strict=True):
            paths.append(row.take(nodes, tokens))
            predictions.append(likeliest[: 1 + len(tree), : row.num_predictions])
        return paths, predictions

    def _draft(self, rows: Sequence[Row]) -> list[TokenTree]:
        """What is to be verified."""
        # The deepest node that can still be emitted: the pass itself gives one token more.
        max_depths = [self.max_length - row.emitter.length - 1 for row in rows]
        if max(max_depths) > 0:
            self.budget.prepare()
        self._lap("measure_s")
        trees = self.budget.draft([row.session for row in rows], max_depths)
        for tree in trees:
            # In Python: between two passes numpy takes 20 us for this.
            refuse_tokens_beyond(self.vocab_size, max(tree.token_ids.tolist(), default=0))
        return trees

    def _dismiss(self, rows: list[Row]) -> None:
        """Takes finished sequences off the batch, in the order that the runner gives the others."""
        for number in reversed(range(len(rows))):
            if rows[number].emitter.finished:
                if len(rows) > 1:
                    self.runner.leave(number)
                rows[number] = rows[-1]
                rows.pop()


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
