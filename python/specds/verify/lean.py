"""What is left of a model's forward pass without its layers of Python: the arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.modules.module import _has_any_global_hook
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

from specds.verify.attention import attend_packed
from specds.verify.masks import layer_types

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from transformers import PreTrainedModel

    from specds.verify.cache import TreeCache


class _Block(NamedTuple):
    """A kind of module whose forward is computed here.

    Attributes:
        kind: Its class, and no other.
        parts: The names of all modules in it.
        weights: The names of its own parameters.
    """

    kind: type[torch.nn.Module]
    parts: frozenset[str]
    weights: frozenset[str] = frozenset()


class _Family(NamedTuple):
    """The blocks of the decoders of one family; what is in them and no block is run as it is."""

    whole: _Block
    decoder: _Block
    layer: _Block
    attention: _Block
    mlp: _Block
    norm: _Block


_PROJECTIONS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
_HEAD_NORMS = frozenset({"q_norm", "k_norm"})


def _family(
    modeling: ModuleType, name: str, head_norms: frozenset[str] = frozenset()
) -> tuple[type, _Family]:
    def block(suffix: str, *parts: str, weights: frozenset[str] = frozenset()) -> _Block:
        return _Block(getattr(modeling, name + suffix), frozenset(parts), weights)

    family = _Family(
        whole=block("ForCausalLM", "model", "lm_head"),
        decoder=block("Model", "embed_tokens", "layers", "norm", "rotary_emb"),
        layer=block(
            "DecoderLayer", "self_attn", "mlp", "input_layernorm", "post_attention_layernorm"
        ),
        attention=block("Attention", *_PROJECTIONS, *head_norms),
        mlp=block("MLP", "gate_proj", "up_proj", "down_proj", "act_fn"),
        norm=block("RMSNorm", weights=frozenset({"weight"})),
    )
    return family.whole.kind, family


_FAMILIES: dict[type, _Family] = dict(
    [
        _family(modeling_llama, "Llama"),
        _family(modeling_mistral, "Mistral"),
        _family(modeling_qwen2, "Qwen2"),
        _family(modeling_qwen3, "Qwen3", _HEAD_NORMS),
    ]
)


def lean_reason(model: PreTrainedModel) -> str | None:
    """Why a model has no lean forward; None where it has."""
    family = _FAMILIES.get(type(model))
    if family is None:
        return f"{type(model).__name__} is of no family that is known here"
    if _has_any_global_hook():
        return "hooks are registered for all modules"
    if getattr(model, "_tp_size", None) is not None:
        return "it is spread over several devices"
    blocks = _blocks(model, family)
    return next((reason for made in blocks if (reason := _block_reason(*made))), None)


def _blocks(model: Any, family: _Family) -> Iterator[tuple[torch.nn.Module, _Block]]:
    """All modules whose forward is not called, each after the one that it is found in."""
    yield model, family.whole
    yield model.model, family.decoder
    yield model.model.norm, family.norm
    for layer in model.model.layers:
        yield layer, family.layer
        yield layer.self_attn, family.attention
        yield layer.mlp, family.mlp
        norms = [layer.input_layernorm, layer.post_attention_layernorm]
        if family.attention.parts >= _HEAD_NORMS:
            norms += [layer.self_attn.q_norm, layer.self_attn.k_norm]
        yield from ((norm, family.norm) for norm in norms)


def _block_reason(module: torch.nn.Module, block: _Block) -> str | None:
    name = block.kind.__name__
    if type(module) is not block.kind:
        return f"a {type(module).__name__} is where a {name} is expected"
    if module._modules.keys() != block.parts or module._parameters.keys() != block.weights:
        return f"a {name} is not made as usual"
    if module._forward_hooks or module._forward_pre_hooks:
        return f"a {name} has hooks"
    # A forward of the class may have been exchanged for all models, by a library of kernels.
    if "forward" in module.__dict__ or block.kind.forward.__module__ != block.kind.__module__:
        return f"the forward of a {name} was replaced"
    return f"a {name} is in training mode" if module.training else None


class _Layer(NamedTuple):
    """A decoder layer's modules at hand: to look one up in its module takes as long as a sum."""

    input_norm: torch.nn.Module
    query: torch.nn.Module
    key: torch.nn.Module
    value: torch.nn.Module
    output: torch.nn.Module
    head_norms: tuple[torch.nn.Module, torch.nn.Module] | None
    mlp_norm: torch.nn.Module
    gate: torch.nn.Module
    up: torch.nn.Module
    activation: torch.nn.Module
    down: torch.nn.Module
    attention: Any
    kind: str

    @classmethod
    def of(cls, layer: Any, kind: str) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        head_norms = None
        if attention._modules.keys() >= _HEAD_NORMS:
            head_norms = attention.q_norm, attention.k_norm
        return cls(
            layer.input_layernorm,
            attention.q_proj,
            attention.k_proj,
            attention.v_proj,
            attention.o_proj,
            head_norms,
            layer.post_attention_layernorm,
            mlp.gate_proj,
            mlp.up_proj,
            mlp.act_fn,
            mlp.down_proj,
            attention,
            kind,
        )


class LeanForward:
    """Computes what a model's forward does, operation by operation, without its Python.

    Embedding, projections, activations and rotary angles are the model's own modules, whatever they
    are; what is between them is done here. A pass of small models is mostly that.

    Args:
        model: A model without a `lean_reason`.
    """

    def __init__(self, model: Any) -> None:
        decoder = model.model
        self._embed = decoder.embed_tokens
        self._rotary = decoder.rotary_emb
        self._norm = decoder.norm
        self._head = model.lm_head
        kinds = layer_types(model.config)
        made = zip(decoder.layers, kinds, strict=True)
        self._layers = [_Layer.of(layer, kind) for layer, kind in made]

    def __call__(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | dict[str, torch.Tensor] | None,
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
        logits: torch.Tensor = self._head(_normed(self._norm, states))
        return logits


def _normed(norm: Any, states: torch.Tensor) -> torch.Tensor:
    # The models compute it in float32, which in other types is more than one rounding.
    if states.dtype != torch.float32 or norm.weight.dtype != torch.float32:
        normed: torch.Tensor = norm(states)
        return normed
    return torch.nn.functional.rms_norm(
        states, norm.weight.shape, norm.weight, norm.variance_epsilon
    )


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
    mask: torch.Tensor | None,
    cache: TreeCache,
) -> torch.Tensor:
    normed = _normed(layer.input_norm, states)
    heads = (-1, layer.attention.head_dim)
    query = layer.query(normed)[0].unflatten(-1, heads)
    key = layer.key(normed)[0].unflatten(-1, heads)
    value = layer.value(normed)[0].unflatten(-1, heads)
    if layer.head_norms is not None:
        query, key = _normed(layer.head_norms[0], query), _normed(layer.head_norms[1], key)
    query, key = _rotated(query, angles), _rotated(key, angles)
    keys, values = cache.update(key.transpose(0, 1)[None], value.transpose(0, 1)[None], index)
    attended = attend_packed(
        layer.attention,
        query.transpose(0, 1)[None],
        keys,
        values,
        mask,
        scaling=layer.attention.scaling,
    )[0]
    output: torch.Tensor = layer.output(attended.flatten(-2))
    return output


def _transform(layer: _Layer, states: torch.Tensor) -> torch.Tensor:
    normed = _normed(layer.mlp_norm, states)
    output: torch.Tensor = layer.down(layer.activation(layer.gate(normed)) * layer.up(normed))
    return output
