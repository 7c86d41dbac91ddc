"""Requests that several ways of decoding answer in turns, with their times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from specds.drafters import FusedDrafter
from specds.drafters.step import Step
from specds.generation import generate
from specds.models.gguf_model import GgufModel

# The first passes of a process read the weights from the file.
_WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class TimedRequest:
    """A prompt, int64 `(1, num_tokens)`, its title, what is shown of it, and its grammar."""

    title: str
    shown: str
    token_ids: Any
    grammar: Any = None


@dataclass
class Answers:
    """The answers of one way to one request.

    Attributes:
        seconds: The wall-clock seconds of all rounds.
        cpu_seconds: The CPU seconds of all rounds, of all threads.
        num_tokens: The tokens of all rounds.
        text: The tokens of the last round.
        steps: The steps of the last round; none in llama.cpp.
        passes: The forward passes of the last round after the prompt.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    num_tokens: int = 0
    text: Sequence[int] = ()
    steps: Sequence[Step] = ()
    passes: int = 0


class SpecdsDecoding:
    """Greedy decoding with drafts or without.

    Args:
        name: Its name in tables.
        model: The model.
        make_drafter: Makes the drafter that the requests of a round share; None decodes without
            drafts.
    """

    def __init__(
        self, name: str, model: GgufModel, make_drafter: Callable[[], FusedDrafter] | None = None
    ) -> None:
        self.name, self._model, self._make_drafter = name, model, make_drafter
        self._drafter: FusedDrafter | None = None

    def start_round(self) -> None:
        self._drafter = self._make_drafter() if self._make_drafter else None

    def decode(
        self, request: TimedRequest, max_new_tokens: int
    ) -> tuple[list[int], list[Step], int]:
        """Return the text, its steps, and the forward passes after the prompt."""
        steps: list[Step] = []
        output = generate(
            self._model,
            request.token_ids,
            self._drafter,
            max_nodes=0 if self._drafter is None else "auto",
            grammar=request.grammar,
            on_step=steps.append,
            max_new_tokens=max_new_tokens,
            do_sample=False,
        )
        text = output.sequences[0, request.token_ids.shape[1] :].tolist()
        return text, steps, output.stats.num_drafts


class LlamaCppDecoding:
    """llama.cpp on the same file and threads, by llama-cpp-python, if that is installed."""

    name = "llama.cpp"

    def __init__(self, path: str, num_threads: int, eos_ids: Sequence[int]) -> None:
        threads = {"n_threads": num_threads, "n_threads_batch": num_threads}
        llama: Any = import_module("llama_cpp")
        self._llama = llama.Llama(path, n_ctx=2048, verbose=False, **threads)
        self._eos_ids = frozenset(eos_ids)

    @staticmethod
    def is_installed() -> bool:
        return find_spec("llama_cpp") is not None

    def start_round(self) -> None:
        self._llama.reset()

    def decode(
        self, request: TimedRequest, max_new_tokens: int
    ) -> tuple[list[int], list[Step], int]:
        text: list[int] = []
        tokens = self._llama.generate(
            request.token_ids[0].tolist(), temp=0.0, top_k=1, repeat_penalty=1.0
        )
        for token in tokens:
            text.append(token)
            if len(text) == max_new_tokens or token in self._eos_ids:
                break
        return text, [], len(text)


def warm_up(ways: Sequence[SpecdsDecoding | LlamaCppDecoding], request: TimedRequest) -> None:
    """Answer the beginning of a request in each way."""
    for way in ways:
        way.start_round()
        way.decode(request, _WARM_UP_TOKENS)


@dataclass
class Comparison:
    """The answers of each way to each request, by the names of both."""

    ways: Sequence[SpecdsDecoding | LlamaCppDecoding]
    answers: dict[str, dict[str, Answers]] = field(default_factory=dict)
    _num_rounds: int = 0

    def start_round(self) -> None:
        for way in self.ways:
            way.start_round()
        self._num_rounds += 1

    def answer(self, request: TimedRequest, max_new_tokens: int) -> dict[str, Answers]:
        """Answer a request in each way, in the opposite order in every other round."""
        rows = self.answers.setdefault(request.title, {way.name: Answers() for way in self.ways})
        for way in self.ways[:: 1 if self._num_rounds % 2 else -1]:
            if request.grammar is not None and isinstance(way, LlamaCppDecoding):
                continue  # its grammars are of another kind
            row = rows[way.name]
            wall, cpu = time.perf_counter(), time.process_time()
            row.text, row.steps, row.passes = way.decode(request, max_new_tokens)
            row.seconds += time.perf_counter() - wall
            row.cpu_seconds += time.process_time() - cpu
            row.num_tokens += len(row.text)
        return rows
