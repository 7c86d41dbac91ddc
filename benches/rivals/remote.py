"""A rival in a process of its own interpreter, as a drafter."""

from __future__ import annotations

import json
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from rivals.answers import (
    RivalAbsentError,
    RivalAnswerError,
    RivalError,
    check_drafts,
    contexts_of,
)
from rivals.corpus import RivalCorpus, corpus_of
from specds._core import TokenTree
from specds.drafters import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from specds import Datastore
    from specds.bench.transcripts import Transcript

_SCRIPT = Path(__file__).with_name("rival_engines.py")
_CHECKED_NODES = 16


@contextmanager
def open_remote(
    name: str, python: Path | None, datastore: Datastore | None, requests: Sequence[Transcript]
) -> Iterator[Callable[[], RemoteDrafter]]:
    """Starts a rival's process and yields what makes a new drafter, after a check of its answers.

    Raises:
        RivalAbsentError: No interpreter was given, or the rival is not installed for it.
        RivalAnswerError: A draft is no draft.
        RivalError: Its process ended; the message is the last line of its standard error.
    """
    if python is None:
        raise RivalAbsentError("no interpreter given: make one by `make bench-rivals`")
    corpus = None if datastore is None else corpus_of(datastore)
    with RivalProcess.start(name, corpus, python) as process:
        drafter = RemoteDrafter(process)
        vocab_size = None if datastore is None else datastore.vocab_size
        check_drafts(drafter, contexts_of(requests), _CHECKED_NODES, vocab_size)
        yield lambda: RemoteDrafter(process)


class RivalProcess:
    """A child that answers one JSON line with another."""

    def __init__(self, child: subprocess.Popen[str], errors: IO[bytes]) -> None:
        self._child = child
        self._errors = errors

    @classmethod
    @contextmanager
    def start(cls, name: str, corpus: RivalCorpus | None, python: Path) -> Iterator[RivalProcess]:
        """Runs a rival until the block ends.

        Raises:
            RivalAbsentError: It is not installed for `python`, or there is no such interpreter.
        """
        with tempfile.TemporaryFile() as errors:
            try:
                child = subprocess.Popen(
                    [str(python), str(_SCRIPT)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            except OSError as error:
                raise RivalAbsentError(f"{python} cannot be run: {error.strerror}") from error
            process = cls(child, errors)
            try:
                process._begin(name, corpus)
                yield process
            finally:
                process._end()

    def _begin(self, name: str, corpus: RivalCorpus | None) -> None:
        request: dict[str, Any] = {"name": name}
        if corpus:
            request |= corpus.request(corpus.path.parent / name)
        started = self.call("start", **request)
        if "absent" in started:
            raise RivalAbsentError(started["absent"])

    def _end(self) -> None:
        for pipe in (self._child.stdin, self._child.stdout):
            with suppress(BrokenPipeError):  # what it had no time to read is lost with it
                if pipe is not None:
                    pipe.close()
        self._child.wait()

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Asks the child.

        Raises:
            RivalError: It ended.
        """
        pipe, answers = self._child.stdin, self._child.stdout
        if pipe is None or answers is None:
            raise RivalError("the process has no pipes")
        try:
            pipe.write(json.dumps({"operation": operation, **arguments}) + "\n")
            pipe.flush()
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._child.wait()
            self._errors.seek(0)
            written = self._errors.read().decode(errors="replace").strip().splitlines()
            raise RivalError(written[-1] if written else "ended without a word")
        answer: dict[str, Any] = json.loads(line)
        return answer


class RemoteDrafter:
    """Makes sessions in a rival's process, which forgets all earlier ones first."""

    vocab_size = None

    def __init__(self, process: RivalProcess) -> None:
        self._process = process
        process.call("forget")

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> RemoteSession:
        """Starts a request."""
        return RemoteSession(self._process, prompt_ids)


class RemoteSession(Session):
    """One request; `elapsed_ns` is the time of the last call, as the child measured it."""

    def __init__(self, process: RivalProcess, prompt_ids: Sequence[int] | np.ndarray) -> None:
        self._process = process
        self._elapsed_ns = 0
        process.call("session", token_ids=np.asarray(prompt_ids).tolist())

    @property
    def elapsed_ns(self) -> int:
        """Nanoseconds of the last call."""
        return self._elapsed_ns

    def draft(self, max_nodes: int, *_: Any) -> TokenTree:
        """Drafts at most `max_nodes` nodes.

        Raises:
            RivalAnswerError: What came back is no tree of tokens.
        """
        answer = self._process.call("draft", max_nodes=max_nodes)
        self._elapsed_ns = answer["elapsed_ns"]
        try:
            return TokenTree(answer["token_ids"], answer["parents"])
        except (TypeError, ValueError, OverflowError) as error:
            raise RivalAnswerError(f"its draft is no tree of tokens: {error}") from error

    def observe(
        self, token_ids: Sequence[int] | np.ndarray, num_verified: int | None = None
    ) -> None:
        """Appends tokens."""
        answer = self._process.call("observe", token_ids=np.asarray(token_ids).tolist())
        self._elapsed_ns = answer["elapsed_ns"]

    def finish(self) -> None:
        """Ends the request."""
        self._process.call("finish")
