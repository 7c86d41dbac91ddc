"""A copy of a model for passes of few tokens, whose recurrent layers compute only these."""

import inspect
from collections.abc import Callable
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from specds.verify.attention import shared_copy


class FewTokens:
    """A model's passes over so few tokens that its usual chunks, of 64 to 256, are mostly padding.

    The copy that runs them shares all weights. On a CPU its linear layers are those of
    `specds.verify.linear`, the functions in `_IN_PLACE_OF` have others in their places, and the
    chunks of other recurrent layers, which are an attribute or an argument of the function that
    they call, have the tokens of the pass.
    """

    def __init__(self, model: PreTrainedModel, *, has_kernels: bool = False) -> None:
        self._model = model
        self._sizes: list[tuple[dict[str, Any], int]] = []
        # Such a forward is bound to the original module.
        is_bound = any("forward" in of.__dict__ for of in model.modules())
        if not has_kernels and (is_bound or model.device.type != "cpu"):
            return
        self._model = shared_copy(model)
        for module in self._model.modules():
            state: dict[str, Any] = module.__dict__
            if isinstance(size := state.get("chunk_size"), int):
                self._sizes.append((state, size))
            if (forward := _for_few_tokens(type(module).forward)) is not None:
                state["forward"] = MethodType(forward, module)

    def __call__(self, **asked: Any) -> Any:
        for state, size in self._sizes:
            state["chunk_size"] = min(size, asked["input_ids"].shape[1])
        return self._model(**asked)


def unseen_reason(model: PreTrainedModel) -> str:
    """Return why the copy of a model would not compute its convolutions; empty if it does."""
    if any("forward" in module.__dict__ for module in model.modules()):
        return "the forward of one of its modules was replaced, as by offloading"
    base: Any = model
    layers = getattr(base.get_decoder(), "layers", ())
    convolutions = [layer.conv for layer in layers if hasattr(layer, "conv")]
    if any(_for_few_tokens(type(of).forward) is None for of in convolutions):
        return "a convolution is not as its family made it"
    return ""


def _for_few_tokens(forward: Any, depth: int = 3) -> Any:
    """Return a copy of a method, and of what it wraps, that calls other functions, or None."""
    if not isinstance(forward, FunctionType) or depth == 0:
        return None
    named = {name: forward.__globals__.get(name) for name in forward.__code__.co_names}
    others = {name: new for name, of in named.items() if (new := _other(name, of)) is not None}
    cells = forward.__closure__ or ()
    inner = [_for_few_tokens(cell.cell_contents, depth - 1) for cell in cells]
    if not others and not any(inner):
        return None
    pairs = zip(cells, inner, strict=True)
    made = tuple(cell if new is None else CellType(new) for cell, new in pairs)
    scope = {**forward.__globals__, **others}
    short = FunctionType(forward.__code__, scope, forward.__name__, forward.__defaults__, made)
    short.__kwdefaults__ = forward.__kwdefaults__
    return short


def _other(name: str, function: Any) -> Any:
    """Return what computes a function of transformers for few tokens, or None."""
    is_theirs = str(getattr(function, "__module__", "")).startswith("transformers.")
    if not (isinstance(function, FunctionType) and is_theirs):
        return None
    if name in _IN_PLACE_OF:
        return partial(_IN_PLACE_OF[name], function)
    parameter = inspect.signature(function).parameters.get("chunk_size")
    if parameter is None or not isinstance(parameter.default, int):
        return None
    return lambda query, *args, **named: function(
        query, *args, **{"chunk_size": query.shape[1], **named}
    )


def _convolve(
    _: Any,
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **__: Any,
) -> Tensor:
    """Compute `causal_conv1d_fn` token by token, also of what each sees (see `TreeCache`)."""
    num, size = states.shape[-1], weight.shape[-1]
    if states.dim() == 4:
        seen = states.to(weight.dtype).float().unbind(2)
    else:
        of_tokens = pad(states.mT.to(weight.dtype).float(), (0, 0, size - 1, 0))
        seen = tuple(of_tokens[:, shift : shift + num] for shift in range(size))
    made = torch.zeros((), device=states.device) if bias is None else bias.float()
    for of_shift, at_shift in zip(weight.float().unbind(1), seen, strict=True):
        made = torch.addcmul(made, at_shift, of_shift)
    made = made.to(weight.dtype)
    made = made if activation is None else ACT2FN[activation](made)
    return made.to(states.dtype).mT


def _delta_rule(
    function: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    **asked: Any,
) -> tuple[Tensor, Tensor]:
    """Compute the gated delta rule in one chunk, and write the state in its own memory."""
    if initial_state is None or not asked.get("use_qk_l2norm_in_kernel"):
        made: tuple[Tensor, Tensor] = function(
            query, key, value, g=g, beta=beta, initial_state=initial_state, **asked
        )
        return made
    num, times = key.shape[1], value.shape[2] // key.shape[2]
    both = torch.cat((key, query), 1).transpose(1, 2).float()
    both = both * (both.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
    both = both.repeat_interleave(times, 1) if times > 1 else both
    keys = both[:, :, :num]
    values, decay, rate = (of.transpose(1, 2).float() for of in (value, g, beta))
    decay, rate = decay.cumsum(-1)[..., None], rate[..., None]
    state = initial_state.float()
    halves = *both.shape[:2], 2, num, -1
    read, out = ((both @ state).view(halves) * decay.exp()[:, :, None]).unbind(2)
    of_pairs = (decay - decay.mT).tril().exp()[:, :, None]
    of_keys, of_queries = ((both @ keys.mT).view(halves) * of_pairs).unbind(2)
    system, known = of_keys * rate, (values - read) * rate
    new = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    out = (out + of_queries.tril() @ new) * query.shape[-1] ** -0.5
    last = decay[:, :, -1:]
    state.mul_(last.exp())
    # A product that is added in place makes no other copy of the state.
    keys = keys * (last - decay).exp()
    state.flatten(0, 1).baddbmm_(keys.mT.flatten(0, 1), new.flatten(0, 1))
    return out.transpose(1, 2).to(query.dtype), state


# Functions of transformers, which all its models with such layers share.
_IN_PLACE_OF: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolve,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "torch_recurrent_gated_delta_rule": _delta_rule,
}
