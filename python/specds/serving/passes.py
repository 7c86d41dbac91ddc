"""The engine of the core: rows of a cache that share forward passes."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from specds._core import ForwardCache
from specds.drafters.fused import FusedDrafter
from specds.generation.budget import AutoBudget, draft_stats_of, step_times_of
from specds.generation.loop import Decoding
from specds.generation.native import NativeRunner
from specds.models.gguf_model import GgufModel
from specds.models.needs import require_cache_memory
from specds.serving.engine import Engine
from specds.serving.job import RowJob
from specds.serving.slots import Slots

CHUNK = 256
"""Tokens of prompts that are read between two passes that write."""


class _RunnerOfRows(NativeRunner):
    """The rows of a cache that are being decoded: they come and go."""

    def __init__(self, model: GgufModel, states: ForwardCache) -> None:
        super().__init__(model, num_rows=0)
        self.takes_trees = model.weights.takes_trees
        self.states = states

    def join(self, row: int) -> None:
        self._rows.append(row)

    def leave(self, row: int) -> None:
        """End a row, whose states stay."""
        self._rows[row] = self._rows[-1]
        self._rows.pop()


class PassEngine(Engine):
    """Reads prompts in parts, and decodes all texts in shared passes.

    Args:
        drafter: Its statistics say how many nodes pay off.
        slots: The rows, at least `parallel`.
        **limits: As of `Engine`.
    """

    def __init__(
        self, model: GgufModel, drafter: FusedDrafter, slots: Slots, **limits: int
    ) -> None:
        self._model, self._slots = model, slots
        self._runner = _RunnerOfRows(model, slots.states)
        times = step_times_of(model, (*self._runner.setting, "rows"), self._runner)
        is_chain = not self._runner.takes_trees
        stats = draft_stats_of(drafter)
        self._budget = AutoBudget(times, stats, model.vocab_size, 0, is_chain=is_chain)
        self._decoding = Decoding(self._runner, self._budget, is_on_cpu=True)
        self._reading: deque[RowJob] = deque()
        self._writing: list[RowJob] = []

        def make(asked: Any, *given: Any, **about: Any) -> RowJob:
            return RowJob(asked, model, *given, **about)

        super().__init__(make, **limits)

    def _idle(self) -> None:
        self._slots.forget_deleted()

    def _begin(self, job: RowJob) -> None:
        job.slot = self._slots.take(job.asked.tenant, job.asked.prompt)
        job.num_cached = self._slots.states.length(job.slot.row)
        self._reading.append(job)

    def _turn(self) -> None:
        for job in [job for job in self._reading if job.is_left]:
            self._reading.remove(job)
            self._end(job)
        for number in reversed(range(len(self._writing))):
            if self._writing[number].is_left:
                self._drop(number)
        if self._reading:
            self._read()
        if self._writing:
            self._decoding.step([job.row for job in self._writing])
            self.counts["passes"] += 1
            for number in reversed(range(len(self._writing))):
                if self._writing[number].emitter.finished:
                    self._drop(number)
            for job in self._writing:
                job.send_update()

    def _read(self) -> None:
        """Read a part of the next prompts, and begin to write after the last one."""
        states, inputs, room = self._slots.states, [], CHUNK
        for job in [*self._reading]:
            assert job.slot is not None
            start, prompt = states.length(job.slot.row), job.asked.prompt
            end = min(start + room, len(prompt))
            if job.asked.mark_at is not None and start < job.asked.mark_at:
                end = min(end, job.asked.mark_at)
            inputs.append((job, prompt[start:end], end == len(prompt)))
            room -= end - start
            if room == 0:
                break
        try:
            for job, part, _ in inputs:
                start = len(job.asked.prompt) - len(part)
                require_cache_memory(self._model, start + len(part), start)
            rows = [(job.slot.row, part, None, int(last)) for job, part, last in inputs]  # type: ignore[union-attr]
            logits = iter(self._model.compute(states, rows))
        except MemoryError as error:
            for job, *_ in inputs:
                self._reading.remove(job)
                job.failure = error
                self._end(job)
            return
        for job, part, is_last in inputs:
            assert job.slot is not None
            states.commit(job.slot.row, np.arange(len(part)))
            self.counts["prompt_tokens"] += len(part)
            if states.length(job.slot.row) == job.asked.mark_at:
                states.mark(job.slot.row)
            if is_last:
                self._reading.remove(job)
                self._write(job, next(logits))
            elif room == 0 and len(inputs) > 1:
                self._reading.rotate(-1)

    def _write(self, job: RowJob, logits: Any) -> None:
        assert job.slot is not None
        if job.asked.max_new_tokens == 0:
            self._end(job)
            return
        self._runner.join(job.slot.row)
        self._budget.join()
        self._writing.append(job)
        self._decoding.begin([job.row], logits[None])
        if job.emitter.finished:
            self._drop(len(self._writing) - 1)
        else:
            job.send_update()

    def _drop(self, number: int) -> None:
        """End a text that is written; the last one takes its number, as in runner and budget."""
        job = self._writing[number]
        self._runner.leave(number)
        self._budget.leave(number)
        self._writing[number] = self._writing[-1]
        self._writing.pop()
        self._end(job)

    def _end(self, job: RowJob) -> None:
        if job.slot is not None:
            self._slots.give_back(job.slot, job.emitter.token_ids[0].copy())
            job.slot = None
        super()._end(job)

    def _abandon(self, error: Exception) -> None:
        for number in reversed(range(len(self._writing))):
            self._writing[number].failure = error
            self._drop(number)
        self._reading.clear()
        super()._abandon(error)
