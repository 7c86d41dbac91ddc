"""Decoding loop: draft, verify in one forward pass, accept, observe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from time import perf_counter, process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds._core import Session, TokenTree
from specds.constraints import Guide
from specds.drafters.session import EMPTY_TREE
from specds.drafters.step import Step
from specds.generation.acceptance import Chooses, Emits, PassRequest, walk
from specds.generation.budget import FixedBudget
from specds.generation.noise import BatchNoise
from specds.generation.runner import Verifier
from specds.generation.stats import GenerationStats

# The accepted nodes of each row, and the target's predictions at all its nodes.
AcceptResult = tuple[list[list[int]], Sequence[NDArray[np.int64] | None]]

_SILENT = Session()
"""Session without drafts, for a context whose last token is outside the drafter's vocabulary."""


@dataclass
class Row:
    """One sequence of a request.

    Attributes:
        prompt_ids: int64 `(1, prompt_length)`, without padding: a tensor or an array, as the
            runner takes it.
        open: Opens a session for a prompt.
        known_tokens: The drafter's vocabulary; sessions get no other token.
        number: The row's number in the request.
        external_session: The caller's session, which has observed the prompt and outlives the
            request.
        guide: The grammar of the text, by which its sessions draft.
        max_length: Most tokens, prompt and padding included.
        on_step: Called with each step of the row, the prefill included.
        drafted: For each emitted token, whether it had been drafted.
        new: The tokens that the last step emitted.
    """

    prompt_ids: Any
    sampler: Chooses
    emitter: Emits
    open: Callable[[Sequence[int]], Session]
    known_tokens: int
    number: int = 0
    external_session: Session | None = None
    guide: Guide | None = None
    max_length: int = sys.maxsize
    on_step: Callable[[Step], object] | None = None
    session: Session = field(init=False)
    drafted: list[bool] = field(default_factory=list)
    new: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.external_session is None:
            self._begin(self.prompt_ids[0].tolist())
        else:
            self.session = self.external_session

    @property
    def logits_only(self) -> bool:
        """True if acceptance depends only on logits and noise, so that it can run on the device."""
        return self.sampler.logits_only and (self.sampler.is_argmax or not self.session.proposes)

    def _begin(self, token_ids: list[int]) -> None:
        """Open a session for the tokens after the last one outside the drafter's vocabulary."""
        if max(token_ids) >= self.known_tokens:
            unknown = [token >= self.known_tokens for token in reversed(token_ids)]
            token_ids = token_ids[len(token_ids) - unknown.index(True) :]
        self.session = self.open(token_ids) if token_ids else _SILENT

    def finish(self) -> None:
        """Finish the session, unless it is the caller's."""
        ended, self.session = self.session, _SILENT
        if ended is not self.external_session:
            ended.finish()

    def accept(self, nodes: list[int], tokens: list[int]) -> list[int]:
        """Emit tokens that were accepted on the device, up to a stop, and return their nodes."""
        for token in tokens:
            self.emitter.emit(token)
            if self.emitter.finished:
                break
        path = nodes[: len(self.emitter.emitted) - len(self.drafted)]
        self.record_emitted(len(path))
        return path

    def record_emitted(self, num_accepted: int) -> None:
        """Record the tokens emitted since the last call, the first `num_accepted` as drafted."""
        self.new = self.emitter.emitted[len(self.drafted) :]
        self.drafted += [index < num_accepted for index in range(len(self.new))]

    def observe(self, tree: TokenTree, predictions: NDArray[np.int64] | None) -> None:
        """Pass the emitted tokens and, if there are any, the predictions to the session."""
        if self.guide is not None:
            self.guide.follow(self.new)
        if predictions is not None and predictions.size:
            self.session.observe_predictions(tree, predictions)
        if max(self.new) < self.known_tokens and self.session is not _SILENT:
            self.session.observe(self.new, len(tree))
        else:
            # An unknown token ends the session; what follows it begins another.
            self.finish()
            self._begin(self.new)


@dataclass
class Decoding:
    """Decodes sequences together: a step drafts for each and runs one forward pass over all.

    Attributes:
        runner: Verifies the drafts; it has not seen the prompts yet.
        synchronize: Called before each reading of the clock, to wait for a device.
        noise: The random numbers of samples; None if each sampler draws its own.
        is_on_cpu: Whether this process computes the steps, so that its CPU time is known.
    """

    runner: Verifier
    budget: FixedBudget
    synchronize: Callable[[], object] | None = None
    noise: BatchNoise | None = None
    is_on_cpu: bool = False

    def __post_init__(self) -> None:
        self.stats = GenerationStats()
        # The runner, if it also accepts.
        self._accepts: Any = None
        # The time of one row in each step without drafts.
        self._baseline_steps_s: list[float] = []
        self._last = 0.0

    def run(self, rows: Sequence[Row], chunk_size: int | None) -> None:
        """Emit tokens until every sequence has met a stopping criterion."""
        runner = self.runner
        if rows[0].logits_only and runner.accepts:
            self._accepts = runner
        start = self._last = self._now()
        self._prefill(rows, chunk_size)
        active = list(rows)
        self._drop_finished(active)
        while active:
            self.step(active)
            self._drop_finished(active)
        self.stats.total_s += self._now() - start
        self.stats.record_baseline_steps(self._baseline_steps_s)
        self.stats.num_emitted_tokens = sum(len(row.emitter.emitted) for row in rows)
        for row in rows:
            self.stats.merge_levels(row.session.level_stats)

    def _prefill(self, rows: Sequence[Row], chunk_size: int | None) -> None:
        logits = self.runner.prefill_rows([row.prompt_ids for row in rows], chunk_size)
        self._record_phase("prefill_s")
        self.begin(rows, logits)

    def begin(self, rows: Sequence[Row], logits: Any) -> None:
        """Emit the first tokens of rows, given the logits after their prompts.

        Args:
            logits: `(num_rows, vocab_size)`.
        """
        self._last = self._now()
        _, predictions = self._follow(rows, [*logits[:, None]], [EMPTY_TREE] * len(rows))
        self._record_phase("accept_s")
        for row, of_row in zip(rows, predictions, strict=True):
            row.observe(EMPTY_TREE, of_row)
            self._report(EMPTY_TREE, [], row)
        self._record_phase("observe_s")

    def step(self, rows: Sequence[Row]) -> None:
        """Draft for rows, verify in one pass, and emit; the rows are those of the runner."""
        self._last = self._now()
        if self.noise is not None:
            self.noise.drop_before(min(len(row.emitter.emitted) for row in rows))
        # One less than the tokens that are left, since each step emits one that was not drafted.
        depths = (row.max_length - row.emitter.length - 1 for row in rows)
        max_depths = [min(depth, self.runner.room(row)) for row, depth in enumerate(depths)]
        waiting = self.runner.waiting
        self.stats.num_fed_tokens += len(rows) + sum(waiting)
        trees = self.budget.draft([row.session for row in rows], max_depths, waiting)
        self._record_phase("draft_s")
        drafted_at, cpu_s = self._last, process_time()
        accept = self._accept_on_host if self._accepts is None else self._accept_on_device
        paths, predictions = accept(rows, trees)
        self._record_phase("accept_s")
        kept = zip(paths, rows, strict=True)
        self.runner.commit_rows([path[: len(row.new) - 1] for path, row in kept])
        self._record_phase("compact_s")
        step_s = self._last - drafted_at
        if not any(trees) and not any(waiting):
            self._baseline_steps_s.append(step_s / len(rows))
        if self.is_on_cpu:
            # Without the time that other processes had the cores.
            step_s = min(step_s, process_time() - cpu_s)
        for row, tree, path, of_row in zip(rows, trees, paths, predictions, strict=True):
            self.stats.record_draft(len(tree), len(path))
            self.stats.num_fed_tokens += len(tree)
            row.observe(tree, of_row)
            self._report(tree, path, row)
        new = [None if row.emitter.finished else row.new for row in rows]
        self.budget.record(new, step_s, self._now() - self._last)
        self._record_phase("observe_s")

    def _report(self, tree: TokenTree, path: list[int], row: Row) -> None:
        if row.on_step is not None:
            row.on_step(Step(tree, path, row.new))

    def _now(self) -> float:
        if self.synchronize is not None:
            self.synchronize()
        return perf_counter()

    def _record_phase(self, phase: str) -> None:
        """Add the time since the last call to a phase of the statistics."""
        now = self._now()
        setattr(self.stats, phase, getattr(self.stats, phase) + now - self._last)
        self._last = now

    def _accept_on_host(self, rows: Sequence[Row], trees: list[TokenTree]) -> AcceptResult:
        logits = self.runner.verify_rows([row.new[-1] for row in rows], trees)
        self._record_phase("forward_s")
        return self._follow(rows, logits, trees)

    def _follow(
        self, rows: Sequence[Row], logits: Sequence[Any], trees: Sequence[TokenTree]
    ) -> AcceptResult:
        paths = []
        for row, of_row, tree in zip(rows, logits, trees, strict=True):
            paths.append(walk(of_row, tree, row.emitter, row.sampler, row.session.proposals))
            row.record_emitted(len(paths[-1]))
        most = self._num_predictions(rows)
        if most == 0:
            return paths, [None] * len(rows)
        predictions = self.runner.likeliest(logits, most, rows[0].known_tokens)
        parts = zip(rows, logits, accumulate(map(len, logits)), strict=True)
        return paths, [
            predictions[end - len(of_row) : end, : row.session.num_predictions]
            for row, of_row, end in parts
        ]

    def _num_predictions(self, rows: Sequence[Row]) -> int:
        """Return the most predictions that a session uses, 0 if the next step drafts nothing."""
        return 0 if self.budget.backs_off else max(row.session.num_predictions for row in rows)

    def _accept_on_device(self, rows: Sequence[Row], trees: list[TokenTree]) -> AcceptResult:
        noise = None
        if self.noise is not None:
            nums = [1 + int(tree.depths().max(initial=0)) for tree in trees]
            positions = [len(row.emitter.emitted) for row in rows]
            noise = self.noise.draws_for([row.number for row in rows], positions, nums)
        sampler, known = rows[0].sampler, rows[0].known_tokens
        request = PassRequest(sampler, self._num_predictions(rows), known, noise)
        last = [row.new[-1] for row in rows]
        outcomes = self._accepts.launch(last, trees, request)()
        self._record_phase("forward_s")
        paths, predictions = [], []
        for row, tree, (nodes, tokens, likeliest) in zip(rows, trees, outcomes, strict=True):
            paths.append(row.accept(nodes, tokens))
            predictions.append(likeliest[: 1 + len(tree), : row.session.num_predictions])
        return paths, predictions

    def _drop_finished(self, rows: list[Row]) -> None:
        """Drop finished sequences, and number the others as the runner does."""
        for number in reversed(range(len(rows))):
            if rows[number].emitter.finished:
                if len(rows) > 1:
                    self.runner.leave(number)
                    self.budget.leave(number)
                rows[number] = rows[-1]
                rows.pop()
