"""Threads that compile grammars, of which one that takes a minute delays no other for long."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class CompileThreads:
    """Threads for calls that cannot be interrupted and may never end.

    A call that waited for `patience` seconds gets an additional thread. The threads are daemons, so
    the process can end while they run.

    Args:
        num_threads: The usual number of threads.
        max_threads: The most threads, while long calls run.
        patience: Seconds that the next call waits for one of the usual threads.
    """

    def __init__(self, num_threads: int = 4, max_threads: int = 16, patience: float = 2.0) -> None:
        self._num_threads, self._max_threads = num_threads, max_threads
        self._patience, self._num_running = patience, 0
        self._has_ended = Condition()
        self._calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]]]()
        self._starter: Thread | None = None

    def submit(self, call: Callable[..., _Result], *arguments: Any) -> Future[_Result]:
        """Return the future result of a call; calls start in this order."""
        result = Future[_Result]()
        self._calls.put((result, lambda: call(*arguments)))
        if self._starter is None:
            self._starter = Thread(target=self._start_calls, name="specds", daemon=True)
            self._starter.start()
        return result

    def _start_calls(self) -> None:
        while True:
            call = self._calls.get()
            with self._has_ended:
                self._has_ended.wait_for(lambda: self._has_room(self._num_threads), self._patience)
                self._has_ended.wait_for(lambda: self._has_room(self._max_threads))
                self._num_running += 1
            Thread(target=self._run, args=call, name="specds", daemon=True).start()

    def _has_room(self, num_threads: int) -> bool:
        return self._num_running < num_threads

    def _run(self, result: Future[Any], call: Callable[[], Any]) -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)
        with self._has_ended:
            self._num_running -= 1
            self._has_ended.notify()
