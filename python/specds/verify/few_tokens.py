"""A copy of a model for passes of few tokens, whose recurrent layers compute only these."""

import inspect
from collections.abc import Callable
from copy import copy
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d
from transformers import AttentionInterface, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from specds.verify.attention import shared_copy

# The name of `_attend_in_groups` in transformers.
_GROUPED = "specds_grouped"


def _attend_in_groups(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **asked: Any
) -> tuple[Tensor, None]:
    """Attend with the heads of a key as one longer sequence: `sdpa` repeats keys for each head."""
    shape, has_bias = query.shape, asked.get("position_bias") is not None
    if attention_mask is None or attention_mask.shape[1] > 1 or has_bias:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **asked)
    grouped = query.reshape(shape[0], key.shape[1], -1, shape[3])
    mask = attention_mask.repeat(1, 1, module.num_key_value_groups, 1)
    made, _ = sdpa_attention_forward(_ONE_GROUP, grouped, key, value, mask, **asked)
    return made.transpose(1, 2).reshape(*shape[:3], -1).transpose(1, 2), None


_ONE_GROUP = torch.nn.Module()
AttentionInterface.register(_GROUPED, _attend_in_groups)


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
            has_groups = state.get("num_key_value_groups", 1) > 1
            config = state.get("config") if has_groups else None
            if getattr(config, "_attn_implementation", "") == "sdpa":
                config = state["config"] = copy(config)
                vars(config)["_attn_implementation_internal"] = _GROUPED
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
    """Compute the last outputs of `causal_conv1d_fn`, which states before the pass are enough for.

    Also of what each token sees, with a dimension more (see `TreeCache`).
    """
    given = states.to(weight.dtype)
    if states.dim() == 4:
        made = torch.zeros((), device=states.device) if bias is None else bias.float()
        for of_shift, at_shift in zip(
            weight.float().unbind(1), given.float().unbind(2), strict=True
        ):
            made = torch.addcmul(made, at_shift, of_shift)
        made = made.to(weight.dtype).mT
    else:
        made = conv1d(given, weight[:, None], bias, groups=len(weight))
    made = made if activation is None else ACT2FN[activation](made)
    return made.to(states.dtype)


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
