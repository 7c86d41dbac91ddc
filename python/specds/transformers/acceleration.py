"""Acceleration of a model: each `model.generate` goes through specds until that is undone."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any, Literal, Unpack, final

from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedModel

from specds.constraints.processor import add_grammar
from specds.drafters.fused import FusedDrafter
from specds.generation.decode import GenerationOutput
from specds.generation.default_source import with_default
from specds.generation.options import DrafterLike, DraftOptions, Options, UnsupportedRequestError
from specds.generation.runner import UnsupportedModelError
from specds.generation.stats import GenerationStats
from specds.hub import named_datastore
from specds.models.tokenization import model_vocab_size
from specds.transformers.arguments import require_inputs
from specds.transformers.custom_loop import as_transformers, run_custom_loop
from specds.transformers.verify.support import log_once, require_family

_NAMES = [*inspect.signature(GenerationMixin.generate).parameters][1:]


def accelerate(
    model: PreTrainedModel,
    drafter: DrafterLike = None,
    *,
    on_unsupported: Literal["refuse", "baseline"] = "refuse",
    **options: Unpack[DraftOptions],
) -> Acceleration:
    """Make `model.generate` draft, for pipelines, trainers and evaluation harnesses.

    Its arguments and results stay the same. Calls with their own `custom_generate` are not changed,
    and `generate_batch` (continuous batching) warns that it decodes without drafts. A second
    acceleration of a model replaces the first. Copies of the model are not accelerated.

    Args:
        model: A decoder-only transformers model, or an object that wraps one and its `generate`.
        drafter: As in `generate`; all calls share it, so that it learns from one for the next. By
            default it drafts from the request's own text, from a request cache of earlier calls,
            and from the datastore that the model's folder names, else from
            `specds.default_datastore` once that is built.
        on_unsupported: `refuse` raises an error for a model or a call that drafts cannot serve;
            `baseline` decodes it without drafts, and logs the reason once.
        **options: As in `generate`: `max_nodes`, `verification`, `check_model`, `stream_interval`,
            `synchronize_timings`, `shape_invariant`, `on_step`, and `grammar`, which a call's own
            argument replaces.

    Returns:
        A handle with the statistics of the calls. `undo()`, the end of a `with` block, or
        `specds.undo(model)` gives the model its own `generate` back.

    Raises:
        TypeError: `model` is not a model.
        ValueError: An option is invalid.
        UnsupportedModelError: Drafts cannot be verified on a model of this kind.
    """
    require_inputs(model, None)
    chosen = usual_drafter(model) if drafter is None else drafter
    of_calls = Options.of(chosen, on_unsupported=on_unsupported, **options)
    try:
        require_family(model, of_calls.verification)
    except UnsupportedModelError as error:
        if on_unsupported == "refuse":
            raise
        _log_baseline(model, error)
    return Acceleration(model, of_calls, takes_default=drafter is None)


def undo(model: PreTrainedModel) -> None:
    """Give an accelerated model its own `generate` back; do nothing for other models."""
    held = vars(model).get("generate")
    if isinstance(held, Acceleration):
        held.undo()


def usual_drafter(model: Any) -> FusedDrafter:
    """Make a drafter with a request cache, and with the datastore that the model names."""
    config = getattr(model, "config", None)
    named = named_datastore(getattr(config, "name_or_path", "")) or None
    return FusedDrafter(named, vocab_size=None if config is None else model_vocab_size(model))


def generate_by(
    model: PreTrainedModel,
    baseline: Callable[..., Any],
    options: Options,
    on_output: Callable[[GenerationOutput], object] | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Return the result of `model.generate(*args, **kwargs)` with drafts.

    Args:
        model: The model.
        baseline: Its own `generate`.
        options: The options of the request.
        on_output: Called with the output of a request with drafts.
        *args: As in `model.generate`.
        **kwargs: As in `model.generate`.
    """
    arguments = dict(zip(_NAMES, args, strict=False)) | kwargs
    add_grammar(arguments.pop("grammar", options.grammar), arguments)

    def result(output: GenerationOutput, config: GenerationConfig) -> Any:
        if on_output is not None:
            on_output(output)
        return as_transformers(output, config)

    if arguments.get("custom_generate") is None:
        try:
            return run_custom_loop(model, baseline, options, result, **arguments)
        except (UnsupportedModelError, UnsupportedRequestError) as error:
            if options.on_unsupported == "refuse":
                error.add_note("on_unsupported='baseline' decodes such calls without drafts")
                raise
            _log_baseline(model, error)
    if arguments.get("logits_processor") is not None:
        arguments["logits_processor"] = LogitsProcessorList(arguments["logits_processor"])
    return baseline(**arguments)


def _log_baseline(model: Any, error: Exception) -> None:
    log_once(model, f"{type(model).__name__} decodes without drafts: {error}", logging.WARNING)


@final
class Acceleration:
    """The `generate` of an accelerated model; see `accelerate`.

    Attributes:
        stats: Counts and times of all calls with drafts together.
        last_stats: Those of the last call with drafts.
    """

    def __init__(
        self, model: PreTrainedModel, options: Options, *, takes_default: bool = False
    ) -> None:
        self._takes_default = takes_default
        self.stats = GenerationStats()
        self.last_stats = GenerationStats()
        self._model = model
        self._options = options
        self._is_undone = False
        self._recording = Lock()
        held = vars(model)
        undo(model)
        self._before: Any = held.get("generate")
        held["generate"] = self
        if hasattr(model, "generate_batch") and "generate_batch" not in held:
            held["generate_batch"] = _BatchWarning(model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of `model.generate` with these arguments."""
        of_class: Any = type(self._model)
        baseline = self._before or of_class.generate.__get__(self._model)
        if self._is_undone:
            return baseline(*args, **kwargs)
        if self._takes_default:
            drafter = with_default(self._options.drafter, self._model)
            if drafter is not self._options.drafter:
                self._options = replace(self._options, drafter=drafter)
        return generate_by(self._model, baseline, self._options, self._record, *args, **kwargs)

    def _record(self, output: GenerationOutput) -> None:
        with self._recording:
            self.last_stats = output.stats
            self.stats.merge(output.stats)

    def __repr__(self) -> str:
        drafter = self._options.drafter
        if isinstance(drafter, FusedDrafter):
            sources = ["the request's own text"] if drafter.config.context else []
            sources += ["earlier calls"] if drafter.memory is not None else []
            sources += [f"the datastore {drafter.datastore.path}"] if drafter.datastore else []
            description = f"drafts from {', '.join(sources)}"
        else:
            description = repr(drafter)
        speed = f"; {self.stats}" if self.stats.num_emitted_tokens else ""
        return f"Acceleration({description}{speed})"

    def undo(self) -> None:
        """Give the model its own `generate` back; a second call does nothing."""
        self._is_undone = True
        held = vars(self._model)
        # A later acceleration, which replaced this one, stays.
        if held.get("generate") is not self:
            return
        if self._before is None:
            del held["generate"]
        else:
            held["generate"] = self._before
        if isinstance(held.get("generate_batch"), _BatchWarning):
            del held["generate_batch"]

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the model has the `generate` of its class.
        return getattr, (self._model, "generate")


@final
class _BatchWarning:
    """The `generate_batch` of an accelerated model, with a warning."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        warnings.warn(
            "generate_batch decodes without drafts: continuous batching does not call `generate`",
            stacklevel=2,
        )
        of_class: Any = type(self._model)
        return of_class.generate_batch.__get__(self._model)(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._model, "generate_batch")
