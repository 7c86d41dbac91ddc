"""A stand-in for an asynchronous device, on a machine that has none: a thread and its events."""

from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import sleep

import pytest
import torch

from specds.transformers.verify import recordings


class StandInDevice:
    """Does one pass after the other, a millisecond late.

    Attributes:
        num_waits: How often the host gave it another pass after it had waited for one.
    """

    def __init__(self):
        self.num_waits = 0
        self._has_waited = self._is_busy = False
        self._passes = SimpleQueue()
        self._failure = None

    def _work(self):
        while (compute := self._passes.get()) is not None:
            sleep(1e-3)
            try:
                compute()
            except BaseException as failure:
                self._failure = failure
            self._is_busy = False

    def begin(self, compute):
        """Start a pass in a thread."""
        self.num_waits += self._has_waited
        self._is_busy = True
        self._passes.put(compute)

    def synchronize(self):
        """Wait for the last pass, as a CUDA event does."""
        while self._is_busy:
            sleep(0)
        if self._failure is not None:
            raise self._failure
        self._has_waited = True

    @contextmanager
    def in_use(self):
        """Run the passes of the CPU on this device."""
        thread = Thread(target=self._work, daemon=True)
        thread.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recordings, "recorder", lambda _: partial(_Pass, self))
            patch.setattr(recordings, "device_event", lambda _: self.synchronize)
            recordings._free.clear()
            try:
                yield self
            finally:
                self._passes.put(None)
                thread.join()
                recordings._free.clear()


class _Pass:
    """A pass that is computed by the device whenever it is replayed."""

    def __init__(self, device, compute, *_):
        self._device, self._compute = device, compute
        # Two buffers take turns, because the previous pass's output may still be unread.
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
