"""A copy of a model for passes of few tokens, whose recurrent layers compute only these."""

import inspect
from collections.abc import Callable
from copy import copy
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from specds.transformers.verify.attention import shared_copy


def _attend_in_groups(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **asked: Any
) -> tuple[Tensor, None]:
    """Attend with the heads of a key as one longer sequence: `sdpa` repeats keys for each head."""
    if attention_mask is None or attention_mask.shape[1] > 1 or "position_bias" in asked:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **asked)
    grouped = query.reshape(len(query), key.shape[1], -1, query.shape[3])
    mask = attention_mask.repeat(1, 1, module.num_key_value_groups, 1)
    made = scaled_dot_product_attention(grouped, key, value, mask, scale=asked.get("scaling"))
    return made.reshape(*query.shape[:3], -1).transpose(1, 2), None


_GROUPED = "specds_grouped"
AttentionInterface.register(_GROUPED, _attend_in_groups)


class FewTokens:
    """A model's passes over so few tokens that its usual chunks, of 64 to 256, are mostly padding.

    The copy that runs them shares all weights. On a CPU its linear layers are those of
    `linear`. Functions of transformers are replaced by those in `_IN_PLACE_OF`, or
    get the number of tokens as the size of a chunk, which may be an attribute of a layer instead.
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
            config = state.get("config") if state.get("num_key_value_groups", 1) > 1 else None
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


def unseen_reason(model: Any) -> str:
    """Return why the copy of a model would not compute its convolutions; empty if it does."""
    if any("forward" in module.__dict__ for module in model.modules()):
        return "the forward of one of its modules was replaced, as by offloading"
    for layer in getattr(model.get_decoder(), "layers", ()):
        if hasattr(layer, "conv") and _for_few_tokens(type(layer.conv).forward) is None:
            return "a convolution is not as its family made it"
    return ""


def _for_few_tokens(forward: Any) -> Any:
    """Return a copy of a method, without what wraps it, that calls other functions, or None."""
    if not isinstance(forward := inspect.unwrap(forward), FunctionType):
        return None
    code, scope = forward.__code__, forward.__globals__
    named = {name: scope.get(name) for name in code.co_names}
    others = {name: new for name, of in named.items() if (new := _other(name, of)) is not None}
    if not others:
        return None
    short = FunctionType(code, scope | others, None, forward.__defaults__, forward.__closure__)
    short.__kwdefaults__ = forward.__kwdefaults__
    return short


def _other(name: str, function: Any) -> Any:
    """Return what computes a function of transformers for few tokens, or None."""
    if not isinstance(function, FunctionType) or str(function.__module__)[:13] != "transformers.":
        return None
    if name in _IN_PLACE_OF:
        return partial(_IN_PLACE_OF[name], function)
    parameter = inspect.signature(function).parameters.get("chunk_size")
    if not isinstance(getattr(parameter, "default", None), int):
        return None
    return lambda of, *args, **named: function(of, *args, **{"chunk_size": of.shape[1], **named})


def _convolve(
    _: Any, states: Tensor, weight: Tensor, bias: Any = None, activation: Any = None, **__: Any
) -> Tensor:
    """Compute the last outputs of `causal_conv1d_fn`, those that see no padding.

    With a dimension more, states are what each token sees (see `TreeCache`).
    """
    given = states.to(weight.dtype)
    if states.dim() == 4:
        made = (given.float() * weight.float().t()).sum(2)
        made = (made if bias is None else made + bias).to(weight.dtype).mT
    else:
        made = conv1d(given, weight[:, None], bias, groups=len(weight))
    made = made if activation is None else ACT2FN[activation](made)
    return made.to(states.dtype)


def _delta_rule(
    function: Any, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **asked: Any
) -> tuple[Tensor, Tensor]:
    """Compute the gated delta rule in one chunk, and write the state in its own memory."""
    state = asked.get("initial_state")
    if state is None or not asked.get("use_qk_l2norm_in_kernel"):
        return function(query, key, value, g=g, beta=beta, **asked)  # type: ignore[no-any-return]
    num, times = key.shape[1], value.shape[2] // key.shape[2]
    both = torch.cat((key, query), 1).transpose(1, 2).float()
    both = both * (both.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
    both = both.repeat_interleave(times, 1) if times > 1 else both
    keys = both[:, :, :num]
    values, decay, rate = (of.transpose(1, 2).float() for of in (value, g, beta))
    decay, rate = decay.cumsum(-1)[..., None], rate[..., None]
    state = state.float()
    halves = *both.shape[:2], 2, num, -1
    read, out = ((both @ state).view(halves) * decay.exp()[:, :, None]).unbind(2)
    of_pairs = (decay - decay.mT).tril().exp()[:, :, None]
    of_keys, of_queries = ((both @ keys.mT).view(halves) * of_pairs).unbind(2)
    system, known = of_keys * rate, (values - read) * rate
    new = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    out = (out + of_queries.tril() @ new) * query.shape[-1] ** -0.5
    state.mul_(decay[:, :, -1:].exp())
    # A product that is added in place makes no other copy of the state.
    keys = keys * (decay[:, :, -1:] - decay).exp()
    state.flatten(0, 1).baddbmm_(keys.mT.flatten(0, 1), new.flatten(0, 1))
    return out.transpose(1, 2).to(query.dtype), state


# Functions of transformers, which all its models with such layers share.
_IN_PLACE_OF: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolve,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "torch_recurrent_gated_delta_rule": _delta_rule,
}
