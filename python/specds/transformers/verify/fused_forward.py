"""The forward of a model by Triton's kernels, without the Python code between its modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules import module as _modules
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from specds.transformers.kernels import operations
from specds.transformers.verify.attention import Tree, attend_tree
from specds.transformers.verify.cache import TreeCache
from specds.transformers.verify.inputs import layer_types

_Function = Callable[[Tensor], Tensor]
_Parts = Callable[[Tensor], Sequence[Tensor]]
_Angles = tuple[Tensor, Tensor]

# Maximum share of a device's free memory for copies of weights.
_MAX_COPIED = 0.25

# The supported model families.
_NAMES = "gemma3", "llama", "mistral", "qwen2", "qwen3"
_FAMILIES = {f"transformers.models.{name}.modeling_{name}" for name in _NAMES}
# Modules whose forward is called.
CALLED = {"lm_head", "embed_tokens", "rotary_emb", "act_fn", "o_proj", "down_proj"}
# Projections that can be joined with others of the same input.
JOINED = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
# Modules that are computed here.
_COMPUTED = {"model", "layers", "norm", "self_attn", "mlp", "input_layernorm", *_HEAD_NORMS}
_COMPUTED |= {f"{of}_layernorm" for of in ("post_attention", "pre_feedforward", "post_feedforward")}
# The activations of `operations.gate`; True for GELU.
GATES = {type(ACT2FN["silu"]): False, type(ACT2FN["gelu_pytorch_tanh"]): True}


def unfused_reason(model: PreTrainedModel) -> str:
    """Return why a model has no `FusedForward`; empty if it has one."""
    kind = type(model)
    if kind.__module__ not in _FAMILIES or not kind.__name__.endswith("ForCausalLM"):
        return f"{kind.__name__} is of another family"
    if _modules._global_forward_hooks or _modules._global_forward_pre_hooks:
        return "all modules have a hook"
    if getattr(model.config, "final_logit_softcapping", None) is not None:
        return "its logits are capped"
    return _what_is_unusual(kind.__module__, model)


def _what_is_unusual(family: str, part: torch.nn.Module, name: str = "") -> str:
    """Return what differs from the family's code in a module that is computed here, or ''."""
    kind, inner, what = type(part), {*part._modules, *part._parameters}, name or "the model"
    if kind is not torch.nn.ModuleList:
        inner -= CALLED | JOINED
        # A library of kernels may have replaced a forward for all models.
        is_of_family = kind.__module__ == family == kind.forward.__module__
        if not is_of_family or not inner <= _COMPUTED | {"weight"}:
            return f"{what} is not as its family made it"
        if is_hooked(part):
            return f"{what} has a hook or a forward of its own"
    if part.training:
        return f"{what} is in training mode"
    found = (
        _what_is_unusual(family, module, f"{name}.{inside}".lstrip("."))
        for inside, module in part._modules.items()
        if inside in inner and module
    )
    return next(filter(None, found), "")


def is_hooked(module: torch.nn.Module) -> bool:
    """Return whether a call of a module does more than the forward of its class."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


def _is_plain_linear(module: torch.nn.Module) -> bool:
    is_linear = type(module) is torch.nn.Linear and not is_hooked(module)
    # Quantized weights are subclasses, which may support the calls of the layer only.
    return is_linear and type(module.weight) is torch.nn.Parameter


class _Norm(NamedTuple):
    """A root mean square norm."""

    weight: Tensor
    eps: float
    offset: float

    @classmethod
    def of(cls, norm: Any) -> _Norm:
        is_offset = type(norm).__name__ == "Gemma3RMSNorm"
        return cls(norm.weight, norm.eps if is_offset else norm.variance_epsilon, float(is_offset))


class _Layer:
    """The parts of a decoder layer; looking them up in modules takes as long as an addition."""

    def __init__(self, layer: Any, kind: str, join: Callable[..., _Parts]) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        norms = {name: _Norm.of(layer._modules[name]) for name in layer._modules if "norm" in name}
        self.kind = kind
        self.attention = attention
        self.input_norm = norms["input_layernorm"]
        self.query_key_value = join(attention.q_proj, attention.k_proj, attention.v_proj)
        self.head_norms: tuple[_Norm, _Norm] | None = None
        if attention._modules.keys() >= _HEAD_NORMS:
            self.head_norms = _Norm.of(attention.q_norm), _Norm.of(attention.k_norm)
        self.output = _function(attention.o_proj)
        # With two norms around the MLP, the norm after attention is applied to attention's output.
        after = norms["post_attention_layernorm"]
        before_mlp = norms.get("pre_feedforward_layernorm")
        self.norm_of_attended = None if before_mlp is None else after
        self.mlp_norm = before_mlp or after
        self.gate_up = join(mlp.gate_proj, mlp.up_proj)
        self.activation = mlp.act_fn
        # None for an activation that `operations.gate` does not compute.
        self.is_gelu = None if is_hooked(mlp.act_fn) else GATES.get(type(mlp.act_fn))
        self.down = _function(mlp.down_proj)
        self.norm_of_mlp = norms.get("post_feedforward_layernorm")


def _function(module: Any) -> _Function:
    """Return the module, or the operation of a plain linear layer."""
    computed: _Function = module
    if _is_plain_linear(module):
        product = torch.nn.functional.linear
        computed = partial(product, weight=module.weight, bias=module.bias)
    return computed


class _Joined:
    """Linear layers of the same input as one product, over a copy of their weights."""

    def __init__(self, *layers: torch.nn.Linear) -> None:
        self._layers = layers
        self._sizes = [layer.out_features for layer in layers]
        names = ("weight",) if layers[0].bias is None else ("weight", "bias")
        self.copies = {name: torch.cat([getattr(of, name) for of in layers]) for name in names}

    def refresh(self) -> None:
        for name, copied in self.copies.items():
            torch.cat([getattr(layer, name) for layer in self._layers], out=copied)

    def __call__(self, states: Tensor) -> Sequence[Tensor]:
        product = torch.nn.functional.linear(states, **self.copies)
        return torch.split(product, self._sizes, dim=-1)


class FusedForward:
    """The fused forward of a model of a supported family (see `unfused_reason`).

    It calls the model's own embedding, projections, activations and rotary angles, and computes the
    rest by the Triton kernels. A layer of linear projections is nine launches: two norms, four
    products, rotation with the cache's writes, attention and the gate. Projections of the same
    input are one product over a copy of their weights, if the copy fits in a quarter of the
    device's free memory.
    """

    def __init__(self, model: Any) -> None:
        decoder = model.model
        self._embed = decoder.embed_tokens
        self._rotary = decoder.rotary_emb
        self._norm = _Norm.of(decoder.norm)
        self._head = _function(model.lm_head)
        self._angles: dict[str, _Angles] = {}
        self._joined: list[_Joined] = []
        self._joins = _has_room(decoder.layers, model.device)
        kinds = layer_types(model.config)
        self._by_kind = "layer_type" in inspect.signature(self._rotary.forward).parameters
        made = zip(decoder.layers, kinds, strict=True)
        self._layers = [_Layer(layer, kind, self._join) for layer, kind in made]

    def _join(self, *modules: Any) -> _Parts:
        """Return the projections of the same input as one function."""
        plain = all(map(_is_plain_linear, modules))
        if self._joins and plain and len({(m.weight.dtype, m.bias is None) for m in modules}) == 1:
            self._joined.append(_Joined(*modules))
            return self._joined[-1]
        functions = [_function(module) for module in modules]
        return lambda states: [function(states) for function in functions]

    def refresh(self) -> None:
        """Copy joined weights again, since the model's may have changed."""
        for joined in self._joined:
            joined.refresh()

    def __call__(
        self, token_ids: Tensor, positions: Tensor, seen: Tree, cache: TreeCache
    ) -> Tensor:
        """Return the logits of a pass, `(1, num_tokens, vocab_size)`, and cache its states."""
        self._make_angles(cache)
        residual, delta, inner = self._embed(token_ids), None, None
        for index, layer in enumerate(self._layers):
            residual, normed = _add_norm(residual, delta, inner, layer.input_norm)
            attended = _attend(layer, index, normed, self._angles[layer.kind], seen, cache)
            delta, inner = layer.output(attended), layer.norm_of_attended
            residual, normed = _add_norm(residual, delta, inner, layer.mlp_norm)
            delta, inner = _transform(layer, normed), layer.norm_of_mlp
        _, normed = _add_norm(residual, delta, inner, self._norm)
        return self._head(normed)

    def _make_angles(self, cache: TreeCache) -> None:
        """Compute the cosines and sines of all positions when the number of slots has changed."""
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
    """Return whether copies of all weights that can be joined fit in a device's memory."""
    if device.type != "cuda":
        return True
    named = layers.named_parameters()
    copied = sum(weight.nbytes for name, weight in named if name.split(".")[-2] in JOINED)
    return copied <= _MAX_COPIED * torch.cuda.mem_get_info(device)[0]


def _add_norm(
    residual: Tensor, delta: Tensor | None, inner: _Norm | None, norm: _Norm
) -> tuple[Tensor, Tensor]:
    """Return the residual plus `delta`, to which an inner norm may apply, and the sum's norm."""
    inner_weight = None if inner is None else inner.weight
    made = operations.add_norm(residual, delta, inner_weight, *norm)
    return made[0], made[1]


def _attend(
    layer: _Layer, index: int, normed: Tensor, angles: _Angles, seen: Tree, cache: TreeCache
) -> Tensor:
    """Return the output of the heads, `(1, num_tokens, num_heads * head_dim)`."""
    norms = layer.head_norms
    weights = (None, None) if norms is None else (norms[0].weight, norms[1].weight)
    _, eps, offset = norms[0] if norms else layer.input_norm
    where = seen.lengths, seen.positions, *cache.slots[index], cache.capacity
    made = *layer.query_key_value(normed), *weights, *angles
    query = operations.rotate_and_store(*made, *where, eps, offset).transpose(0, 1)[None]
    scale = layer.attention.scaling
    return attend_tree(seen, index, query, *cache.seen(index), scale=scale).flatten(-2)


def _transform(layer: _Layer, normed: Tensor) -> Tensor:
    gates, ups = layer.gate_up(normed)
    if layer.is_gelu is not None:
        return layer.down(operations.gate(gates, ups, layer.is_gelu))
    return layer.down(layer.activation(gates) * ups)
