"""Every `model.generate` of an object goes through specds, until that is undone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, final

from transformers import GenerationMixin, PreTrainedModel

from specds._core import Memory
from specds.drafters.fused import FusedDrafter
from specds.generation.arguments import UnsupportedRequestError, require_inputs
from specds.generation.generate import as_transformers, run_custom_loop
from specds.generation.options import Drafts, Options
from specds.hub import named_datastore
from specds.models.tokenization import model_vocab_size
from specds.verify.support import UnsupportedModelError

_NAMES = [*inspect.signature(GenerationMixin.generate).parameters][1:]


def accelerate(
    model: PreTrainedModel,
    drafter: Drafts = None,
    *,
    on_unsupported: Literal["refuse", "baseline"] = "refuse",
    **options: Any,
) -> Acceleration:
    """Makes `model.generate` draft, for pipelines, trainers and evaluation harnesses.

    Its arguments and results stay the same. A call with a `custom_generate` of its own is not
    changed. Of several accelerations of a model the last one counts. Copies of the model are plain.

    Args:
        model: A decoder-only transformers model, or an object that wraps one and its `generate`.
        drafter: As in `generate`; shared by all calls, so it learns from one for the next. By
            default one that drafts from each request's own text, from those of earlier calls, which
            it remembers, and from the datastore that the model's folder names, if it names one.
        on_unsupported: `refuse` raises an error for a call that drafts cannot serve; `baseline`
            decodes it without drafts.
        **options: `max_nodes`, `verification`, `check_model`, `stream_interval` and
            `shape_invariant`, as in `generate`.

    Returns:
        A handle, which says what is drafted from when it is printed: `undo()`, or the end of a
        `with` block, undoes it.

    Raises:
        TypeError: `model` is no model.
        ValueError: An option makes no sense.
    """
    require_inputs(model, None)
    drafter = usual_drafter(model) if drafter is None else drafter
    return Acceleration(model, Options.of(drafter, on_unsupported=on_unsupported, **options))


def usual_drafter(model: Any) -> FusedDrafter:
    """One that remembers the texts of its requests, and has the datastore that a model names."""
    config = getattr(model, "config", None)
    if named := named_datastore(getattr(config, "name_or_path", "")):
        return FusedDrafter(named)
    return FusedDrafter(memory=None if config is None else Memory(model_vocab_size(model)))


def generate_by(
    model: PreTrainedModel, plain: Callable[..., Any], options: Options, *args: Any, **kwargs: Any
) -> Any:
    """What `model.generate(*args, **kwargs)` returns, by drafts; `plain` is its own `generate`."""
    arguments = dict(zip(_NAMES, args, strict=False)) | kwargs
    if arguments.get("custom_generate") is None:
        try:
            return run_custom_loop(model, plain, options, as_transformers, **arguments)
        except (UnsupportedModelError, UnsupportedRequestError):
            if options.on_unsupported == "refuse":
                raise
    return plain(**arguments)


@final
class Acceleration:
    """The `generate` of an accelerated model; see `accelerate`."""

    def __init__(self, model: PreTrainedModel, options: Options) -> None:
        self._model = model
        self._options = options
        self._before: Any = vars(model).get("generate")
        self._is_undone = False
        vars(model)["generate"] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Has the arguments and the result of `model.generate`."""
        of_class: Any = type(self._model)
        plain = self._before or of_class.generate.__get__(self._model)
        if self._is_undone:
            return plain(*args, **kwargs)
        return generate_by(self._model, plain, self._options, *args, **kwargs)

    def __repr__(self) -> str:
        drafter = self._options.drafter
        if not isinstance(drafter, FusedDrafter):
            return f"Acceleration({drafter!r})"
        sources = ["the request's own text"] if drafter.config.context else []
        sources += ["earlier calls"] if drafter.memory is not None else []
        sources += [f"the datastore {drafter.datastore.path}"] if drafter.datastore else []
        return f"Acceleration(drafts from {', '.join(sources)})"

    def undo(self) -> None:
        """Gives the model its former `generate` back; a second call does nothing."""
        self._is_undone = True
        held = vars(self._model)
        # One that was made later stays until it is undone itself.
        while isinstance(top := held.get("generate"), Acceleration) and top._is_undone:
            if top._before is None:
                del held["generate"]
            else:
                held["generate"] = top._before

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the model has the `generate` of its class.
        return getattr, (self._model, "generate")
