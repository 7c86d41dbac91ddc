"""Every family of causal language models in transformers, in tiny sizes: served or rejected.

A family has one configuration with the same small sizes wherever it has such a field; the order of
its layers is that of a released model, where the table of shapes has one. Families that
`check_model` accepts get requests of `fuzz_generate`, whose results must be the same.
"""

import os
import random
import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from inspect import signature
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from fuzz_generate import drawn, outcome
from model_shapes import SHAPES, layer_kinds
from models import SHAPE, VOCAB_SIZE, build
from specds.transformers.verify.support import check_model, recurrent_runner

NUM_REQUESTS = int(os.environ.get("REQUESTS", "5"))
_DRAFTERS = ("mixed", "oracle", "forked")
_MOST_PARAMETERS = 12_000_000
_SIZES = {
    32: "n_embd d_model word_embed_proj_dim emb_dim",
    2: "n_layer num_layers decoder_layers n_layers num_kv_heads num_experts_per_tok moe_k moe_topk"
    " expansion_ratio full_attention_interval depth linear_num_key_heads",
    4: "n_head decoder_attention_heads num_heads n_heads num_experts num_local_experts rotary_dim"
    " n_routed_experts moe_num_experts laurel_rank conv_kernel mamba_n_heads"
    " linear_num_value_heads",
    48: "n_inner ffn_dim decoder_ffn_dim intermediate_size_mlp ffn_hidden_size dim_ff",
    256: "n_positions n_ctx max_seq_len",
    # With few index heads, scores of zero are alike, and the self-check rejects the ties.
    16: "index_n_heads moe_intermediate_size shared_expert_intermediate_size q_lora_rank"
    " kv_lora_rank mamba_d_head expert_ffn_hidden_size",
    8: "qk_rope_head_dim qk_nope_head_dim v_head_dim hidden_size_per_layer_input state_size"
    " mamba_d_state sliding_window attention_chunk_size linear_key_head_dim linear_value_head_dim"
    " index_head_dim index_topk",
    1: "n_shared_experts first_k_dense_replace n_group topk_group moe_layer_start_index"
    " moe_num_shared_experts mamba_n_groups num_dense_layers pad_token_id",
    VOCAB_SIZE: "unpadded_vocab_size vocab_size_per_layer_input shape_vocab_size"
    " pronunciation_vocab_size",
    14: "patch_size",
    28: "image_size",
    0: "num_kv_shared_layers",
}
_GENERIC = SHAPE | {name: size for size, names in _SIZES.items() for name in names.split()}
_GENERIC |= {"is_decoder": True, "attn_temperature_tuning": False}
_SHAPES = {
    "exaone4": "EXAONE-4.0-32B", "gemma2": "Gemma-2-2B", "gemma3_text": "Gemma-3-1B",
    "gpt_oss": "gpt-oss-20b", "granitemoehybrid": "Granite-4.0-H-tiny", "lfm2": "LFM2-350M",
    "lfm2_moe": "LFM2-8B-A1B", "mistral": "Mistral-7B-v0.1", "mixtral": "Mixtral-8x7B",
    "phi3": "Phi-3-mini", "qwen3_5_moe_text": "Qwen3.5-35B-A3B", "qwen3_5_text": "Qwen3.5-4B",
    "qwen3_moe": "Qwen3-30B-A3B", "qwen3_next": "Qwen3-Next-80B-A3B", "smollm3": "SmolLM3-3B",
}  # fmt: skip
"""Released models of the table of shapes, by the family."""
_KINDS = {"mamba": "linear_attention"}
_INDEX = ("index_topk", "index_n_heads", "index_head_dim")
_INDEXED = ("deepseek_v32", "glm_moe_dsa")
"""Families whose sparse attention selects as many keys as that of the released models."""
# Layers of each kind that real models have, where the table has none of them.
_OWN: dict[str, dict[str, Any]] = {
    "bamba": {"num_hidden_layers": 4, "attn_layer_indices": [1, 3]},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gpt_neo": {"attention_types": [[["global"], 2]]},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "minimax": {
        "num_hidden_layers": 8,
        "layer_types": ["linear_attention"] * 7 + ["full_attention"],
    },
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "lsh"]},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "zamba": {"num_hidden_layers": 3},
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
# What `generate` of transformers itself fails at, or writes otherwise, with some families.
_UNDRAWN = {
    "deepseek_v4": "padding",
    "mamba2": "prefill_chunk_size return_dict_in_generate",
    "minimax": "prefill_chunk_size",
}


def families() -> list[str]:
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _fields(config_class: Any) -> set[str]:
    known = getattr(config_class, "__dataclass_fields__", {})
    return {*signature(config_class.__init__).parameters, *known}


def _settings(config_class: Any) -> dict[str, Any]:
    """Return the small sizes for the fields of a configuration, those of its parts included."""
    fields = _fields(config_class)
    found = {name: value for name, value in _GENERIC.items() if name in fields}
    found |= {name: 0.0 for name in fields if re.search(r"(?<!use_)drop(out)?$|_pdrop$", name)}
    if "kv_lora_rank" in found:
        found["num_key_value_heads"] = found["num_attention_heads"]
    usual = config_class()
    if "layer_types" in fields and usual.layer_types:
        found["layer_types"] = ([*dict.fromkeys(usual.layer_types)] * 2)[:2]
    for name in getattr(config_class, "sub_configs", {}):
        if (part := getattr(usual, name, None)) is not None:
            found[name] = _settings(type(part)) | {"model_type": part.model_type}
    return found


def _released(name: str) -> dict[str, Any]:
    """Return the layers of a released model, cut behind the last new kind.

    Experts stay few: random routers of hundreds have ties that a rounding decides.
    """
    if name in _INDEXED:
        usual = CONFIG_MAPPING[name]()
        sizes = {field: getattr(usual, field) for field in _INDEX}
        return sizes | {"max_position_embeddings": 2 * usual.index_topk}
    if name not in _SHAPES:
        return {}
    shape = SHAPES[_SHAPES[name]]
    kinds = [_KINDS.get(kind, kind) for kind in layer_kinds(shape)]
    experts = shape.get("experts", {})
    least = max(max(map(kinds.index, kinds)), experts.get("leading_dense", 0)) + 1
    num_layers = max(least, shape.get("without_rope", 2))
    found = {"num_hidden_layers": num_layers, "layer_types": kinds[:num_layers]}
    if experts:
        found["num_dense_layers"] = experts.get("leading_dense", 0)
    if "without_rope" in shape:
        found["no_rope_layer_interval"] = shape["without_rope"]
    return {
        field: value for field, value in found.items() if field in _fields(CONFIG_MAPPING[name])
    }


def _accepted(name: str) -> dict[str, Any]:
    """Return the settings of a family, without fields that its configuration rejects."""
    settings = _settings(CONFIG_MAPPING[name]) | _released(name) | _OWN.get(name, {})
    while True:
        try:
            CONFIG_MAPPING[name](**settings)
        except Exception as error:
            parts = [settings, *(part for part in settings.values() if isinstance(part, dict))]
            refused = [(of, f) for of in parts for f in of if f"'{f}'" in str(error)]
            if not refused:
                raise
            for of, field in refused:
                del of[field]
        else:
            return settings


@cache
def maker(name: str) -> Callable[[torch.dtype], Any]:
    """Return a function that makes a family's model, with SDPA if supported.

    Raises:
        Exception: The small sizes do not give a model.
    """
    settings = _accepted(name)
    for attention in ("sdpa", "eager"):
        try:
            with torch.device("meta"):
                config = CONFIG_MAPPING[name](**settings)
                model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        except ValueError as error:
            if attention == "eager" or "scaled_dot" not in str(error):
                raise
        else:
            break
    if (size := sum(each.numel() for each in model.parameters())) > _MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters")
    config_class = CONFIG_MAPPING[name].__name__
    return cache(partial(build, config_class, settings, attn_implementation=attention))


def verdict(name: str) -> tuple[str, str, int, list[str]]:
    """Return the verdict on a family, its name, its accepted tokens, and the differences.

    The name of a family whose logits differ has the error with it, in parts of their spread.
    """
    try:
        make = maker(name)
        model = make(torch.float32)
    except Exception:
        return "not built by the common small sizes", name, 0, []
    recurrent = recurrent_runner(model)
    tried = tuple(sorted({recurrent.name, "chain"})) if recurrent else ("packed", "model")
    found = {way: check_model(model, verification=way) for way in tried}
    ways = [way for way in found if found[way].ok]
    if not ways:
        support = found[tried[-1]]
        shown = name if support.max_error is None else f"{name} ({support.max_error:.2g})"
        return f"rejected: {_short(support.reasons[0])}", shown, 0, []
    accepted, different = 0, []
    for way in ways:
        for number in range(NUM_REQUESTS):
            rng = random.Random(f"{name} {number}")
            request = drawn(rng) | {"make": make, "verification": way, "stream_interval": None}
            if name in _INDEXED:
                request |= {"lengths": [model.config.index_topk + 9], "padding": 0}
            undrawn = _UNDRAWN.get(name, "")
            if undrawn == "padding":
                request |= {"padding": 0, "lengths": request["lengths"][:1]}
            is_padded = request["padding"] or len({*request["lengths"]}) > 1
            if "chain" in ways and is_padded and request["settings"].get("prefill_chunk_size") == 1:
                request["settings"]["prefill_chunk_size"] = 2  # with 1 it would be rejected
            for setting in undrawn.split():
                request["settings"].pop(setting, None)
            # Mostly right drafts, so that each request accepts tokens.
            right = {"max_nodes": rng.choice([5, 16, 63]), "drafter": rng.choice(_DRAFTERS)}
            kind, wrong, taken = outcome(request | right)
            accepted += taken
            if kind not in ("equal", "tie"):
                different.append(f"{name} by {way}, request {number}: {kind} {wrong}")
    return f"served by {' and '.join(f'`{way}`' for way in ways)}", name, accepted, different


def _short(reason: str) -> str:
    """Return a reason without the details of one family."""
    reason = re.sub("layers of type .* are no", "layers that are no", reason)
    reason = re.sub("logits over a .* differ.*", "the self-check finds other logits", reason)
    return re.sub("(a forward pass over a .*) failed.*", r"\1 fails", reason, flags=re.DOTALL)


def figures() -> list[str]:
    """Return the lines of the section: verdicts on families, most frequent first."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    found = defaultdict(list)
    for name in families():
        said, shown, accepted, different = verdict(name)
        print(f"{shown}: {said}", *different, sep="\n  ", flush=True)
        found[said].append((shown, accepted, len(different)))
    rows = ["| | families | requests | accepted tokens | different | |"]
    rows.append("| --- | ---: | ---: | ---: | ---: | --- |")
    for said, of in sorted(found.items(), key=lambda item: (item[0][:3] != "ser", -len(item[1]))):
        names, accepted, different = zip(*of, strict=True)
        num_ways = said.count("`") // 2 if said.startswith("served") else 0
        requests = len(of) * NUM_REQUESTS * num_ways
        numbers = f"{requests:,} | {sum(accepted):,} | {sum(different)}" if requests else " | | "
        rows.append(f"| {said} | {len(of)} | {numbers} | {', '.join(names)} |")
    return rows
