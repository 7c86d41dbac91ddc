"""How do passes take less: the arithmetic of a model's forward, without its Python."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.backends import mkl
from torch.nn.modules.module import _has_any_global_hook
from transformers.activations import ACT2FN
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

from specds.verify import layer_operations
from specds.verify.attention import Tree, attend_packed, attend_tree
from specds.verify.masks import layer_types

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from transformers import PreTrainedModel

    from specds.verify.cache import TreeCache
    from specds.verify.masks import Masks

    _Function = Callable[[torch.Tensor], torch.Tensor]
    _Parts = Callable[[torch.Tensor], Sequence[torch.Tensor]]
    _Angles = tuple[torch.Tensor, torch.Tensor]


# Tokens for which a linear layer is computed the other way round: 2 take 0.55 of the time, 5 take
# 0.7, 8 take 0.9 and 16 more than all (5 million parameters, a processor with AVX-512).
_FEW = 8
_HAS_MKL: bool = mkl.is_available()  # type: ignore[no-untyped-call]
# The share of a device's free memory that copies of weights may take.
_MOST_COPIED = 0.25

# What the class names of the families known here begin with.
_FAMILIES: dict[str, ModuleType] = {
    "Gemma3": modeling_gemma3,
    "Llama": modeling_llama,
    "Mistral": modeling_mistral,
    "Qwen2": modeling_qwen2,
    "Qwen3": modeling_qwen3,
}
# Modules whose forward is called, and, with the layers' numbers, those whose forward is not.
_CALLED = {"lm_head", "embed_tokens", "rotary_emb", "act_fn", "o_proj", "down_proj"}
_JOINED = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_COMPUTED = {"model", "layers", "norm", "self_attn", "mlp", "input_layernorm", *_HEAD_NORMS}
_COMPUTED |= {f"{of}_layernorm" for of in ("post_attention", "pre_feedforward", "post_feedforward")}
# Activations that `layer_operations.gate` computes, and whether that is by GELU.
_GATES = {type(ACT2FN["silu"]): False, type(ACT2FN["gelu_pytorch_tanh"]): True}


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
    if getattr(model.config, "final_logit_softcapping", None) is not None:
        return "it caps its logits"
    return _part_reason(_FAMILIES[family], model)


def _part_reason(family: ModuleType, part: torch.nn.Module) -> str | None:
    """Why a module cannot be computed here, or one in it whose forward is not called."""
    kind, names = type(part), {*part._modules, *part._parameters}
    name, inner = kind.__name__, names - _CALLED - _JOINED
    if kind is torch.nn.ModuleList:
        inner = names
    elif kind.__module__ != family.__name__:
        return f"a {name} is where one of {family.__name__} is expected"
    elif not inner <= _COMPUTED | {"weight"}:
        return f"a {name} is not made as usual"
    # A forward of the class may have been exchanged for all models, by a library of kernels.
    elif _is_hooked(part) or kind.forward.__module__ != kind.__module__:
        return f"a {name} has hooks or another forward than its own"
    if part.training:
        return f"a {name} is in training mode"
    parts = (part._modules[of] for of in part._modules if of in inner)
    return next((why for of in parts if of is not None and (why := _part_reason(family, of))), None)


def _is_hooked(module: torch.nn.Module) -> bool:
    """Whether a call of a module is more than the forward of its class."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


class _Norm(NamedTuple):
    """The root mean square norm of a model, and as a function what is fastest without kernels."""

    weight: torch.Tensor
    eps: float
    offset: float
    function: _Function

    @classmethod
    def of(cls, norm: Any) -> _Norm:
        weight, is_offset = norm.weight, type(norm) is modeling_gemma3.Gemma3RMSNorm
        eps = norm.eps if is_offset else norm.variance_epsilon
        function: _Function = norm
        # In half precision the models round on the way, as one operation does not. On a CUDA device
        # it is one kernel instead of eight, and as near to the true numbers.
        if not is_offset and (weight.dtype == torch.float32 or weight.device.type == "cuda"):
            normed = torch.nn.functional.rms_norm
            function = partial(normed, normalized_shape=weight.shape, weight=weight, eps=eps)
        return cls(weight, eps, float(is_offset), function)


class _Layer(NamedTuple):
    """What a decoder layer computes with; to look it up in modules takes as long as to add."""

    input_norm: _Norm
    query_key_value: _Parts
    head_norms: tuple[_Norm, _Norm] | None
    output: _Function
    norm_of_attended: _Norm | None
    mlp_norm: _Norm
    gate_up: _Parts
    activation: _Function
    is_gelu: bool | None
    down: _Function
    norm_of_mlp: _Norm | None
    attention: Any
    kind: str

    @classmethod
    def of(cls, layer: Any, kind: str, join: Callable[..., _Parts]) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = {name: _Norm.of(layer._modules[name]) for name in layer._modules if "norm" in name}
        head_norms = None
        if attention._modules.keys() >= _HEAD_NORMS:
            head_norms = _Norm.of(attention.q_norm), _Norm.of(attention.k_norm)
        # Of two norms around attention the second is of what it adds.
        after = norms["post_attention_layernorm"]
        before_mlp = norms.get("pre_feedforward_layernorm")
        is_known = type(mlp.act_fn) in _GATES and not _is_hooked(mlp.act_fn)
        return cls(
            input_norm=norms["input_layernorm"],
            query_key_value=join(attention.q_proj, attention.k_proj, attention.v_proj),
            head_norms=head_norms,
            output=_function(attention.o_proj),
            norm_of_attended=None if before_mlp is None else after,
            mlp_norm=before_mlp or after,
            gate_up=join(mlp.gate_proj, mlp.up_proj),
            activation=mlp.act_fn,
            is_gelu=_GATES[type(mlp.act_fn)] if is_known else None,
            down=_function(mlp.down_proj),
            norm_of_mlp=norms.get("post_feedforward_layernorm"),
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


def _apart(*modules: torch.nn.Module) -> _Parts:
    """Linear layers, or what is in their place, that read the same states."""
    functions = [_function(module) for module in modules]
    return lambda states: [function(states) for function in functions]


class _Joined:
    """Linear layers that read the same states, as one over a copy of their weights."""

    def __init__(self, *layers: torch.nn.Linear) -> None:
        self._layers = layers
        self._sizes = [layer.out_features for layer in layers]
        self._copied = {name: torch.cat(parts) for name, parts in self._parts()}
        self.num_bytes = sum(copied.nbytes for copied in self._copied.values())

    def _parts(self) -> list[tuple[str, list[torch.Tensor]]]:
        names = ("weight",) if self._layers[0].bias is None else ("weight", "bias")
        return [(name, [getattr(layer, name) for layer in self._layers]) for name in names]

    def refresh(self) -> None:
        """Copies the weights, which may have changed."""
        for name, parts in self._parts():
            torch.cat(parts, out=self._copied[name])

    def __call__(self, states: torch.Tensor) -> Sequence[torch.Tensor]:
        product = torch.nn.functional.linear(states, **self._copied)
        return torch.split(product, self._sizes, dim=-1)


def _may_be_joined(*modules: torch.nn.Module) -> bool:
    linear = all(type(module) is torch.nn.Linear and not _is_hooked(module) for module in modules)
    kinds = {(module.weight.dtype, module.bias is None) for module in modules if linear}
    return len(kinds) == 1


class LeanForward:
    """Computes what the forward of a model without a `lean_reason` does, without its Python.

    Embedding, projections, activations and rotary angles are the model's own modules, whatever they
    are; what is between them is done here. With kernels, for passes of a `Tree`, a layer of linear
    projections is nine launches: two norms, four products, and between these rotation with the
    cache's writes, attention and the gate. For that the projections that read the same states are
    one product, over a copy of their weights: more than half of all. It is made where a quarter of
    the device's free memory holds it (twelve launches elsewhere) and anew in each request.
    """

    def __init__(self, model: Any, *, has_kernels: bool = False) -> None:
        decoder = model.model
        self._embed = decoder.embed_tokens
        self._rotary = decoder.rotary_emb
        self._norm = _Norm.of(decoder.norm)
        self._head = _function(model.lm_head)
        self._angles: dict[str, _Angles] = {}
        self._joined: list[_Joined] = []
        self._joins = has_kernels and _has_room(decoder.layers, model.device)
        kinds = layer_types(model.config)
        self._by_kind = "layer_type" in inspect.signature(self._rotary.forward).parameters
        made = zip(decoder.layers, kinds, strict=True)
        self._layers = [_Layer.of(layer, kind, self._join) for layer, kind in made]

    def _join(self, *modules: Any) -> _Parts:
        if not (self._joins and _may_be_joined(*modules)):
            return _apart(*modules)
        self._joined.append(_Joined(*modules))
        return self._joined[-1]

    @property
    def num_copied_bytes(self) -> int:
        """Bytes of the copied weights."""
        return sum(joined.num_bytes for joined in self._joined)

    def refresh(self) -> None:
        """Comes before each request: takes the weights as they are now."""
        for joined in self._joined:
            joined.refresh()

    def __call__(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        seen: Masks | Tree,
        cache: TreeCache,
    ) -> torch.Tensor:
        """The logits of a pass, `(1, num_tokens, vocab_size)`; its states go to the cache."""
        self._make_angles(cache)
        residual, delta, inner = self._embed(token_ids), None, None
        angles = self._angles
        if not isinstance(seen, Tree):
            tables, at = angles.items(), positions[0]
            angles = {
                kind: (table[0][at][:, None], table[1][at][:, None]) for kind, table in tables
            }
        for index, layer in enumerate(self._layers):
            of_layer = seen[layer.kind] if isinstance(seen, dict) else seen
            residual, normed = _add_norm(residual, delta, inner, layer.input_norm, seen)
            attended = _attend(layer, index, normed, angles[layer.kind], of_layer, cache)
            delta, inner = layer.output(attended), layer.norm_of_attended
            residual, normed = _add_norm(residual, delta, inner, layer.mlp_norm, seen)
            delta, inner = _transform(layer, normed, seen), layer.norm_of_mlp
        _, normed = _add_norm(residual, delta, inner, self._norm, seen)
        return self._head(normed)

    def _make_angles(self, cache: TreeCache) -> None:
        """Makes a table of cosines and sines, by position, for all slots until the cache moves."""
        if self._angles and len(next(iter(self._angles.values()))[0]) == cache.num_slots:
            return
        weight = self._norm.weight
        positions = torch.arange(cache.num_slots, device=weight.device)[None]
        for kind in {layer.kind for layer in self._layers}:
            of_kind = (kind,) if self._by_kind else ()
            cosines, sines = self._rotary(weight, positions, *of_kind)
            half = sines.shape[-1] // 2
            sines = torch.cat((-sines[..., :half], sines[..., half:]), dim=-1)
            self._angles[kind] = cosines[0].contiguous(), sines[0].contiguous()


def _has_room(layers: torch.nn.Module, device: torch.device) -> bool:
    """Whether a copy of what may be joined fits in a device's memory."""
    if device.type != "cuda":
        return True
    named = layers.named_parameters()
    copied = sum(weight.nbytes for name, weight in named if name.split(".")[-2] in _JOINED)
    return copied <= _MOST_COPIED * torch.cuda.mem_get_info(device)[0]


def _add_norm(
    residual: torch.Tensor,
    delta: torch.Tensor | None,
    inner: _Norm | None,
    norm: _Norm,
    seen: Masks | Tree,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds to a layer's states, after an inner norm where there is one; the sum, and it normed."""
    if isinstance(seen, Tree):
        inner_weight = None if inner is None else inner.weight
        made = layer_operations.add_norm(residual, delta, inner_weight, *norm[:3])
        return made[0], made[1]
    if delta is not None:
        residual = residual + (delta if inner is None else inner.function(delta))
    return residual, norm.function(residual)


def _attend(
    layer: _Layer,
    index: int,
    normed: torch.Tensor,
    angles: _Angles,
    seen: torch.Tensor | Tree | None,
    cache: TreeCache,
) -> torch.Tensor:
    """What the heads have found, `(1, num_tokens, num_heads * head_dim)`."""
    query, key, value = layer.query_key_value(normed)
    scaling = layer.attention.scaling
    if isinstance(seen, Tree):
        norms = layer.head_norms
        weights = (None, None) if norms is None else (norms[0].weight, norms[1].weight)
        where = seen.lengths, seen.positions, *cache.slots(index), cache.capacity
        eps_offset = (norms[0] if norms else layer.input_norm)[1:3]
        rotated = layer_operations.rotate_and_store(
            query, key, value, *weights, *angles, *where, *eps_offset
        )
        query = rotated.transpose(0, 1)[None]
        attended = attend_tree(seen, index, query, *cache.seen(index), scale=scaling)
        return attended.flatten(-2)
    by_head = (normed.shape[1], -1, layer.attention.head_dim)
    query, key, value = query.view(by_head), key.view(by_head), value.view(by_head)
    if layer.head_norms is not None:
        query, key = layer.head_norms[0].function(query), layer.head_norms[1].function(key)
    (cosines, sines), states = angles, torch.cat((query, key), dim=1)
    rotated = states * cosines + states.roll(states.shape[-1] // 2, -1) * sines
    query, key = rotated.split_with_sizes((query.shape[1], key.shape[1]), dim=1)
    keys, values = cache.update(key.transpose(0, 1)[None], value.transpose(0, 1)[None], index)
    query = query.transpose(0, 1)[None]
    attended, _ = attend_packed(layer.attention, query, keys, values, seen, scaling=scaling)
    return attended.flatten(-2)


def _transform(layer: _Layer, normed: torch.Tensor, seen: Masks | Tree) -> torch.Tensor:
    gates, ups = layer.gate_up(normed)
    if isinstance(seen, Tree) and layer.is_gelu is not None:
        return layer.down(layer_operations.gate(gates, ups, layer.is_gelu))
    return layer.down(layer.activation(gates) * ups)
