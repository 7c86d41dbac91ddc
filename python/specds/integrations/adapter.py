"""What all adapters share: they open the drafter, and go on without drafts if it fails."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from specds._core import EngineDrafter
from specds.integrations.metrics import publish

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MIN_PROB = 0.1
"""Of a path of a chain, where nothing tells what a step costs."""

_Call = TypeVar("_Call", bound="Callable[..., Any]")


class Adapter:
    """Base class of all adapters.

    Args:
        options: Keywords of `EngineDrafter`; without `datastore`, the one that the model's
            folder names is used.
        tokenizer: The engine's tokenizer, or its name or folder.
        max_nodes: The most tokens of a draft.
        group: The engine's ranks that verify the same, of which the first alone drafts; None for
            one.
        times_steps: Whether the adapter calls `begin_draft` and `end_draft`: drafts then have by
            default what pays by the times of the engine's steps, otherwise what is likely enough.

    Attributes:
        log: What it tells goes there: a line of what it drafts from, then failures.
        drafts: Whether this process drafts; another rank may do so for it.
        wishes: What requests wish, by their names; None for no drafts.
        has_tenants: Whether the engine tells whose request it is.
        num_failures: How many `guarded` calls raised.

    Raises:
        ValueError: The configuration is wrong, or the datastore is of another tokenizer.
        FormatError: The datastore cannot be read.
    """

    log = logging.getLogger("specds")
    has_tenants = False

    def __init__(
        self,
        options: Mapping[str, Any],
        max_nodes: int,
        *,
        vocab_size: int | None = None,
        tokenizer: str | PreTrainedTokenizerBase | None = None,
        group: Any = None,
        times_steps: bool = False,
    ) -> None:
        name = ""
        self.group, self.wishes = group, dict[str, dict[str, Any] | None]()
        self.drafts = group is None or bool(group.is_first_rank)
        if not self.drafts:
            options, tokenizer = {}, None
        default = {"step_cost": "measured"} if times_steps else {"min_prob": MIN_PROB}
        options = {**default, **options}
        if isinstance(tokenizer, str) and "datastore" not in options:
            from specds.hub import named_datastore

            options = {**options, "datastore": named_datastore(tokenizer)}
        if tokenizer is not None and options.get("datastore") is not None:
            from specds.loading import load_encoder
            from specds.tokenization import fingerprint

            loaded = load_encoder(tokenizer) if isinstance(tokenizer, str) else tokenizer
            name = fingerprint(loaded)
        self.drafter = EngineDrafter(**dict(options), vocab_size=vocab_size, tokenizer=name)
        # At the end of the adapter or of the process.
        weakref.finalize(self, _close, self.drafter, self.log)
        self.max_nodes, self.num_failures = max_nodes, 0
        if self.drafts:
            self.log.info("specds drafts at most %d tokens a row: %r", max_nodes, self.drafter)
        self._stats = self._counted()
        _warn(self.drafter, self.log)
        if options.get("memory") == "tenants" and not self.has_tenants:
            self.log.warning("specds: this engine names no tenants, so nothing is remembered")
        self._ended_at: float | None = None

    def sync(
        self,
        contexts: Sequence[Any],
        names: Sequence[str] | None = None,
        starts: Sequence[int] | None = None,
    ) -> None:
        """Takes the contexts of a batch, as `EngineDrafter.sync`, and what the named ones wish."""
        wishes = [self.wishes.get(name, {}) for name in names or ()]
        if names is not None:
            rows = zip(contexts, wishes, strict=True)
            contexts = [None if wish is None else context for context, wish in rows]
        self.drafter.sync(contexts, starts=starts, names=names, wishes=wishes)
        for context, wish in zip(contexts, wishes, strict=False):
            if context is not None and wish:
                wish.pop("predicted_output", None)  # it is known from now on

    def begin_draft(self, *, is_decoding: bool = True) -> None:
        """Call after `sync`: the engine's last step is over, and its time is measured.

        A step in which the engine read a prompt does not count.
        """
        num_opened = self._stats["num_opened"]
        self.tell()
        has_begun = self._stats["num_opened"] > num_opened
        if is_decoding and not has_begun and self._ended_at is not None:
            self.drafter.observe_step_time(perf_counter() - self._ended_at)

    def tell(self) -> None:
        """Tells what came of the last drafts: call after `sync`, if not `begin_draft`."""
        before, self._stats = self._stats, self._counted()
        publish(before, self._stats)
        if _is_told(before["num_memory_failures"], self._stats["num_memory_failures"]):
            _warn(self.drafter, self.log)

    def _counted(self) -> dict[str, Any]:
        return {**self.drafter.stats(), "num_failures": self.num_failures}

    def end_draft(self) -> None:
        """Call after drafting: the engine's step begins."""
        self._ended_at = perf_counter()

    def chains(self, num_left: Iterable[int]) -> list[list[int]]:
        """Drafts a chain of at most `max_nodes` tokens for each row.

        `num_left` is how many tokens each row may still get: one place is for the bonus token.
        """
        left = [max(number - 1, 0) for number in num_left]
        token_ids, numbers, _ = self.drafter.draft_chains(self.max_nodes, max_nodes=left)
        rows = zip(token_ids.tolist(), numbers.tolist(), strict=True)
        return [row[:number] for row, number in rows]


def _warn(drafter: EngineDrafter, log: logging.Logger) -> None:
    for warning in drafter.warnings:
        log.warning("specds: %s", warning)


def _close(drafter: EngineDrafter, log: logging.Logger) -> None:
    before = drafter.stats()["num_memory_failures"]
    drafter.close()
    if drafter.stats()["num_memory_failures"] > before:
        _warn(drafter, log)


def _is_told(before: int, now: int) -> bool:
    """Whether one of these failures is told of: the first, the second, the fourth and so on."""
    return now.bit_length() > before.bit_length()


def wishes_of(extra: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a request wishes, of the extra arguments that its engine carries; None for no drafts.

    These are `specds_off`, `specds_tenant`, `specds_group` and `specds_predicted_output`, token
    ids. What is of another type is left out.
    """
    given = {key.removeprefix("specds_"): value for key, value in (extra or {}).items()}
    if given.get("off"):
        return None
    names = ("tenant", "group")
    wishes = {name: given[name] for name in names if isinstance(given.get(name), str)}
    predicted = given.get("predicted_output")
    if isinstance(predicted, list) and all(
        isinstance(token, int) and 0 <= token < 1 << 32 for token in predicted
    ):
        wishes["predicted_output"] = predicted
    return {"tenant": "", **wishes}


def guarded(otherwise: Callable[..., Any]) -> Callable[[_Call], _Call]:
    """Makes a method return `otherwise(...)` if it raises.

    An adapter logs its first failure, the second, the fourth, and so on.
    """

    def guard(call: _Call) -> _Call:
        @functools.wraps(call)
        def method(self: Adapter, *args: Any, **kwargs: Any) -> Any:
            try:
                return call(self, *args, **kwargs)
            except Exception:
                self.num_failures += 1
                if _is_told(self.num_failures - 1, self.num_failures):
                    self.log.exception("specds drafts nothing: failure %d", self.num_failures)
                return otherwise(self, *args, **kwargs)

        return cast("_Call", method)

    return guard
