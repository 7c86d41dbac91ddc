"""Drafter that runs a baseline in another interpreter."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from baselines.answers import (
    BaselineAbsentError,
    BaselineAnswerError,
    BaselineError,
    check_drafts,
    contexts_of,
)
from baselines.corpus import corpus_of
from specds import Datastore
from specds.bench.transcripts import Transcript
from specds.drafters import Session, TokenTree

_SCRIPT = Path(__file__).with_name("engines.py")
_CHECKED_NODES = 16


@contextmanager
def open_remote(
    name: str, python: Path | None, datastore: Datastore | None, requests: Sequence[Transcript]
) -> Iterator[Callable[[], RemoteDrafter]]:
    """Start a baseline's process, check its drafts, and yield a function that makes a drafter.

    Raises:
        BaselineAbsentError: No interpreter was given, or the baseline is not installed for it.
        BaselineAnswerError: A draft is invalid.
        BaselineError: The process ended; the message is the last line of its standard error.
    """
    if python is None:
        raise BaselineAbsentError("no interpreter given: `make bench-acceptance` makes one")
    request: dict[str, Any] = {"name": name}
    if datastore is not None:
        request |= corpus_of(datastore)
        request["folder"] = str(Path(request["tokens"]).with_name(name))
    with BaselineProcess.of(python) as process:
        started = process.call("start", **request)
        if "absent" in started:
            raise BaselineAbsentError(started["absent"])
        vocab_size = None if datastore is None else datastore.vocab_size
        check_drafts(RemoteDrafter(process), contexts_of(requests), _CHECKED_NODES, vocab_size)
        yield lambda: RemoteDrafter(process)


class BaselineProcess:
    """Child process that answers each JSON line with another."""

    def __init__(self, child: subprocess.Popen[str], errors: IO[bytes]) -> None:
        self._child = child
        self._errors = errors

    @classmethod
    @contextmanager
    def of(cls, python: Path) -> Iterator[BaselineProcess]:
        """Run an interpreter until the block ends."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with tempfile.TemporaryFile() as errors:
            try:
                child = subprocess.Popen([str(python), str(_SCRIPT)], stderr=errors, **pipes)
            except OSError as error:
                raise BaselineAbsentError(f"{python} cannot be run: {error.strerror}") from error
            try:
                yield cls(child, errors)
            finally:
                for pipe in (child.stdin, child.stdout):
                    with suppress(BrokenPipeError):  # the child ended before it read everything
                        pipe.close()
                child.wait()

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call the child; raise `BaselineError` if it ended."""
        line = ""
        with suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps({"operation": operation, **arguments}) + "\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        if line:
            return json.loads(line)
        self._child.wait()
        self._errors.seek(0)
        written = self._errors.read().decode(errors="replace").strip().splitlines()
        raise BaselineError(written[-1] if written else "ended without an error message")


class RemoteDrafter:
    """Drafter in a baseline's process, which first drops all earlier sessions."""

    vocab_size = None

    def __init__(self, process: BaselineProcess) -> None:
        self._process = process
        process.call("forget")

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> RemoteSession:
        return RemoteSession(self._process, prompt_ids)


class RemoteSession(Session):
    """Session of one request; `elapsed_ns` is the child's time of the last call."""

    elapsed_ns = 0

    def __init__(self, process: BaselineProcess, prompt_ids: Sequence[int] | np.ndarray) -> None:
        self._process = process
        process.call("session", token_ids=np.asarray(prompt_ids).tolist())

    def draft(self, max_nodes: int, *_: Any) -> TokenTree:
        answer = self._process.call("draft", max_nodes=max_nodes)
        self.elapsed_ns = answer["elapsed_ns"]
        try:
            return TokenTree(answer["token_ids"], answer["parents"])
        except (TypeError, ValueError, OverflowError) as error:
            raise BaselineAnswerError(f"its draft is not a token tree: {error}") from error

    def observe(
        self, token_ids: Sequence[int] | np.ndarray, num_verified: int | None = None
    ) -> None:
        answer = self._process.call("observe", token_ids=np.asarray(token_ids).tolist())
        self.elapsed_ns = answer["elapsed_ns"]

    def finish(self) -> None:
        self._process.call("finish")
