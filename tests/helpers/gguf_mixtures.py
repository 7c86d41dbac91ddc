"""GGUF files of small random mixtures of experts and recurrent models of transformers.

`python tests/helpers/gguf_mixtures.py FOLDER` writes a file of each, for llama.cpp.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from gguf_models import byte_tokenizer, mxfp4, write_gguf
from models import SHAPE, build

VOCAB_SIZE = 258
_BASE = {
    **SHAPE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "head_dim": 16, "vocab_size": VOCAB_SIZE,
}  # fmt: skip
_EXPERTS = {**_BASE, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
_SHARED = {**_EXPERTS, "shared_expert_intermediate_size": 64}
_LOCAL = {**_BASE, "num_local_experts": 6, "num_experts_per_tok": 2}
_DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "head_dim": 32,
}  # fmt: skip
_MULTIPLIERS = {
    "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.7,
    "logits_scaling": 2.0,
}  # fmt: skip
_CONVOLUTIONS = {"layer_types": ["conv", "full_attention", "conv", "full_attention"]}
_LFM2 = {"conv_L_cache": 3, "block_auto_adjust_ff_dim": False, **_CONVOLUTIONS}
_YARN = {
    "rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 64, "rope_theta": 150000.0,
}  # fmt: skip

_GPT_OSS = {**_LOCAL, "sliding_window": 8, "rope_parameters": _YARN}

FAMILIES = {
    "qwen3moe": ("Qwen3MoeConfig", {**_EXPERTS, "norm_topk_prob": True}),
    "qwen2moe": ("Qwen2MoeConfig", _SHARED),
    "llama": ("MixtralConfig", _LOCAL),
    "granitemoe": (
        "GraniteMoeSharedConfig",
        {**_LOCAL, **_MULTIPLIERS, "shared_intermediate_size": 32},
    ),
    "olmoe": (
        "OlmoeConfig",
        {**_BASE, "num_key_value_heads": 4, "num_experts": 8, "num_experts_per_tok": 3},
    ),
    "gpt-oss": ("GptOssConfig", _GPT_OSS),
    "gpt-oss, MXFP4": ("GptOssConfig", _GPT_OSS),
    "lfm2": ("Lfm2Config", {**_BASE, **_LFM2}),
    "lfm2moe": ("Lfm2MoeConfig", {**_EXPERTS, **_LFM2, "num_dense_layers": 1}),
    "qwen3next": ("Qwen3NextConfig", {**_SHARED, **_DELTA}),
    "qwen35": ("Qwen3_5TextConfig", {**_BASE, **_DELTA}),
    "qwen35moe": ("Qwen3_5MoeTextConfig", {**_SHARED, **_DELTA}),
}
"""By architectures of llama.cpp: the configuration of transformers and its settings.

After a comma, the type of the experts' weights: by default float32, as of all others.
"""
RECURRENT = ("lfm2", "lfm2moe", "qwen3next", "qwen35", "qwen35moe")

_PARTS = {
    "input_layernorm": "attn_norm", "operator_norm": "attn_norm", "ffn_norm": "ffn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.out_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm", "self_attn.sinks": "attn_sinks.weight",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "feed_forward.gate": "ffn_gate_inp",
    "block_sparse_moe.router": "ffn_gate_inp", "feed_forward.expert_bias": "exp_probs_b.bias",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp", "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj",
    "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.A_log": "ssm_a",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out", "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
}  # fmt: skip
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
          "model.embedding_norm": "token_embd_norm"}  # fmt: skip
_FIELDS = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "expert_used_count": "num_experts_per_tok", "shortconv.l_cache": "conv_L_cache",
    "expert_feed_forward_length": "moe_intermediate_size",
    "attention.sliding_window": "sliding_window", "leading_dense_block_count": "num_dense_layers",
    "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
    "ssm.conv_kernel": "linear_conv_kernel_dim", "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads", "ssm.time_step_rank": "linear_num_value_heads",
}  # fmt: skip
_ROTATED_BY_NEIGHBORS = ("llama", "granitemoe")
_HAS_POST_NORM = ("gpt-oss", "qwen3next", "qwen35", "qwen35moe")


def mixture(family, **changes):
    """The random model of transformers, whose biases and states are random as well.

    `changes` are settings.
    """
    config_class, settings = FAMILIES[family]
    model = build(config_class, settings | changes)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(("bias", "sinks", "A_log")):
                weight.normal_(0.0, 0.5)
            elif _is_rounded(family, name):
                rounded = mxfp4(weight.swapaxes(-1, -2).numpy())[1]
                weight.copy_(torch.from_numpy(rounded).swapaxes(-1, -2))
    return model


def _is_rounded(family, name):
    return family.endswith("MXFP4") and name.endswith(("gate_up_proj", "down_proj"))


def write_mixture(path, family, model, **more):
    """Write a model as llama.cpp's converter lays it out, with a tokenizer of bytes.

    `more` are fields.
    """
    config, architecture = model.config, family.partition(",")[0]
    tensors = {}
    for name, weights in model.state_dict().items():
        weights = weights.float()
        for part, converted in _converted(architecture, config, name, weights):
            array = np.ascontiguousarray(converted.numpy(), dtype="<f4")
            if _is_rounded(family, name):
                tensors[part] = ("MXFP4", array.shape[::-1], mxfp4(array)[0])
            else:
                tensors[part] = ("F32", array.shape[::-1], array.tobytes())
    return write_gguf(path, _fields(architecture, config) | byte_tokenizer() | more, tensors)


def _fields(architecture, config):
    found = {name: getattr(config, ours, None) for name, ours in _FIELDS.items()}
    fields = {name: value for name, value in found.items() if value is not None}
    head_size = (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    fields |= {"attention.key_length": head_size, "attention.value_length": head_size}
    epsilon = getattr(config, "rms_norm_eps", None) or config.norm_eps
    fields["attention.layer_norm_rms_epsilon"] = epsilon
    rotation = config.rope_parameters
    fields["rope.freq_base"] = float(rotation["rope_theta"])
    fields["rope.dimension_count"] = int(head_size * rotation.get("partial_rotary_factor", 1.0))
    if rotation["rope_type"] == "yarn":
        fields |= {
            "rope.scaling.type": "yarn", "rope.scaling.factor": rotation["factor"],
            "rope.scaling.original_context_length": rotation["original_max_position_embeddings"],
        }  # fmt: skip
    num_experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if num_experts:
        fields["expert_count"] = num_experts
    for ours in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        if getattr(config, ours, 0):
            fields["expert_shared_feed_forward_length"] = getattr(config, ours)
    if architecture == "gpt-oss":
        fields["expert_feed_forward_length"] = config.intermediate_size
    if architecture == "lfm2moe":
        fields["expert_gating_func"] = 2
    if architecture.startswith("lfm2"):
        number = config.num_key_value_heads
        fields["attention.head_count_kv"] = [number * (of != "conv") for of in config.layer_types]
        fields["vocab_size"] = config.vocab_size
    if architecture.startswith("qwen35"):
        fields["rope.dimension_sections"] = [2, 1, 1, 0]
    if hasattr(config, "linear_num_value_heads"):
        fields["ssm.inner_size"] = config.linear_num_value_heads * config.linear_value_head_dim
        fields["full_attention_interval"] = 4
    named = {f"{architecture}.{name}": value for name, value in fields.items()}
    return {"general.architecture": architecture, **named}


def _converted(architecture, config, name, weights):
    part = name.removesuffix(".weight").removesuffix(".bias")
    suffix = name[len(part) :]
    if part in _WHOLE:
        yield f"{_WHOLE[part]}.weight", weights + _is_centered(architecture, part)
        return
    _, _, layer, part = part.split(".", 3)
    of = f"blk.{layer}."
    if ".experts." in part or part.endswith("shared_mlp.input_linear"):
        yield from _experts(of, part, weights, architecture == "gpt-oss")
    elif part.endswith("in_proj_qkvz"):
        yield from _queries_keys_values(of, config, weights)
    else:
        ours = _PARTS.get(part) or _PARTS[part + suffix]
        if ours == "ffn_norm" and architecture in _HAS_POST_NORM:
            ours = "post_attention_norm"
        if "linear_attn" in part and architecture.startswith("qwen35"):
            weights = _in_turn(part, config, weights)
        if part.endswith("A_log"):
            weights = -weights.exp()
        elif ours in ("ssm_conv1d", "shortconv.conv", "ffn_gate_inp_shexp"):
            weights = weights.squeeze(1 if weights.dim() == 3 else 0)
        elif ours in ("attn_q", "attn_k") and architecture in _ROTATED_BY_NEIGHBORS:
            heads = config.num_attention_heads if ours == "attn_q" else config.num_key_value_heads
            weights = (
                weights.view(heads, 2, -1, weights.shape[-1]).swapaxes(1, 2).reshape(weights.shape)
            )
        whole = ("." in ours and not ours.startswith("shortconv")) or ours == "ssm_a"
        yield of + ours + ("" if whole else suffix), weights + _is_centered(architecture, part)


def _is_centered(architecture, part):
    """1 for the norms that transformers adds 1 to."""
    is_norm = part.endswith("norm") and not part.endswith("linear_attn.norm")
    return float(is_norm and architecture in ("qwen3next", "qwen35", "qwen35moe"))


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

    They have a merge and no YaRN, whose ramp it begins and ends at whole pairs. For products with
    MXFP4, it rounds the states.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}}
    for name in FAMILIES.keys() - {"gpt-oss, MXFP4"}:
        model = mixture(name, **(plain if name == "gpt-oss" else {}))
        path = Path(folder) / f"{name}, mixture.gguf"
        write_mixture(path, name, model, **{"tokenizer.ggml.merges": ["a b"]})


if __name__ == "__main__":
    main(*sys.argv[1:])
