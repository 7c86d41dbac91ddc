"""The engine: a queue of jobs that is fair to tenants, and one thread that computes them."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from threading import Condition, Thread
from typing import Any

from specds.serving.job import TextJob

_log = logging.getLogger("specds")
_IDLE_S = 30.0
"""Seconds without a job between two calls of `_idle`."""


class BusyError(RuntimeError):
    """The queue is full, or the server stops."""


class Engine:
    """Computes jobs. All methods can be called from any thread.

    Args:
        make: Makes a job of what is asked, a tokenizer, a drafter, and the arguments of `TextJob`.
        parallel: The most texts at once.
        max_waiting: The most jobs that wait.

    Attributes:
        counts: Tokens and requests so far, by name.
        accepted: Accepted tokens by source.
    """

    def __init__(
        self,
        make: Callable[..., TextJob],
        *,
        parallel: int = 4,
        max_waiting: int = 64,
    ) -> None:
        self.make = make
        self._parallel, self._max_waiting = parallel, max_waiting
        self.counts: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self._changed = Condition()
        self._waiting: deque[TextJob] = deque()
        self._active: list[TextJob] = []
        self._num_reserved = 0
        self._is_closed = False
        self._thread = Thread(target=self._run, name="specds-engine", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + self._num_reserved

    @property
    def num_active(self) -> int:
        return len(self._active)

    def reserve(self, number: int) -> None:
        """Take places in the queue, which `submit` or `release` gives back.

        Raises:
            BusyError: There are not as many.
        """
        with self._changed:
            if self._is_closed:
                raise BusyError("the server stops")
            free = max(self._parallel - self.num_active, 0)
            if self.num_waiting + number > self._max_waiting + free:
                self.counts["refused"] += 1
                raise BusyError(f"{self.num_waiting} requests wait: try again later")
            self._num_reserved += number

    def release(self, number: int) -> None:
        with self._changed:
            self._num_reserved -= number

    def submit(self, jobs: Sequence[TextJob]) -> None:
        """Queue jobs, whose places were reserved."""
        with self._changed:
            self._num_reserved -= len(jobs)
            self._waiting.extend(jobs)
            self._changed.notify()

    def cancel(self, jobs: Sequence[TextJob]) -> None:
        """End jobs whose client has left."""
        with self._changed:
            for job in jobs:
                job.is_left = True
            self._changed.notify()

    def stop(self) -> None:
        """End all jobs with an error, and take no more."""
        with self._changed:
            self._is_closed = True
            for job in (*self._waiting, *self._active):
                job.failure, job.is_left = BusyError("the server stops"), True
            self._changed.notify()

    def close(self) -> None:
        """End all jobs, and the thread."""
        self.stop()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._active):
                    if self._is_closed:
                        return
                    if not self._changed.wait(_IDLE_S):
                        self._idle()
                self._admit()
            try:
                self._turn()
            except Exception as error:
                # A row cannot be trusted after a step that failed, whichever one was at fault.
                _log.exception("a pass failed")
                self._abandon(error)

    def _admit(self) -> None:
        """Begin waiting jobs, first those of tenants that have the fewest at work."""
        for job in [job for job in self._waiting if job.is_left]:
            self._waiting.remove(job)
            self._end(job)
        while self._waiting and self.num_active < self._parallel:
            at_work = Counter(job.asked.tenant for job in self._active)
            job = min(self._waiting, key=lambda job: at_work[job.asked.tenant])
            self._waiting.remove(job)
            self._active.append(job)
            self._begin(job)

    def _idle(self) -> None:
        """Do what does not wait for the next job."""

    def _begin(self, job: Any) -> None:
        """Take a job that is active from now on."""

    def _turn(self) -> None:
        """Work on the active jobs for a short time."""
        raise NotImplementedError

    def _abandon(self, error: Exception) -> None:
        """End all active jobs with an error."""
        for job in [*self._active]:
            job.failure = error
            self._end(job)

    def _end(self, job: Any) -> None:
        if job in self._active:
            self._active.remove(job)
        self.counts["new_tokens"] += len(job.emitted)
        self.counts["cached_tokens"] += job.num_cached
        self.counts["canceled" if job.is_left else "finished"] += 1
        self.accepted.update(job.accepted)
        job.send_update(is_end=True)
        job.close()
