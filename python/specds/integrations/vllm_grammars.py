"""Constraints of structured output in vLLM's worker.

vLLM compiles grammars in its scheduler, which cuts a draft at its first forbidden token. The worker
has only the parameters of each request, so a second matcher is made there by vLLM's own backends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds.constraints import Constraint, Guide, constraint_of_engine
from specds.integrations.adapter import resolve, should_log
from specds.integrations.compile_threads import CompileThreads

_OUTPUT = "vllm.v1.structured_output"
_BACKENDS = {
    "xgrammar": f"{_OUTPUT}.backend_xgrammar:XgrammarBackend",
    "guidance": f"{_OUTPUT}.backend_guidance:GuidanceBackend",
}
_KEY = f"{_OUTPUT}.request:get_structured_output_key"
_TOKENIZER = "vllm.tokenizers:cached_tokenizer_from_config"
_PARSER = "vllm.reasoning:ReasoningParserManager.get_reasoning_parser"
NEEDED = (*_BACKENDS.values(), _KEY, _TOKENIZER, _PARSER)
"""Names of vLLM without which structured output is drafted like other text."""

_MAX_COMPILED = 256
"""The number of grammars that are kept."""

StartedGrammar = tuple[Constraint, Any]
"""The constraint of a text and the parser of the reasoning before it, None if there is none."""


class Shadow:
    """The constraint of a request, which follows the emitted tokens.

    Args:
        begun: The constraint at its start. The text is unconstrained until it is compiled.
        prompt_ids: The tokens of the prompt.
    """

    def __init__(self, begun: Future[StartedGrammar], prompt_ids: Sequence[int]) -> None:
        self._begun, self._prompt = begun, prompt_ids
        self._length = len(prompt_ids)
        self._reasoning, self._unread = list[int](), list[int]()
        self._guide: Guide | None = None

    @property
    def constraint(self) -> Constraint | None:
        """Return what is allowed after the text so far, None where nothing is known about it."""
        guide = self._guide
        return None if guide is None or guide.is_lost else guide.constraint

    def follow(self, tokens: NDArray[np.uint32], start: int) -> None:
        """Read the tokens of a row from a position on, of which the first may be known."""
        self._unread += tokens[max(self._length - start, 0) :].tolist()
        self._length = start + len(tokens)
        if not self._begun.done() or self._begun.exception():
            return
        if self._guide is None:
            constraint, parser = self._begun.result()
            if parser is not None and not self._skip_reasoning(parser):
                return
            self._guide = Guide(constraint)
        self._guide.follow(self._unread)
        self._unread.clear()

    def _skip_reasoning(self, parser: Any) -> bool:
        """Return whether the reasoning has ended, whose tokens were then read."""
        before, new = [*self._prompt, *self._reasoning], self._unread
        numbers = range(1, len(new) + 1)
        if not (new and parser.is_reasoning_end_streaming([*before, *new], new)):
            self._reasoning += new
            new.clear()
            return False
        ends = (parser.is_reasoning_end_streaming([*before, *new[:n]], new[:n]) for n in numbers)
        del new[: next(number for number, is_end in zip(numbers, ends, strict=True) if is_end)]
        return True


class Grammars:
    """The compiled grammars of a worker, made in threads so that no step waits for one.

    Args:
        vllm_config: vLLM's configuration.
        log: Logger of failures.
        max_forced: The most tokens of a forced text that are drafted.
    """

    def __init__(self, vllm_config: Any, log: logging.Logger, max_forced: int = 60) -> None:
        self._config, self._log, self._max_forced = vllm_config, log, max_forced
        self._threads, self._lock = CompileThreads(), Lock()
        self._backends: dict[str, Any] = {}
        self._compiled: dict[Any, Future[Any]] = {}
        self._num_failures = 0

    def shadow(self, sampling: Any, prompt_ids: Sequence[int] | None) -> Shadow | None:
        """Return the shadow of a request, None if no known backend constrains its text."""
        params = getattr(sampling, "structured_outputs", None)
        if prompt_ids is None or getattr(params, "_backend", None) not in _BACKENDS:
            return None
        stop_ids = frozenset(sampling.all_stop_token_ids)
        begun = Future[StartedGrammar]()
        self._threads.submit(self._begin, begun, params, stop_ids, prompt_ids)
        return Shadow(begun, prompt_ids)

    def _begin(
        self,
        begun: Future[StartedGrammar],
        params: Any,
        stop_ids: frozenset[int],
        prompt_ids: Sequence[int],
    ) -> None:
        """Compile the grammar, or wait without a thread while another request's thread does."""

        def begin(compiled: Future[Any]) -> None:
            try:
                constraint = constraint_of_engine(compiled.result(), self._max_forced)
                if constraint is None:
                    raise TypeError(f"vLLM's {params._backend} has another matcher than expected")
                begun.set_result((constraint, self._parser(prompt_ids)))
            except Exception as error:
                self._num_failures += 1
                if should_log(self._num_failures - 1, self._num_failures):
                    self._log.warning("specds drafts without a request's grammar: %s", error)
                begun.set_exception(error)

        try:
            compiled = self._grammar(params, stop_ids)
        except Exception as error:
            compiled = Future()
            compiled.set_exception(error)
        compiled.add_done_callback(begin)

    def _grammar(self, params: Any, stop_ids: frozenset[int]) -> Future[Any]:
        """Return vLLM's grammar at its start, whose matcher is copied and never moved.

        The first call for a grammar returns after it was compiled.
        """
        name: str = params._backend
        kind, source = resolve(_KEY)(params)
        key = (name, kind, source, stop_ids)
        with self._lock:
            if (known := self._compiled.get(key)) is not None:
                return known
            if len(self._compiled) >= _MAX_COMPILED:
                self._compiled.clear()
            backend = self._backend(name)
            compiled = self._compiled[key] = Future()
        try:
            compiled.set_result(backend.compile_grammar(kind, source, stop_token_ids=stop_ids))
        except Exception as error:
            compiled.set_exception(error)
        return compiled

    def _backend(self, name: str) -> Any:
        if name not in self._backends:
            size = self._config.model_config.get_vocab_size()
            about = {"tokenizer": self._tokenizer(), "vocab_size": size}
            self._backends[name] = resolve(_BACKENDS[name])(self._config, **about)
        return self._backends[name]

    def _tokenizer(self) -> Any:
        return resolve(_TOKENIZER)(model_config=self._config.model_config)

    def _parser(self, prompt_ids: Sequence[int]) -> Any:
        """Return the reasoning parser if the text begins with reasoning that has no grammar."""
        about = self._config.structured_outputs_config
        if not about.reasoning_parser or about.enable_in_reasoning:
            return None
        make: Callable[..., Any] = resolve(_PARSER)(about.reasoning_parser)
        parser = make(tokenizer=self._tokenizer())
        return None if parser.is_reasoning_end(prompt_ids) else parser
