"""How do small models pass faster: the arithmetic of their forward, without its Python."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.backends import mkl
from torch.nn.modules.module import _has_any_global_hook
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

from specds.verify.attention import attend_packed
from specds.verify.masks import layer_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from transformers import PreTrainedModel

    from specds.verify.cache import TreeCache

    _Function = Callable[[torch.Tensor], torch.Tensor]
    Mask = torch.Tensor | None


# Tokens for which a linear layer is computed the other way round: 2 take 0.55 of the time, 5 take
# 0.7, 8 take 0.9 and 16 more than all (5 million parameters, a processor with AVX-512).
_FEW = 8
_HAS_MKL: bool = mkl.is_available()  # type: ignore[no-untyped-call]

# What the class names of the families known here begin with.
_FAMILIES: dict[str, ModuleType] = {
    "Llama": modeling_llama,
    "Mistral": modeling_mistral,
    "Qwen2": modeling_qwen2,
    "Qwen3": modeling_qwen3,
}
# What they end with, of the modules whose forward is computed here, and the modules in each of
# these; of the others in them, the forward is called.
_PARTS = {
    "ForCausalLM": {"model", "lm_head"},
    "Model": {"embed_tokens", "layers", "norm", "rotary_emb"},
    "DecoderLayer": {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"},
    "Attention": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "MLP": {"gate_proj", "up_proj", "down_proj", "act_fn"},
    "RMSNorm": set[str](),
}
_HEAD_NORMS = {"q_norm", "k_norm"}


def lean_reason(model: PreTrainedModel) -> str | None:
    """Why a model has no lean forward; None where it has."""
    name = type(model).__name__
    family = name.removesuffix("ForCausalLM")
    if type(model) is not getattr(_FAMILIES.get(family), name, None):
        return f"{name} is of no family that is known here"
    if _has_any_global_hook():  # type: ignore[no-untyped-call]
        return "hooks are registered for all modules"
    if getattr(model, "_tp_size", None) is not None:
        return "it is spread over several devices"
    computed = _computed_modules(model)
    return next((why for part in computed if (why := _part_reason(family, *part))), None)


def _computed_modules(model: Any) -> Iterator[tuple[torch.nn.Module, str]]:
    """All modules whose forward is not called, each after the one that it is found in."""
    yield model, "ForCausalLM"
    yield model.model, "Model"
    yield model.model.norm, "RMSNorm"
    for layer in model.model.layers:
        yield layer, "DecoderLayer"
        yield layer.self_attn, "Attention"
        yield layer.mlp, "MLP"
        yield layer.input_layernorm, "RMSNorm"
        yield layer.post_attention_layernorm, "RMSNorm"
        for name in _HEAD_NORMS & layer.self_attn._modules.keys():
            yield layer.self_attn._modules[name], "RMSNorm"


def _part_reason(family: str, module: torch.nn.Module, kind: str) -> str | None:
    expected = getattr(_FAMILIES[family], family + kind)
    name, parts = expected.__name__, _PARTS[kind]
    if family == "Qwen3" and kind == "Attention":
        parts = parts | _HEAD_NORMS
    if type(module) is not expected:
        return f"a {type(module).__name__} is where a {name} is expected"
    weights = {"weight"} if kind == "RMSNorm" else set()
    if module._modules.keys() != parts or module._parameters.keys() != weights:
        return f"a {name} is not made as usual"
    # A forward of the class may have been exchanged for all models, by a library of kernels.
    if _is_hooked(module) or expected.forward.__module__ != expected.__module__:
        return f"a {name} has hooks or another forward than its own"
    return f"a {name} is in training mode" if module.training else None


def _is_hooked(module: torch.nn.Module) -> bool:
    """Whether a call of a module is more than the forward of its class."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


class _Layer(NamedTuple):
    """What a decoder layer computes with; to look it up in modules takes as long as to add."""

    input_norm: _Function
    query: _Function
    key: _Function
    value: _Function
    head_norms: tuple[_Function, _Function] | None
    output: _Function
    mlp_norm: _Function
    gate: _Function
    up: _Function
    activation: _Function
    down: _Function
    attention: Any
    kind: str

    @classmethod
    def of(cls, layer: Any, kind: str) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        head_norms = None
        if attention._modules.keys() >= _HEAD_NORMS:
            head_norms = _norm(attention.q_norm), _norm(attention.k_norm)
        return cls(
            input_norm=_norm(layer.input_layernorm),
            query=_function(attention.q_proj),
            key=_function(attention.k_proj),
            value=_function(attention.v_proj),
            head_norms=head_norms,
            output=_function(attention.o_proj),
            mlp_norm=_norm(layer.post_attention_layernorm),
            gate=_function(mlp.gate_proj),
            up=_function(mlp.up_proj),
            activation=mlp.act_fn,
            down=_function(mlp.down_proj),
            attention=attention,
            kind=kind,
        )


def _function(module: torch.nn.Module) -> _Function:
    """What computes as the module does: for a linear layer without hooks its one operation."""
    if type(module) is not torch.nn.Linear or _is_hooked(module):
        return module
    weight = module.weight
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and _HAS_MKL:
        return partial(_linear_of_few, weight=weight, bias=module.bias)
    return partial(torch.nn.functional.linear, weight=weight, bias=module.bias)


def _linear_of_few(
    states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """A linear layer for `(1, num_tokens, size)`, the other way round where tokens are few.

    MKL then reads the weights as they lie, and does not copy them into another order first.
    """
    if not 1 < states.shape[1] <= _FEW:
        return torch.nn.functional.linear(states, weight, bias)
    product = torch.mm(weight, states[0].t()).t().contiguous()
    return (product if bias is None else product + bias)[None]


def _norm(norm: Any) -> _Function:
    # In half precision the models round on the way, as one operation does not. On a CUDA device it
    # is one kernel instead of eight, and as near to the true numbers.
    weight = norm.weight
    if weight.dtype != torch.float32 and weight.device.type != "cuda":
        return norm  # type: ignore[no-any-return]
    return partial(
        torch.nn.functional.rms_norm,
        normalized_shape=weight.shape,
        weight=weight,
        eps=norm.variance_epsilon,
    )


class LeanForward:
    """Computes what a model's forward does, operation by operation, without its Python.

    Embedding, projections, activations and rotary angles are the model's own modules, whatever they
    are; what is between them is done here. A pass of a small model is mostly that.

    Args:
        model: A model without a `lean_reason`.
    """

    def __init__(self, model: Any) -> None:
        decoder = model.model
        self._embed = decoder.embed_tokens
        self._rotary = decoder.rotary_emb
        self._norm = _norm(decoder.norm)
        self._head = _function(model.lm_head)
        kinds = layer_types(model.config)
        made = zip(decoder.layers, kinds, strict=True)
        self._layers = [_Layer.of(layer, kind) for layer, kind in made]

    def __call__(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        mask: Mask | dict[str, Mask],
        cache: TreeCache,
    ) -> torch.Tensor:
        """The logits of a pass, `(1, num_tokens, vocab_size)`; its states go to the cache.

        Args:
            token_ids: int64 `(1, num_tokens)`.
            positions: int64 `(1, num_tokens)`.
            mask: As `attend_packed` takes it, or one of these per type of layer.
            cache: The states of the tokens before.
        """
        states = self._embed(token_ids)
        angles = _angles(self._rotary, states, positions)
        for index, layer in enumerate(self._layers):
            seen = mask[layer.kind] if isinstance(mask, dict) else mask
            states = states + _attend(layer, index, states, angles, seen, cache)
            states = states + _transform(layer, states)
        return self._head(self._norm(states))


def _angles(
    rotary: torch.nn.Module, states: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines for `_rotated`, `(num_tokens, 1, head_dim)`."""
    cosines, sines = rotary(states, positions)
    half = sines.shape[-1] // 2
    sines = torch.cat((-sines[..., :half], sines[..., half:]), dim=-1)
    return cosines[0, :, None], sines[0, :, None]


def _rotated(states: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Heads `(num_tokens, num_heads, head_dim)` turned by their positions."""
    cosines, sines = angles
    return states * cosines + states.roll(states.shape[-1] // 2, -1) * sines


def _attend(
    layer: _Layer,
    index: int,
    states: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    mask: Mask,
    cache: TreeCache,
) -> torch.Tensor:
    normed = layer.input_norm(states)
    by_head = (states.shape[1], -1, layer.attention.head_dim)
    query = layer.query(normed).view(by_head)
    key = layer.key(normed).view(by_head)
    value = layer.value(normed).view(by_head)
    if layer.head_norms is not None:
        query, key = layer.head_norms[0](query), layer.head_norms[1](key)
    together = _rotated(torch.cat((query, key), dim=1), angles)
    query, key = together.split_with_sizes((query.shape[1], key.shape[1]), dim=1)
    keys, values = cache.update(key.transpose(0, 1)[None], value.transpose(0, 1)[None], index)
    query = query.transpose(0, 1)[None]
    attended, _ = attend_packed(
        layer.attention, query, keys, values, mask, scaling=layer.attention.scaling
    )
    return layer.output(attended.flatten(-2))


def _transform(layer: _Layer, states: torch.Tensor) -> torch.Tensor:
    normed = layer.mlp_norm(states)
    return layer.down(layer.activation(layer.gate(normed)) * layer.up(normed))
