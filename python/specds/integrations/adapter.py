"""What all adapters share: opening the drafter, and going on without drafts if it fails."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from specds._core import EngineDrafter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_log = logging.getLogger("specds")
_Call = TypeVar("_Call", bound="Callable[..., Any]")


class Adapter:
    """Base class of all adapters: a drafter whose failures never end the engine.

    Args:
        options: What the operator configured, as for `EngineDrafter`; without `datastore`, the one
            that the model's folder names.
        tokenizer: The engine's tokenizer, or where it lies; None where there is none.
        num_ranks: Processes of the engine, which must all draft the same.

    Attributes:
        num_failures: How many `guarded` calls raised.

    Raises:
        ValueError: The configuration is wrong, or the datastore is of another tokenizer.
        FormatError: The datastore cannot be read.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        vocab_size: int | None = None,
        tokenizer: str | PreTrainedTokenizerBase | None = None,
        num_ranks: int = 1,
    ) -> None:
        name = ""
        if isinstance(tokenizer, str) and "datastore" not in options:
            from specds.hub import named_datastore

            options = {**options, "datastore": named_datastore(tokenizer)}
        if tokenizer is not None and options.get("datastore") is not None:
            from specds.loading import load_encoder
            from specds.tokenization import fingerprint

            loaded = load_encoder(tokenizer) if isinstance(tokenizer, str) else tokenizer
            name = fingerprint(loaded)
        self.drafter = EngineDrafter(
            json.dumps(dict(options)), vocab_size=vocab_size, tokenizer=name, num_ranks=num_ranks
        )
        for warning in self.drafter.warnings:
            _log.warning("specds: %s", warning)
        self.num_failures = 0
        self._num_opened = 0
        self._ended_at: float | None = None

    def begin_draft(self, *, is_decoding: bool = True) -> None:
        """Call after `sync`: the engine's step with the last drafts is over.

        The drafter learns how long it took, unless the engine read a prompt in it.
        """
        num_opened = self.drafter.stats()["num_opened"]
        if is_decoding and num_opened == self._num_opened and self._ended_at is not None:
            self.drafter.observe_step_time(perf_counter() - self._ended_at)
        self._num_opened = num_opened

    def end_draft(self) -> None:
        """Call after drafting: the engine's step begins."""
        self._ended_at = perf_counter()


def guarded(otherwise: Callable[..., Any]) -> Callable[[_Call], _Call]:
    """Has a method call `otherwise` if it raises. The first failure of an adapter is logged."""

    def guard(call: _Call) -> _Call:
        @functools.wraps(call)
        def method(self: Adapter, *args: Any, **kwargs: Any) -> Any:
            try:
                return call(self, *args, **kwargs)
            except Exception:
                self.num_failures += 1
                if self.num_failures == 1:
                    _log.exception("specds drafts nothing where this happens; told once")
                return otherwise(self, *args, **kwargs)

        return cast("_Call", method)

    return guard
