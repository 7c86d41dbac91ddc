"""A device that computes beside the host, on a machine that has none: a thread, and its events."""

from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from time import perf_counter, sleep, thread_time

import torch

from specds.verify import recordings


class StandInDevice:
    """Does one pass after the other, in `step_s` each at least.

    Args:
        step_s: Seconds.

    Attributes:
        is_busy: Whether a pass is not done yet.
        waits_s: How long it waited for each pass but the first: by the clock, and what the host's
            thread took of a processor meanwhile.
    """

    def __init__(self, step_s):
        self.step_s = step_s
        self.is_busy = False
        self.waits_s = []
        self._passes = SimpleQueue()
        self._done_at = perf_counter()
        self._free_since = None
        self._failure = None

    def _work(self):
        while (taken := self._passes.get()) is not None:
            compute, start = taken
            try:
                compute()
            except BaseException as failure:
                self._failure = failure
            sleep(max(start + self.step_s - perf_counter(), 0))
            self._done_at, self.is_busy = perf_counter(), False

    def rest(self):
        """Counts no wait before the next pass."""
        self._free_since = None

    def begin(self, compute):
        """Starts a pass, and leaves the caller to what it does meanwhile."""
        now = perf_counter()
        if self._free_since is not None:
            since, host_s = self._free_since
            self.waits_s.append((now - since, thread_time() - host_s))
        self.is_busy = True
        self._passes.put((compute, now))

    def synchronize(self):
        """Waits for the pass that was begun last, as an event of CUDA does: without sleep."""
        is_early = self.is_busy
        while self.is_busy:
            sleep(0)
        if self._failure is not None:
            raise self._failure
        # How late a thread hears of another one is the stand-in's own.
        self._free_since = perf_counter() if is_early else self._done_at, thread_time()

    @contextmanager
    def in_use(self):
        """Has passes on the CPU go to this device."""
        before = recordings.recorder, recordings.launched
        recordings.recorder = lambda _: lambda compute, *_: _Recording(self, compute)
        recordings.launched = lambda _: self.synchronize
        recordings._free.clear()
        thread = Thread(target=self._work, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._passes.put(None)
            thread.join()
            recordings.recorder, recordings.launched = before
            recordings._free.clear()


class _Recording:
    """A pass that is computed by the device whenever it is replayed."""

    def __init__(self, device, compute):
        self._device, self._compute = device, compute
        # By turns, as what the pass before told may not be read yet.
        self.output, self._other = compute(), compute()

    def replay(self):
        self.output, self._other = self._other, self.output
        output = self.output
        if output.is_floating_point():  # logits are read here, to sample from
            self._run(output)
        else:
            self._device.begin(lambda: self._run(output))

    @torch.inference_mode()
    def _run(self, output):
        output.copy_(self._compute())
