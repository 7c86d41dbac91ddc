"""Configurations of transformers, from the metadata of GGUF files."""

from __future__ import annotations

import math
from typing import Any

from specds._core import GgufFile
from specds.models.gguf import field

_MODEL_TYPES = {
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text",
    "mistral3": "ministral3", "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss", "lfm2moe": "lfm2_moe",
    "qwen3next": "qwen3_next", "qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text",
}  # fmt: skip
"""Types of models whose names differ from those of GGUF."""
_WITH_WINDOWS = {"llama": "mistral", "olmo2": "olmo3"}
"""Types of models with windows that share an architecture with one without."""
_FIELDS = {
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "final_logit_softcapping": "final_logit_softcapping",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "attention_multiplier": "attention.scale",
}
"""Numbers by their names in transformers."""
_SIZES = {
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": (
        "shared_expert_intermediate_size", "shared_intermediate_size"
    ),
    "leading_dense_block_count": ("num_dense_layers",),
    "shortconv.l_cache": ("conv_L_cache",),
    "ssm.conv_kernel": ("linear_conv_kernel_dim",),
    "ssm.state_size": ("linear_key_head_dim", "linear_value_head_dim"),
    "ssm.group_count": ("linear_num_key_heads",),
    "ssm.time_step_rank": ("linear_num_value_heads",),
    "embedding_length_per_layer_input": ("hidden_size_per_layer_input",),
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "altup.num_inputs": ("altup_num_inputs",),
}  # fmt: skip
"""Sizes of mixtures of experts and of recurrent layers: names in transformers, by those in GGUF."""
_SCALING = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "mscale_all_dim": "yarn_log_multiplier",
}
"""Parameters of scaled rotations by their names in transformers."""
_UNTURNED = 1e29
"""Divisors of angles of dimensions that are not rotated."""
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
"""The layers of models that divide scores by another size than that of a head."""


def model_settings(file: GgufFile, shapes: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the configuration of transformers, `model_type` included.

    Args:
        file: The file.
        shapes: The `config` of its `ForwardModel`.
    """
    architecture, tensors = str(field(file, "general.architecture")), set(file.tensors())
    settings = {name: size for name, size in shapes.items() if name != "num_weights"}
    for name, key in _FIELDS.items():
        value = field(file, f"{architecture}.{key}")
        if isinstance(value, (int, float)):
            settings[name] = value
    for name, ours in _SIZES.items():
        if size := field(file, f"{architecture}.{name}"):
            settings |= dict.fromkeys(ours, size)
    window = field(file, f"{architecture}.attention.sliding_window", 0)
    settings["sliding_window"] = window or None
    has_windows = "sliding_attention" in settings["layer_types"]
    settings["use_sliding_window"] = has_windows
    if "full_attention" not in settings["layer_types"]:
        del settings["layer_types"]  # some configurations without the field have windows everywhere
    with_windows = _WITH_WINDOWS if has_windows else {}
    model_type = with_windows.get(architecture, _MODEL_TYPES.get(architecture, architecture))
    is_mixtral = architecture == "llama" and "num_experts" in settings
    settings["model_type"] = "mixtral" if is_mixtral else model_type
    settings["tie_word_embeddings"] = "output.weight" not in tensors
    settings["attention_bias"] = "blk.0.attn_q.bias" in tensors
    is_27b = shapes["num_hidden_layers"] == _LAYERS_OF_27B.get(architecture)
    whole = shapes["hidden_size"] // shapes["num_attention_heads"]
    settings["query_pre_attn_scalar"] = whole if is_27b else shapes["head_dim"]
    if architecture.startswith("gemma"):
        settings["hidden_activation"] = "gelu_pytorch_tanh"
    settings["rope_parameters"] = _rope_parameters(file, architecture, shapes["head_dim"])
    if architecture in ("gemma3n", "gemma4"):
        settings |= _layers_of_gemma(file, architecture, shapes)
    return settings


def _layers_of_gemma(file: GgufFile, architecture: str, shapes: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of Gemma 3n and 4 that differ from layer to layer."""

    def of(name: str, default: Any = None) -> Any:
        return field(file, f"{architecture}.{name}", default)

    settings: dict[str, Any] = {"final_logit_softcapping": of("final_logit_softcapping")}
    settings["vocab_size_per_layer_input"] = shapes["vocab_size"]
    sizes = of("feed_forward_length")
    if architecture == "gemma3n":
        settings["intermediate_size"] = sizes
        settings["laurel_rank"] = len(file.tensor("blk.0.laurel_l.weight"))
        scales = of("activation_sparsity_scale")
        settings["activation_sparsity_pattern"] = [
            0.5 * (1.0 + math.erf(scale / math.sqrt(2.0))) for scale in scales
        ]
        return settings
    heads = of("attention.head_count_kv")
    heads = heads if isinstance(heads, list) else [heads] * shapes["num_hidden_layers"]
    last = shapes["layer_types"].index("full_attention")
    settings["global_head_dim"] = of("attention.key_length")
    settings["attention_k_eq_v"] = f"blk.{last}.attn_v.weight" not in file.tensors()
    if settings["attention_k_eq_v"]:
        settings["num_global_key_value_heads"] = heads[last]
    settings["hidden_size_per_layer_input"] = of("embedding_length_per_layer_input", 0)
    settings["use_double_wide_mlp"] = isinstance(sizes, list) and sizes[-1] > sizes[0]
    if num_used := of("expert_used_count"):
        settings |= {"enable_moe_block": True, "top_k_experts": num_used}
    return settings


def _rope_parameters(file: GgufFile, architecture: str, head_size: int) -> dict[str, Any]:
    def of(name: str, default: Any = None) -> Any:
        return field(file, f"{architecture}.rope.{name}", default)

    found: dict[str, Any] = {"rope_type": "default", "rope_theta": float(of("freq_base", 1e4))}
    kind, size = of("scaling.type"), of("dimension_count", head_size)
    if size < head_size:
        found["partial_rotary_factor"] = size / head_size
    factors = {length: f"rope_factors_{length}.weight" for length in ("short", "long")}
    if factors["short"] in file.tensors():
        kind = "longrope"
        for length, name in factors.items():
            found[f"{length}_factor"] = file.tensor(name).ravel().tolist()
    if kind in ("linear", "yarn", "longrope"):
        named = {name: of(f"scaling.{key}") for name, key in _SCALING.items()}
        found |= {name: value for name, value in named.items() if value is not None}
        found["rope_type"] = kind
    if kind == "longrope" and "original_max_position_embeddings" in found:
        context = field(file, f"{architecture}.context_length")
        found["factor"] = context / found["original_max_position_embeddings"]
    if "mscale_all_dim" in found:
        found["mscale"] = 1.0
    if attention := field(file, f"{architecture}.attention.temperature_scale"):
        found["llama_4_scaling_beta"] = attention
    local = {"rope_type": "default", "rope_theta": float(of("freq_base_swa", 1e4))}
    if architecture == "gemma4" and "rope_freqs.weight" in file.tensors():
        divisors = file.tensor("rope_freqs.weight").ravel()
        found["rope_type"] = "proportional"
        found["partial_rotary_factor"] = float((divisors < _UNTURNED).mean())
    if architecture in ("gemma3", "gemma3n", "gemma4"):
        return {"full_attention": found, "sliding_attention": local}
    return found
