"""A copy of a model for passes of few tokens, which recurrent layers pad to whole chunks."""

import inspect
from types import CellType, FunctionType, MethodType
from typing import Any

from transformers import PreTrainedModel

from specds.verify.attention import shared_copy


class FewTokens:
    """A model's passes over so few tokens that its usual chunks, of 64 to 256, are mostly padding.

    The copy that runs them shares all weights. On a CPU its linear layers are those of
    `specds.verify.linear`, and the chunks of its recurrent layers, which are an attribute or an
    argument of the function that they call, have the tokens of the pass.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._sizes: list[tuple[dict[str, Any], int]] = []
        # Such a forward is bound to the original module.
        is_bound = any("forward" in of.__dict__ for of in model.modules())
        if is_bound or model.device.type != "cpu":
            return
        self._model = shared_copy(model)
        for module in self._model.modules():
            state: dict[str, Any] = module.__dict__
            if isinstance(size := state.get("chunk_size"), int):
                self._sizes.append((state, size))
            if (forward := _with_short_chunks(type(module).forward)) is not None:
                state["forward"] = MethodType(forward, module)

    def __call__(self, **asked: Any) -> Any:
        for state, size in self._sizes:
            state["chunk_size"] = min(size, asked["input_ids"].shape[1])
        return self._model(**asked)


def _with_short_chunks(forward: Any, depth: int = 3) -> Any:
    """Return a copy of a method, and of what it wraps, with short chunks; None if it has none."""
    if not isinstance(forward, FunctionType) or depth == 0:
        return None
    named = {name: forward.__globals__.get(name) for name in forward.__code__.co_names}
    chunked = {name: _in_chunks(of) for name, of in named.items() if _has_chunks(of)}
    cells = forward.__closure__ or ()
    inner = [_with_short_chunks(cell.cell_contents, depth - 1) for cell in cells]
    if not chunked and not any(inner):
        return None
    pairs = zip(cells, inner, strict=True)
    made = tuple(cell if new is None else CellType(new) for cell, new in pairs)
    scope = {**forward.__globals__, **chunked}
    short = FunctionType(forward.__code__, scope, forward.__name__, forward.__defaults__, made)
    short.__kwdefaults__ = forward.__kwdefaults__
    return short


def _has_chunks(function: Any) -> bool:
    if not isinstance(function, FunctionType):
        return False
    parameter = inspect.signature(function).parameters.get("chunk_size")
    return parameter is not None and isinstance(parameter.default, int)


def _in_chunks(function: Any) -> Any:
    def short(query: Any, *args: Any, **kwargs: Any) -> Any:
        return function(query, *args, **{"chunk_size": query.shape[1], **kwargs})

    return short
