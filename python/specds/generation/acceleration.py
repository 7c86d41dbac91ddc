"""Every `model.generate` of an object goes through specds, until that is undone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, final

from transformers import GenerationMixin, PreTrainedModel
from typing_extensions import Unpack

from specds.generation.arguments import UnsupportedRequestError
from specds.generation.calls import as_transformers, through
from specds.generation.request import DraftOptions, Drafts, Options
from specds.verify.support import UnsupportedModelError

_NAMES = [*inspect.signature(GenerationMixin.generate).parameters][1:]


def accelerate(
    model: PreTrainedModel,
    drafter: Drafts = None,
    *,
    otherwise: Literal["refuse", "plain"] = "refuse",
    **options: Unpack[DraftOptions],
) -> Acceleration:
    """Makes `model.generate` draft, for pipelines, trainers and evaluation harnesses.

    It takes and returns what it always does, and gives the same text. A call with a
    `custom_generate` of its own goes past the drafts. Of several accelerations of one model the
    last counts. A copy of the model, by `copy` or `pickle`, is plain.

    Args:
        model: A decoder-only transformers model, or what wraps one and calls its `generate`.
        drafter: As of `generate`; shared by all calls, so that it learns from one for the next.
        otherwise: What to do where drafts cannot do what a call asks: `refuse` it by name, or
            generate by `plain` decoding.
        **options: `budget`, `verification`, `self_check` and `stream_every`, as of `generate`.

    Returns:
        What undoes it: by `undo()`, or at the end of a `with` block.

    Raises:
        ValueError: An option makes no sense.
    """
    _require_otherwise(otherwise)
    return Acceleration(model, Options.of(drafter, **options), otherwise)


def generate_by(
    model: PreTrainedModel,
    plain: Callable[..., Any],
    options: Options,
    otherwise: str,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """What `model.generate(*args, **kwargs)` returns, its own being `plain`; see `accelerate`."""
    _require_otherwise(otherwise)
    arguments = dict(zip(_NAMES, args, strict=False)) | kwargs
    if arguments.get("custom_generate") is None:
        try:
            return through(model, plain, options, as_transformers, **arguments)
        except (UnsupportedModelError, UnsupportedRequestError):
            if otherwise == "refuse":
                raise
    return plain(**arguments)


def _require_otherwise(otherwise: str) -> None:
    if otherwise not in ("refuse", "plain"):
        raise ValueError(f"otherwise must be 'refuse' or 'plain', got {otherwise!r}")


@final
class Acceleration:
    """The `generate` of an accelerated model; see `accelerate`."""

    def __init__(self, model: PreTrainedModel, options: Options, otherwise: str) -> None:
        self._model = model
        self._options = options
        self._otherwise = otherwise
        self._before: Any = vars(model).get("generate")
        self._is_undone = False
        vars(model)["generate"] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What `model.generate` takes and returns."""
        of_class: Any = type(self._model)
        plain = self._before or of_class.generate.__get__(self._model)
        if self._is_undone:
            return plain(*args, **kwargs)
        return generate_by(self._model, plain, self._options, self._otherwise, *args, **kwargs)

    def undo(self) -> None:
        """Gives the model back the `generate` that it had; once is enough."""
        self._is_undone = True
        held = vars(self._model)
        # One that lies above another which is undone goes on.
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
        # A copy of the model has a `generate` of its own, that of its class.
        return getattr, (self._model, "generate")
