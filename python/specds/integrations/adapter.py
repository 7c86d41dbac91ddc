"""Base class of all adapters: it opens the drafter, and keeps its failures out of the engine."""

from __future__ import annotations

import functools
import logging
import pkgutil
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter, process_time, thread_time
from typing import TYPE_CHECKING, Any, TypeVar, cast

from specds._core import EngineDrafter, TokenTree, is_off
from specds.constraints import Constraint, MatcherConstraint, num_candidates
from specds.integrations.metrics import publish

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NUM_TIMES = 10
"""The steps over which the time of a row is averaged."""

_Call = TypeVar("_Call", bound="Callable[..., Any]")


class IncompatibleError(RuntimeError):
    """The installed engine lacks a name or a call that the adapter needs."""


def resolve(name: str) -> Any:
    """Return an object of the engine by its name, such as ``package.module:Class.method``.

    Raises:
        IncompatibleError: The engine has no object of this name.
    """
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise IncompatibleError(f"{name}: {error}") from error


class Adapter:
    """Base class of all adapters.

    Args:
        options: Keywords of `EngineDrafter`. Without `datastore`, the adapter uses the datastore
            that the model's folder names.
        tokenizer: The engine's tokenizer, or its name or folder.
        max_nodes: Maximum tokens of a draft.
        group: The engine's ranks that verify the same drafts, which only the first rank makes;
            None for a single rank.
        times_steps: Whether the adapter uses `timed_draft`. By default, draft sizes then follow
            the measured cost of the engine's steps; otherwise the probability of a path.
        num_cpu_threads: Threads of this process that compute the engine's steps on a CPU. Their
            CPU time is then measured, to which other programs add nothing; None for wall time.
        token_cost: Usual cost of a further token, over a step of one token, from which measured
            costs start; None if it is not known.

    Attributes:
        log: Logger of the configuration at start and of failures.
        drafts: Whether this process drafts, and not another rank for it.
        request_options: Per-request options by request name; None disables drafts.
        has_tenants: Whether the engine reports the tenant of a request.
        num_failures: Number of `guarded` calls and of grammars that raised.
        num_limited: Number of requests that got no more drafts because their grammar took too long
            or failed.

    Raises:
        ValueError: The configuration is invalid, or the datastore has another tokenizer.
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
        num_cpu_threads: int | None = None,
        token_cost: float | None = None,
    ) -> None:
        self._num_cpu_threads = num_cpu_threads
        self.group = group
        self.request_options: dict[str, dict[str, Any] | None] = {}
        self.drafts = group is None or bool(group.is_first_rank)
        if not self.drafts:
            options, tokenizer = {}, None
        options = _with_datastore(options, tokenizer)
        if options.get("datastore") == "auto":
            options = {**options, "datastore": _default_datastore(tokenizer)}
        about = {
            "vocab_size": vocab_size,
            "tokenizer": _fingerprint(options, tokenizer),
            "times_steps": times_steps,
            "token_cost": token_cost,
        }
        self.drafter = EngineDrafter(**{**options, **about})
        # Runs when the adapter is collected or the process ends.
        weakref.finalize(self, _close, self.drafter, self.log)
        self.max_nodes, self.num_failures, self.num_limited = max_nodes, 0, 0
        self._names: Sequence[str] = ()
        self._row_times = dict[str, deque[float]]()
        self._max_row_time = self.drafter.max_row_time
        if self.drafts:
            self.log.info("specds drafts at most %d tokens per row: %r", max_nodes, self.drafter)
        self._last_stats = self._read_stats()
        self._num_unpublished = 0
        _warn(self.drafter, self.log)
        if options.get("memory_scope") == "tenant" and not self.has_tenants:
            self.log.warning("specds: this engine reports no tenants, so the memory stays empty")
        self._ended_at: float | None = None
        self._has_new_weights = False

    def expect_other_acceptance(self) -> None:
        """Reset what was learned about acceptance before the next draft: the weights have changed.

        Any thread may call this method, for each changed tensor too.
        """
        self._has_new_weights = True

    def sync(
        self,
        contexts: Sequence[Any],
        names: Sequence[str],
        starts: Sequence[int] | None = None,
        num_verified: Sequence[int] | None = None,
    ) -> None:
        """Pass the contexts of a batch and the options of its requests to the drafter."""
        if self._has_new_weights:
            self._has_new_weights, self._ended_at = False, None
            self.drafter.reset_acceptance()
        self._names = names
        given = [self.request_options.get(name, {}) for name in names]
        rows = zip(contexts, given, strict=True)
        contexts = [None if options is None else context for context, options in rows]
        self.drafter.sync(
            contexts, names, starts=starts, request_options=given, num_verified=num_verified
        )
        for context, options in zip(contexts, given, strict=True):
            if context is not None and options:
                options.pop("predicted_output", None)  # the drafter has it from now on

    @contextmanager
    def timed_draft(self, *, is_decoding: bool = True) -> Iterator[None]:
        """Draft inside this context, after `sync`: between two of them runs a step of the engine.

        The drafter observes the time of the step, unless the engine read a prompt in it.
        """
        num_opened = self._last_stats["num_opened"]
        self.publish_stats()
        has_begun = self._last_stats["num_opened"] > num_opened
        if is_decoding and not has_begun and self._ended_at is not None:
            self.drafter.observe_step_time(self._now() - self._ended_at)
        self._ended_at = None  # a draft that fails starts no step
        yield
        self._ended_at = self._now()

    def _now(self) -> float:
        threads = self._num_cpu_threads
        return perf_counter() if threads is None else process_time() / threads

    def publish_stats(self) -> None:
        """Publish the statistics of the last drafts; `timed_draft` calls this method too."""
        before, self._last_stats = self._last_stats, self._read_stats()
        try:
            publish(before, self._last_stats)
        except Exception:  # such as a missing PROMETHEUS_MULTIPROC_DIR
            self._num_unpublished += 1
            if should_log(self._num_unpublished - 1, self._num_unpublished):
                self.log.exception("specds published no metrics: failure %d", self._num_unpublished)
        failures, refused = (
            (before[key], self._last_stats[key])
            for key in ("num_memory_failures", "num_refused_options")
        )
        if should_log(*failures) or refused[0] == 0 < refused[1]:
            _warn(self.drafter, self.log)

    def _read_stats(self) -> dict[str, Any]:
        own = {"num_failures": self.num_failures, "num_limited": self.num_limited}
        return {**self.drafter.stats(), **own}

    def choose_allowed(self, constraints: Iterable[Constraint | None]) -> None:
        """Choose the drafts of rows with a grammar: what it forces, and nothing that it forbids.

        A row that takes longer than `max_row_time`, or fails, gets no drafts from then on, because
        all rows of the batch wait for it.

        Args:
            constraints: That of each row of the last `sync`, None for a row without one at present.
                Time is measured, and errors are caught, while it makes each of them too.
        """
        constraints = iter(constraints)
        times, self._row_times = self._row_times, {}
        for row, name in enumerate(self._names):
            before = thread_time()  # CPU time, to which other programs add nothing
            try:
                is_chosen = self._choose_allowed(row, next(constraints))
            except IncompatibleError:
                raise
            except Exception:
                self._count_failure()
                self._limit(row, name)
                continue
            if is_chosen:
                recent = self._row_times[name] = times.get(name) or deque(maxlen=_NUM_TIMES)
                recent.append(thread_time() - before)
                if sum(recent) > _NUM_TIMES * self._max_row_time:
                    self._limit(row, name)

    def _choose_allowed(self, row: int, constraint: Constraint | None) -> bool:
        if constraint is None or self.request_options.get(self._names[row], {}) is None:
            return False
        most_s = self._max_row_time
        if isinstance(constraint, MatcherConstraint):
            constraint.max_s = most_s / 2
        forced = TokenTree.of_paths(constraint.ahead())
        tree = self.drafter.candidates(row, num_candidates(self.max_nodes), forced)
        most = len(tree)
        if isinstance(constraint, MatcherConstraint) and constraint.mask_s > 0:
            # The engine computes a mask for each drafted token, while all rows wait.
            most = min(most, int(most_s / constraint.mask_s))
        self.drafter.choose(row, tree.allowed(constraint, most, ends=True))
        return True

    def _limit(self, row: int, name: str) -> None:
        """Draft no more for a request."""
        self.drafter.choose(row, TokenTree.of_paths([]))
        self.request_options[name] = None
        self._row_times.pop(name, None)
        self.num_limited += 1
        if should_log(self.num_limited - 1, self.num_limited):
            self.log.warning(
                "specds: the grammar of request %s takes too long or fails, so it gets no more "
                "drafts: limited request %d",
                name,
                self.num_limited,
            )

    def _count_failure(self) -> None:
        self.num_failures += 1
        if should_log(self.num_failures - 1, self.num_failures):
            self.log.exception("specds made no drafts: failure %d", self.num_failures)

    def chains(self, num_left: Iterable[int]) -> list[list[int]]:
        """Draft a chain of at most `max_nodes` tokens for each row.

        Args:
            num_left: Tokens that each row may still get, the bonus token included.
        """
        left = [max(number - 1, 0) for number in num_left]
        token_ids, numbers, _ = self.drafter.draft_chains(self.max_nodes, max_nodes=left)
        rows = zip(token_ids.tolist(), numbers.tolist(), strict=True)
        return [row[:number] for row, number in rows]


def check_options(options: Any, vocab_size: int, tokenizer: str | None) -> None:
    """Check the configuration of an adapter before the engine loads its model.

    Raises:
        TypeError: The configuration is not an object.
        ValueError: As for `Adapter`.
        FormatError: The datastore cannot be read.
    """
    if not isinstance(options, Mapping):
        raise TypeError(f"`specds` must be an object such as {{}}, not {options!r}")
    options = _with_datastore(options, tokenizer)
    if options.get("datastore") == "auto":
        options = {**options, "datastore": None}
    about = {"vocab_size": vocab_size, "tokenizer": _fingerprint(options, tokenizer)}
    EngineDrafter.check(**{**options, **about})


def _with_datastore(options: Mapping[str, Any], tokenizer: Any) -> Mapping[str, Any]:
    """Add the datastore that the model's folder names, unless the options have one."""
    if not isinstance(tokenizer, str) or "datastore" in options:
        return options
    from specds.hub import named_datastore

    return {**options, "datastore": named_datastore(tokenizer)}


def _fingerprint(options: Mapping[str, Any], tokenizer: Any) -> str:
    """Return the fingerprint of a tokenizer, empty if there is nothing to compare it with."""
    if tokenizer is None or options.get("datastore") is None:
        return ""
    from specds.models.load import load_encoder
    from specds.models.tokenization import fingerprint

    return fingerprint(load_encoder(tokenizer) if isinstance(tokenizer, str) else tokenizer)


def _default_datastore(tokenizer: Any) -> Any:
    """Return the default datastore of a tokenizer if it is built, else start its build."""
    from specds.indexing.default import default_datastore, is_on
    from specds.models.load import load_encoder

    if tokenizer is None or not is_on():
        return None
    loaded = load_encoder(tokenizer) if isinstance(tokenizer, str) else tokenizer
    found = default_datastore(loaded)
    if found is not None:
        found.warm()
    return found


def _warn(drafter: EngineDrafter, log: logging.Logger) -> None:
    for warning in drafter.warnings:
        log.warning("specds: %s", warning)


def _close(drafter: EngineDrafter, log: logging.Logger) -> None:
    before = drafter.stats()["num_memory_failures"]
    drafter.close()
    if drafter.stats()["num_memory_failures"] > before:
        _warn(drafter, log)


def should_log(before: int, now: int) -> bool:
    """Return whether the failures since `before` are logged: the first, second, fourth, ..."""
    return now.bit_length() > before.bit_length()


_PREFIX = "specds_"


def parse_request_options(
    extra: Mapping[str, Any] | None, sampling: Any = None
) -> dict[str, Any] | None:
    """Return the options of a request from the engine's extra arguments; None disables drafts.

    These are `specds_off`, `specds_tenant`, `specds_group`, `specds_predicted_output`, a list of
    token ids, and `specds_penalized`, which the engine's sampling parameters set. The drafter
    ignores and counts values of wrong types, and names with our prefix that are unknown.
    """
    named = ((str(key), value) for key, value in (extra or {}).items())
    given = {key.removeprefix(_PREFIX): value for key, value in named if key.startswith(_PREFIX)}
    if is_off(given):
        return None
    return {"penalized": True, **given} if _is_penalized(sampling) else given


_PENALTIES = ("presence_penalty", "frequency_penalty", "logit_bias", "bad_words")


def _is_penalized(sampling: Any) -> bool:
    """Return whether sampling parameters change the scores of tokens, or forbid some."""
    is_repeating = getattr(sampling, "repetition_penalty", 1) != 1
    has_allowed = getattr(sampling, "allowed_token_ids", None) is not None
    return is_repeating or has_allowed or any(getattr(sampling, name, None) for name in _PENALTIES)


def guarded(otherwise: Callable[..., Any]) -> Callable[[_Call], _Call]:
    """Make a method return `otherwise(...)` if it raises anything but `IncompatibleError`.

    The adapter logs its first failure, the second, the fourth, and so on.
    """

    def guard(call: _Call) -> _Call:
        @functools.wraps(call)
        def method(self: Adapter, *args: Any, **kwargs: Any) -> Any:
            try:
                return call(self, *args, **kwargs)
            except IncompatibleError:
                raise
            except Exception:
                self._count_failure()
                return otherwise(self, *args, **kwargs)

        return cast("_Call", method)

    return guard
