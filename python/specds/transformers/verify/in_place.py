"""Verification backend `native` of transformers' models on a CPU: the core reads their weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from specds._core import ForwardModel, GgufFile, TokenTree
from specds.generation.native import NativeRunner
from specds.models.gguf_model import GgufModel
from specds.models.gguf_writer import LAYER_PARTS, SIZES
from specds.transformers.verify.fused_forward import (
    CALLED,
    GATES,
    JOINED,
    is_hooked,
    unfused_reason,
)
from specds.transformers.verify.generic import Runner
from specds.transformers.verify.inputs import layer_types
from specds.transformers.verify.linear import BITS

# Of layers with two norms around the MLP, the norm after attention is applied to its output.
_GEMMA = LAYER_PARTS | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def in_place_reason(model: PreTrainedModel) -> str:
    """Return why the core cannot compute a model where it lies; empty if it can."""
    if why := _unusual(model):
        return why
    try:
        core_of(model)
    except ValueError as error:
        # The core's own advice is for files.
        return str(error).partition(": run it")[0]
    return ""


def _unusual(model: Any) -> str:
    """Return what differs from a model of matrices in memory and rotations by angles, or ''."""
    if model.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return "it is not on a CPU, or under autocast"
    if why := unfused_reason(model):
        return why
    for name, module in model.named_modules():
        kind, weight = type(module), module._parameters.get("weight")
        last = name.rpartition(".")[2]
        is_usual = kind in (torch.nn.Linear, torch.nn.Embedding) or last not in CALLED | JOINED
        is_usual |= kind.__module__ == type(model).__module__  # scaled embeddings and rotations
        is_usual |= last == "act_fn" and GATES.get(kind) == _is_gemma(model)
        is_plain = weight is None or (type(weight) is torch.nn.Parameter and weight.dtype in BITS)
        if is_hooked(module) or not is_usual or not is_plain:
            return f"{name} is not as its family made it"
        if any(of.endswith("attention_scaling") and vars(module)[of] != 1.0 for of in vars(module)):
            return "it scales rotations"
    return _changed_constant(model)


def _changed_constant(model: Any) -> str:
    """Return a constant that the core takes for all layers, and that differs in one; or ''."""
    layers = model.model.layers
    if [layer.self_attn.layer_idx for layer in layers] != [*range(len(layers))]:
        return "its layers are in another order than their numbers"
    for name in ("scaling", "head_dim", "num_key_value_groups"):
        if len({getattr(layer.self_attn, name, None) for layer in layers}) > 1:
            return f"self_attn.{name} differs between layers"
    return "" if len(_epsilons(model)) == 1 else "the epsilon of its norms differs"


def _epsilons(model: Any) -> set[float]:
    """Return the different epsilons of all norms, whatever the configuration says."""
    found = (vars(module) for module in model.modules())
    names = ("variance_epsilon", "eps")
    return {float(of[name]) for of in found for name in names if name in of}


def _is_gemma(model: Any) -> bool:
    return str(model.config.model_type).startswith("gemma")


def modules_of(model: Any) -> dict[str, Any]:
    """Return the modules with weights by the names of GGUF, without a tied head."""
    decoder, names = model.model, _GEMMA if _is_gemma(model) else LAYER_PARTS
    modules = {"token_embd": decoder.embed_tokens, "output_norm": decoder.norm}
    if model.lm_head.weight is not decoder.embed_tokens.weight:
        modules["output"] = model.lm_head
    for number, layer in enumerate(decoder.layers):
        inside = dict(layer.named_modules())
        found = names.keys() & inside.keys()
        modules |= {f"blk.{number}.{names[name]}": inside[name] for name in found}
    return modules


def core_of(model: Any) -> GgufModel:
    """Return a model of the core over the matrices of a model, where they lie; vectors are copied.

    Raises:
        ValueError: The core does not compute a model of such shapes, or a matrix is not contiguous.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, module in modules_of(model).items():
        for kind, weight in module._parameters.items():
            if weight is not None and weight.dim() == 1:
                is_offset = _is_gemma(model) and kind == "weight"
                arrays[f"{name}.{kind}"] = (weight.detach().float() + is_offset).numpy()
            elif weight is not None:
                arrays[f"{name}.{kind}"] = weight.detach().view(BITS[weight.dtype]).numpy()
    angles = model.model.rotary_emb._buffers
    for name, kind in ("", "full_attention"), ("_swa", "sliding_attention"):
        of_kind = angles.get("inv_freq", angles.get(f"{kind}_inv_freq"))
        if of_kind is not None:
            arrays[f"rope_angles{name}.weight"] = of_kind.float().numpy()
    fields = _fields(model)
    core = ForwardModel(GgufFile.of_arrays("it", fields, arrays))
    made = GgufModel(core, "float32")
    made.threads = torch.get_num_threads()
    return made


def _fields(model: Any) -> dict[str, Any]:
    """Return the fields that the file of a model would have."""
    config, attention = model.config, model.model.layers[0].self_attn
    fields = {name: getattr(config, ours, None) for name, ours in SIZES.items()}
    fields |= {
        "attention.key_length": attention.head_dim,
        "attention.value_length": attention.head_dim,
        "attention.scale": float(attention.scaling),
        "attention.layer_norm_rms_epsilon": min(_epsilons(model)),
    }
    is_local = [kind == "sliding_attention" for kind in layer_types(config)]
    if any(is_local):
        fields["attention.sliding_window"] = config.sliding_window
        fields["attention.sliding_window_pattern"] = is_local
    # The core's names of models whose rotations turn halves, with or without biases.
    has_norms = hasattr(attention, "q_norm")
    architecture = "gemma3" if _is_gemma(model) else "qwen3" if has_norms else "qwen2"
    named = {f"{architecture}.{name}": value for name, value in fields.items()}
    return named | {"general.architecture": architecture}


class InPlaceRunner(Runner):
    """Verification by the core, of prompts that transformers has read.

    Torch is faster on prompts: their keys and values are moved to the core.
    """

    name = "native"
    needs_mask = False
    token_cost = 0.08

    @classmethod
    def reasons_against(cls, model: PreTrainedModel) -> Iterable[str]:
        return filter(None, [in_place_reason(model)])

    def __init__(self, model: PreTrainedModel, **sizes: int) -> None:
        super().__init__(model, **sizes)
        self._core = NativeRunner(core_of(model), num_rows=sizes.get("num_rows", 1))
        self.setting = type(self), model.dtype, *self._core.setting
        self._states = self._core.states

    def fix_shape(self, num_nodes: int, num_slots: int) -> None:
        pass  # no rounding depends on it

    def prefill_rows(self, prompts: Sequence[Tensor], chunk_size: int | None = None) -> Tensor:
        logits = super().prefill_rows(prompts, chunk_size)
        slots, capacity = self.cache.slots, self.cache.capacity
        for row, length in enumerate(self.cache.lengths):
            kept = slice(row * capacity, row * capacity + length)
            pairs = [slots[layer][kind][kept] for layer in sorted(slots) for kind in (0, 1)]
            self._states.append(row, torch.stack(pairs).float().numpy())
        del self.cache
        return logits.float()

    def verify_rows(self, token_ids: Sequence[int], trees: Sequence[TokenTree]) -> list[Tensor]:
        self._core.least_nodes = self.least_nodes
        return [torch.from_numpy(of) for of in self._core.verify_rows(token_ids, trees)]

    def commit_rows(self, paths: Sequence[Sequence[int]]) -> None:
        self._core.commit_rows(paths)

    @property
    def lengths(self) -> list[int]:
        return self._core.lengths

    def leave(self, row: int) -> None:
        self._core.leave(row)

    def committed(self) -> DynamicCache:
        cache, config = DynamicCache(), self._config
        shape = config.num_hidden_layers, 2, 1, self.lengths[0], config.num_key_value_heads, -1
        states = torch.from_numpy(self._states.states(0)).view(shape).transpose(3, 4)
        for layer, pair in enumerate(states.to(self._model.dtype)):
            cache.update(pair[0].contiguous(), pair[1].contiguous(), layer)
        return cache
