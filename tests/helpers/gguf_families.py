"""Families of models that the core computes from GGUF files: tiny models of transformers.

`python tests/helpers/gguf_families.py FOLDER` writes a file of each, for llama.cpp.
"""

import sys
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers

from gguf_models import byte_tokenizer, mxfp4, write_gguf
from models import build

VOCAB_SIZE = 259
"""The tokens of `byte_tokenizer`, and one of two letters."""
WINDOW = 8

_SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
_PARTS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    # Experts.
    "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "feed_forward.gate": "ffn_gate_inp",
    "block_sparse_moe.router": "ffn_gate_inp", "feed_forward.expert_bias": "exp_probs_b.bias",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp", "self_attn.sinks": "attn_sinks.weight",
    # Convolutions, and the gated delta rule.
    "model.embedding_norm": "token_embd_norm", "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm", "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
    "conv.conv": "shortconv.conv.weight", "conv.in_proj": "shortconv.in_proj.weight",
    "conv.out_proj": "shortconv.out_proj.weight", "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a", "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
    "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
}  # fmt: skip
# Layers with norms around their parts name them in several ways.
_AROUND = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_GLM = {
    "post_self_attn_layernorm": "post_attention_norm", "mlp.gate_up_proj": "ffn_up",
    "post_mlp_layernorm": "post_ffw_norm",
}  # fmt: skip
_INPUTS = {
    **_AROUND, "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm", "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale", "altup.correction_coefs": "altup_correct_coef",
    "altup.correct_output_scale": "altup_correct_scale",
    "altup.prediction_coefs": "altup_predict_coef", "altup.modality_router": "altup_router",
    "altup.router_norm": "altup_router_norm", "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r", "laurel.post_laurel_norm": "laurel_post_norm",
}  # fmt: skip
_EXPERTS = {
    **_INPUTS, "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_2": "post_ffw_norm_2", "router.proj": "ffn_gate_inp",
    "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps", "experts.down_proj": "ffn_down_exps",
}  # fmt: skip
_STACKED = {
    "model.altup_projections": "altup_proj.weight",
    "model.altup_unembed_projections": "altup_unembd_proj.weight",
}
# Of several names, a configuration has one.
_FIELDS = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps norm_eps",
    "final_logit_softcapping": "final_logit_softcapping",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling", "attention.scale": "attention_multiplier",
    "attention.sliding_window": "sliding_window", "altup.num_inputs": "altup_num_inputs",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "expert_count": "num_experts num_local_experts",
    "expert_used_count": "top_k_experts num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size shared_intermediate_size",
    "leading_dense_block_count": "num_dense_layers", "shortconv.l_cache": "conv_L_cache",
    "ssm.conv_kernel": "linear_conv_kernel_dim", "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads", "ssm.time_step_rank": "linear_num_value_heads",
}  # fmt: skip
# Scalings of rotations by their names in GGUF.
_SCALING = {
    "factor": "factor", "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow",
    "mscale_all_dim": "yarn_log_multiplier",
}  # fmt: skip


@dataclass(frozen=True)
class GgufFamily:
    """A family of models.

    Attributes:
        architecture: Its name in GGUF.
        config_class: The class of its configurations.
        settings: Those of a tiny configuration that differ from `_SHAPE`.
        parts: Names of tensors that differ from `_PARTS`.
        is_of_neighbors: The file rotates neighbors where transformers rotates halves.
        fields: Fields of the file that its configuration does not have.
        kind: The type of the experts' weights.
    """

    architecture: str
    config_class: str
    settings: dict = field(default_factory=dict)
    parts: dict = field(default_factory=dict)
    is_of_neighbors: bool = False
    fields: dict = field(default_factory=dict)
    kind: str = "F32"


def _mixed(num_layers, period):
    return {
        "num_hidden_layers": num_layers,
        "sliding_window": WINDOW,
        "layer_types": [
            "full_attention" if layer % period == 0 else "sliding_attention"
            for layer in range(1, num_layers + 1)
        ],
    }


_YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32,
    "beta_fast": 8.0, "beta_slow": 1.0,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
_MINISTRAL = _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
_LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.3, 1.2, 1.7, 2.0], "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0, 9.0],
    "original_max_position_embeddings": 256,
}  # fmt: skip
_TIED = {"tie_word_embeddings": True}
_GELU = {"hidden_activation": "gelu_pytorch_tanh", **_TIED}
_GRANITE = {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.0,
    "attention_multiplier": 0.2,
}  # fmt: skip
_SHARED = {
    **_GELU, **_mixed(6, 2), "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCAB_SIZE, "final_logit_softcapping": 8.0,
}  # fmt: skip
_GLOBAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
_GEMMA4 = {
    "global_head_dim": 32,
    "rope_parameters": {
        "full_attention": _GLOBAL,
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
_CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}

FAMILIES = {
    "llama": GgufFamily("llama", "LlamaConfig", {"rope_parameters": _LLAMA3}, is_of_neighbors=True),
    "llama, yarn": GgufFamily(
        "llama", "LlamaConfig", {"rope_parameters": _YARN}, is_of_neighbors=True
    ),
    "mistral3": GgufFamily(
        "mistral3", "Ministral3Config", {"rope_parameters": _MINISTRAL}, is_of_neighbors=True,
        fields={"attention.temperature_scale": 0.1},
    ),
    "smollm3": GgufFamily("smollm3", "SmolLM3Config", _TIED, is_of_neighbors=True),
    "granite": GgufFamily("granite", "GraniteConfig", _GRANITE, is_of_neighbors=True),
    "qwen2": GgufFamily("qwen2", "Qwen2Config", _TIED),
    "qwen3": GgufFamily("qwen3", "Qwen3Config"),
    "seed_oss": GgufFamily(
        "seed_oss", "SeedOssConfig", parts={"post_attention_layernorm": "post_attention_norm"}
    ),
    "phi3": GgufFamily(
        "phi3", "Phi3Config",
        {
            "rope_parameters": _LONG, "original_max_position_embeddings": 256,
            "max_position_embeddings": 1024,
        },
        {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    ),
    "phi3, long": GgufFamily(
        "phi3", "Phi3Config",
        {
            "rope_parameters": _LONG | {"original_max_position_embeddings": 32},
            "original_max_position_embeddings": 32, "max_position_embeddings": 256,
        },
        {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    ),
    "olmo2": GgufFamily("olmo2", "Olmo2Config", parts=_AROUND),
    "olmo3": GgufFamily(
        "olmo2", "Olmo3Config", {**_mixed(4, 4), "rope_parameters": _YARN}, _AROUND
    ),
    "glm4": GgufFamily("glm4", "Glm4Config", {"attention_bias": True}, _GLM),
    "exaone4": GgufFamily(
        "exaone4", "Exaone4Config", {"sliding_window_pattern": 4, **_mixed(64, 4)}, _AROUND
    ),
    "exaone4, no windows": GgufFamily(
        "exaone4", "Exaone4Config",
        {"sliding_window_pattern": 4, **_mixed(4, 1), "sliding_window": None}, _AROUND,
    ),
    "gemma": GgufFamily("gemma", "GemmaConfig", _GELU),
    "gemma2": GgufFamily(
        "gemma2", "Gemma2Config", {**_mixed(4, 2), **_CAPS, **_GELU, "query_pre_attn_scalar": 16},
        _AROUND,
    ),
    "gemma3": GgufFamily(
        "gemma3", "Gemma3TextConfig", {**_mixed(6, 6), **_GELU, "query_pre_attn_scalar": 16},
        _AROUND,
    ),
    "gemma3n": GgufFamily(
        "gemma3n", "Gemma3nTextConfig",
        {
            **_SHARED, "laurel_rank": 32,
            "activation_sparsity_pattern": [0.9, 0.7, 0.0, 0.0, 0.0, 0.0],
        },
        _INPUTS, fields={"altup.active_idx": 0},
    ),
    "gemma4": GgufFamily(
        "gemma4", "Gemma4TextConfig", {**_SHARED, **_GEMMA4, "use_double_wide_mlp": True}, _INPUTS,
    ),
    "gemma4, keys as values": GgufFamily(
        "gemma4", "Gemma4TextConfig",
        {
            **_GELU, **_mixed(6, 6), **_GEMMA4, "attention_k_eq_v": True,
            "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": VOCAB_SIZE, "final_logit_softcapping": 8.0,
        },
        _INPUTS,
    ),
    "gemma4, experts": GgufFamily(
        "gemma4", "Gemma4TextConfig",
        {
            **_GELU, **_mixed(6, 6), **_GEMMA4, "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": VOCAB_SIZE, "enable_moe_block": True, "num_experts": 6,
            "top_k_experts": 2, "moe_intermediate_size": 32, "final_logit_softcapping": 30.0,
        },
        _EXPERTS,
    ),
}  # fmt: skip
"""Families by name."""

_EIGHT = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
_BESIDE = {**_EIGHT, "shared_expert_intermediate_size": 64}
_LOCAL = {"num_local_experts": 6, "num_experts_per_tok": 2}
_DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "head_dim": 32,
}  # fmt: skip
_LFM2 = {
    "conv_L_cache": 3, "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
}  # fmt: skip
_OF_GPT_OSS = {
    "rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 64, "rope_theta": 150000.0,
}  # fmt: skip
_GPT_OSS = {**_LOCAL, "sliding_window": WINDOW, "rope_parameters": _OF_GPT_OSS}
_NORM = {"post_attention_layernorm": "post_attention_norm"}
_TIMES = {"rope.dimension_sections": [2, 1, 1, 0]}

MIXTURES = {
    "qwen3moe": GgufFamily("qwen3moe", "Qwen3MoeConfig", {**_EIGHT, "norm_topk_prob": True}),
    "qwen2moe": GgufFamily("qwen2moe", "Qwen2MoeConfig", _BESIDE),
    "llama, experts": GgufFamily("llama", "MixtralConfig", _LOCAL, is_of_neighbors=True),
    "granitemoe": GgufFamily(
        "granitemoe", "GraniteMoeSharedConfig",
        {**_LOCAL, **_GRANITE, "residual_multiplier": 0.7, "shared_intermediate_size": 32},
        is_of_neighbors=True,
    ),
    "olmoe": GgufFamily(
        "olmoe", "OlmoeConfig",
        {"num_key_value_heads": 4, "num_experts": 8, "num_experts_per_tok": 3},
    ),
    "gpt-oss": GgufFamily("gpt-oss", "GptOssConfig", _GPT_OSS, _NORM),
    "gpt-oss, MXFP4": GgufFamily("gpt-oss", "GptOssConfig", _GPT_OSS, _NORM, kind="MXFP4"),
    "lfm2": GgufFamily("lfm2", "Lfm2Config", _LFM2),
    "lfm2moe": GgufFamily(
        "lfm2moe", "Lfm2MoeConfig", {**_EIGHT, **_LFM2, "num_dense_layers": 1},
        fields={"expert_gating_func": 2},
    ),
    "qwen3next": GgufFamily("qwen3next", "Qwen3NextConfig", {**_BESIDE, **_DELTA}, _NORM),
    "qwen35": GgufFamily("qwen35", "Qwen3_5TextConfig", _DELTA, _NORM, fields=_TIMES),
    "qwen35moe": GgufFamily(
        "qwen35moe", "Qwen3_5MoeTextConfig", {**_BESIDE, **_DELTA}, _NORM, fields=_TIMES
    ),
}  # fmt: skip
"""Mixtures of experts and recurrent models by name."""
RECURRENT = ("lfm2", "lfm2moe", "qwen3next", "qwen35", "qwen35moe")
_CENTERED = ("gemma", "gemma2", "gemma3", "qwen3next", "qwen35", "qwen35moe")
"""Architectures to whose norms transformers adds 1."""


def tiny(name, **changes):
    """Return the random model of a family, whose factors, biases and states are random as well.

    `changes` are settings.
    """
    family = (FAMILIES | MIXTURES)[name]
    # Configurations change what they get.
    settings = deepcopy({**_SHAPE, **family.settings, **changes})
    options = {} if name in MIXTURES else {"attn_implementation": "eager"}
    model = build(family.config_class, settings, **options)
    has_factors = family.architecture in ("gemma3n", "gemma4")
    if has_factors:
        model.config.allow_global_per_layer_attribute_access = True
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        for full, weight in [*model.named_parameters(), *model.named_buffers()]:
            is_factor = full.endswith(("_scale", ".scale", "_scalar")) or "norm" in full
            if has_factors and weight.dim() == 1 and is_factor:
                weight.normal_(1.0, 0.1)
            elif name in MIXTURES and full.endswith(("bias", "sinks", "A_log")):
                weight.normal_(0.0, 0.5)
            elif _is_rounded(family, full):
                rounded = mxfp4(weight.swapaxes(-1, -2).numpy())[1]
                weight.copy_(torch.from_numpy(rounded).swapaxes(-1, -2))
    return model


def _is_rounded(family, name):
    return family.kind == "MXFP4" and name.endswith(("gate_up_proj", "down_proj"))


def write_family(path, name, model, more=(), missing=()):
    """Write a model in a file, as converters of llama.cpp lay it out.

    `more` are fields, and `missing` names of tensors that the file lacks.
    """
    family, config = (FAMILIES | MIXTURES)[name], model.config
    tensors, stacked = {}, {}
    for full, weights in model.state_dict().items():
        if (whole := _STACKED.get(full.rpartition(".weight")[0].rpartition(".")[0])) is not None:
            stacked.setdefault(whole, []).append(weights)
            continue
        for ours, converted in _converted(family, config, full, weights.float()):
            if ours == "output.weight" and config.tie_word_embeddings:
                continue
            array = np.ascontiguousarray(converted.numpy(), "<f4")
            kind = family.kind if _is_rounded(family, full) else "F32"
            contents = array.tobytes() if kind == "F32" else mxfp4(array)[0]
            tensors[ours] = kind, array.shape[::-1], contents
    more_tensors = {ours: np.stack(weights) for ours, weights in stacked.items()}
    for ours, numbers in _factors(config, family).items():
        more_tensors[f"{ours}.weight"] = np.array(numbers, np.float32)
    for ours, array in more_tensors.items():
        tensors[ours] = "F32", array.shape[::-1], array.tobytes()
    tensors = {ours: tensor for ours, tensor in tensors.items() if ours not in missing}
    return write_gguf(path, metadata(family, config) | tokenizer() | dict(more), tensors)


def _converted(family, config, full, weights):
    """Yield the tensors of a file that a tensor of transformers becomes, by their names."""
    part, dot, kind = full.rpartition(".")
    if kind not in ("weight", "bias"):
        part, dot, kind = full, ".", "weight"
    prefix = ""
    if part.startswith("model.layers."):
        _, _, layer, part = part.split(".", 3)
        prefix = f"blk.{layer}."
    if ".experts." in part or part.endswith("shared_mlp.input_linear"):
        yield from _experts(prefix, part, weights, family.architecture == "gpt-oss")
        return
    if part.endswith("in_proj_qkvz"):
        yield from _queries_keys_values(prefix, config, weights)
        return
    ours = {**_PARTS, **family.parts}[part]
    if part.startswith("linear_attn.") and family.architecture.startswith("qwen35"):
        weights = _in_turn(part, config, weights)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    if ours == "ssm_a":
        weights = -weights.exp()
    elif ours in ("ssm_conv1d", "shortconv.conv.weight", "ffn_gate_inp_shexp"):
        weights = weights.squeeze(1 if weights.dim() == 3 else 0)
    elif family.is_of_neighbors and ours in heads:
        halves = weights.reshape(heads[ours], 2, -1, *weights.shape[1:])
        weights = halves.swapaxes(1, 2).reshape(weights.shape)
    elif ours.endswith("norm") and ours != "ssm_norm" and family.architecture in _CENTERED:
        weights = weights + 1
    is_whole = ours == "ssm_a" or ours.endswith((".scale", ".weight", ".bias"))
    yield prefix + ours + ("" if is_whole else dot + kind), weights


def tokenizer():
    """Return the fields of a tokenizer with a merge: llama.cpp rejects a list of none."""
    fields = byte_tokenizer()
    fields["tokenizer.ggml.tokens"] = [*fields["tokenizer.ggml.tokens"], "ab"]
    fields["tokenizer.ggml.token_type"] = [*fields["tokenizer.ggml.token_type"], 1]
    return fields | {"tokenizer.ggml.merges": ["a b"]}


def metadata(family, config):
    """Return the fields of the file of a configuration."""
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    given = {
        ours: [getattr(config, name, None) for name in theirs.split()]
        for ours, theirs in _FIELDS.items()
    }
    fields = {ours: next(filter(None, values), values[0]) for ours, values in given.items()}
    fields |= {"attention.key_length": size, "attention.value_length": size, **family.fields}
    rope = config.rope_parameters
    local = rope.get("sliding_attention") if "rope_theta" not in rope else None
    rope = rope.get("full_attention", rope)
    fields["rope.freq_base"] = float(rope["rope_theta"])
    fields["rope.dimension_count"] = int(size * rope.get("partial_rotary_factor", 1.0))
    if rope["rope_type"] in ("yarn", "linear"):
        fields["rope.scaling.type"] = rope["rope_type"]
    if rope["rope_type"] in ("yarn", "linear", "longrope"):
        named = {ours: rope.get(theirs) for theirs, ours in _SCALING.items()}
        fields |= {f"rope.scaling.{ours}": value for ours, value in named.items()}
    if rope["rope_type"] == "longrope":
        scale = config.max_position_embeddings / rope["original_max_position_embeddings"]
        log = np.log(scale) / np.log(rope["original_max_position_embeddings"])
        fields["rope.scaling.attn_factor"] = float(np.sqrt(1 + log))
    if local is not None and family.architecture in ("gemma3", "gemma3n", "gemma4"):
        fields["rope.freq_base_swa"] = float(local["rope_theta"])
    if family.architecture == "gemma3n":
        normal = torch.distributions.Normal(0.0, 1.0)
        scales = normal.icdf(torch.tensor(config.activation_sparsity_pattern))
        fields["activation_sparsity_scale"] = scales.tolist()
    if family.architecture == "gemma4":
        fields |= _of_gemma4(config)
    if family.architecture == "gpt-oss":
        fields["expert_feed_forward_length"] = config.intermediate_size
    if family.architecture.startswith("lfm2"):
        number = config.num_key_value_heads
        fields["attention.head_count_kv"] = [number * (of != "conv") for of in config.layer_types]
        fields["vocab_size"] = config.vocab_size
    if hasattr(config, "linear_num_value_heads"):
        fields["ssm.inner_size"] = config.linear_num_value_heads * config.linear_value_head_dim
        fields["full_attention_interval"] = 4
    has_pattern = family.architecture in ("exaone4", "olmo2", "gemma3n", "gemma4")
    if has_pattern and fields["attention.sliding_window"]:
        kinds = config.layer_types
        fields["attention.sliding_window_pattern"] = [of == "sliding_attention" for of in kinds]
    named = {f"{family.architecture}.{ours}": of for ours, of in fields.items() if of is not None}
    return {"general.architecture": family.architecture, **named}


def _of_gemma4(config):
    layers = [config.per_layer_config[layer] for layer in range(config.num_hidden_layers)]
    size, shared = config.intermediate_size, config.num_kv_shared_layers
    last = size * 2 if config.use_double_wide_mlp else size
    whole = layers[-1].head_dim
    return {
        "attention.key_length": whole, "attention.value_length": whole,
        "attention.key_length_swa": config.head_dim, "attention.value_length_swa": config.head_dim,
        "rope.dimension_count": whole, "rope.dimension_count_swa": config.head_dim,
        "attention.head_count_kv": [layer.num_key_value_heads for layer in layers],
        "feed_forward_length": [size] * (len(layers) - shared) + [last] * shared,
    }  # fmt: skip


def _factors(config, family):
    """Return divisors of angles that are tensors of a file."""
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    if rope["rope_type"] == "longrope":
        return {f"rope_factors_{length}": rope[f"{length}_factor"] for length in ("short", "long")}
    if rope["rope_type"] == "proportional":
        half = config.per_layer_config[config.num_hidden_layers - 1].head_dim // 2
        num_rotated = int(half * rope["partial_rotary_factor"])
        return {"rope_freqs": [1.0] * num_rotated + [1e30] * (half - num_rotated)}
    if rope["rope_type"] != "llama3":
        return {}
    angles, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](
        config, torch.device("cpu")
    )
    size = config.head_dim
    return {"rope_freqs": rope["rope_theta"] ** -(np.arange(0, size, 2) / size) / angles.numpy()}


def _experts(of, part, weights, is_gpt_oss):
    suffix = ".bias" if part.endswith("_bias") else ".weight"
    group = "shexp" if "shared" in part else "exps"
    if is_gpt_oss and suffix == ".weight":
        weights = weights.swapaxes(-1, -2)
    if "down" in part:
        yield f"{of}ffn_down_{group}{suffix}", weights
        return
    dimension = weights.dim() - (2 if suffix == ".weight" else 1)
    size = weights.shape[dimension]
    if is_gpt_oss:
        halves = [torch.arange(first, size, 2) for first in (0, 1)]
    else:
        halves = torch.arange(size).chunk(2)
    for name, half in zip(("gate", "up"), halves, strict=True):
        yield f"{of}ffn_{name}_{group}{suffix}", weights.index_select(dimension, half)


def _queries_keys_values(of, config, weights):
    """Queries, keys and values of all heads, and gates, from those of each key head in turn."""
    heads = config.linear_num_key_heads
    shared = config.linear_num_value_heads // heads * config.linear_value_head_dim
    sizes = [config.linear_key_head_dim] * 2 + [shared] * 2
    parts = weights.view(heads, sum(sizes), -1).split(sizes, dim=1)
    *qkv, gate = (each.reshape(-1, weights.shape[-1]) for each in parts)
    yield f"{of}attn_qkv.weight", torch.cat(qkv)
    yield f"{of}attn_gate.weight", gate


def _in_turn(part, config, weights):
    """Orders heads so that neighbors have the keys of different key heads."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    name = part.rsplit(".", 1)[-1]
    dimension = 1 if name == "out_proj" else 0
    of_keys = 2 * keys * config.linear_key_head_dim if name in ("in_proj_qkv", "conv1d") else 0
    if name == "norm":
        return weights
    first, rest = weights.split([of_keys, weights.shape[dimension] - of_keys], dim=dimension)
    rest = rest.movedim(dimension, 0)
    ordered = rest.reshape(keys, values // keys, -1, *rest.shape[1:]).swapaxes(0, 1)
    return torch.cat([first, ordered.reshape(rest.shape).movedim(0, dimension)], dim=dimension)


def main(folder):
    """Write files that llama.cpp computes alike.

    It fixes the sizes of Gemma 3n, rounds the states for products with MXFP4, and begins and ends
    the ramp of gpt-oss's YaRN at whole pairs.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}}
    for name in {*FAMILIES, *MIXTURES} - {"gemma3n", "gpt-oss, MXFP4"}:
        model = tiny(name, **(plain if name == "gpt-oss" else {}))
        suffix = ", mixture" if name in MIXTURES else ""
        write_family(Path(folder) / f"{name}{suffix}.gguf", name, model)


if __name__ == "__main__":
    main(*sys.argv[1:])
