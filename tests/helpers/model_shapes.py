"""Shapes of real models (tests/data/model_shapes.json), and the tensors and types of their files.

A record has the sizes of one model; `order` is one period of the kinds of its layers. A field in
`unverified` could not be looked up in a published configuration: it agrees with the number of
parameters, or is a default of the family.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Shape = dict[str, Any]
SHAPES: dict[str, Shape] = json.loads(
    (Path(__file__).parents[1] / "data" / "model_shapes.json").read_text()
)
MIXES = {
    "Q4_K_M": "Q4_K", "Q5_K_M": "Q5_K", "Q6_K": "Q6_K", "Q8_0": "Q8_0", "IQ4_XS": "IQ4_XS",
    "MXFP4": "Q8_0",
}  # fmt: skip
"""Names of mixes as in the names of files, and the type of most of their tensors."""
_WIDE_BLOCKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
"""Types with blocks of 256 weights, and those that replace them in rows of another length."""


def layer_kinds(shape: Shape) -> list[str]:
    """Return the kind of each layer, in the words of transformers."""
    order = shape.get("order", ["full_attention"])
    return [order[layer % len(order)] for layer in range(shape["layers"])]


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the dimensions (columns first) of each tensor of a model's file."""
    hidden, vocab, architecture = shape["hidden"], shape["vocab"], shape["architecture"]
    yield "token_embd.weight", (hidden, vocab)
    yield last_norm(shape), (hidden,)
    if not shape["tied"]:
        yield "output.weight", (hidden, vocab)
    mixers = {"conv": _convolution, "linear_attention": _delta_net, "mamba": _mamba}
    for layer, kind in enumerate(layer_kinds(shape)):
        for name, dimensions in (
            *_norms(architecture, hidden),
            *mixers.get(kind, _attention)(shape),
            *_feed_forward(shape, layer),
        ):
            yield f"blk.{layer}.{name}", dimensions


def last_norm(shape: Shape) -> str:
    """Return the name of the norm before the head."""
    is_of_embeddings = shape["architecture"].startswith("lfm2")
    return "token_embd_norm.weight" if is_of_embeddings else "output_norm.weight"


def num_weights(shape: Shape) -> int:
    """Return the number of weights of a model, with a tied head counted once."""
    total = 0
    for _, dimensions in tensors(shape):
        product = 1
        for dimension in dimensions:
            product *= dimension
        total += product
    return total


def _norms(architecture: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    if architecture not in ("olmo2", "exaone4"):
        yield "attn_norm.weight", (hidden,)
        is_linear = architecture in ("qwen3next", "qwen35", "qwen35moe", "gpt-oss")
        yield "post_attention_norm.weight" if is_linear else "ffn_norm.weight", (hidden,)
    if architecture in ("gemma2", "gemma3", "glm4", "olmo2", "exaone4"):
        yield "post_attention_norm.weight", (hidden,)
        yield "post_ffw_norm.weight", (hidden,)


def _attention(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, size, architecture = shape["hidden"], shape["head_size"], shape["architecture"]
    queries, keys = shape["heads"] * size, shape["kv_heads"] * size
    is_gated = architecture in ("qwen3next", "qwen35", "qwen35moe")
    parts = {"q": 2 * queries if is_gated else queries, "k": keys, "v": keys}
    if architecture == "phi3":
        parts = {"qkv": queries + 2 * keys}
    for part, rows in parts.items():
        yield f"attn_{part}.weight", (hidden, rows)
        if architecture in ("qwen2", "glm4", "gpt-oss"):
            yield f"attn_{part}.bias", (rows,)
    if architecture in ("qwen3", "qwen3moe", "gemma3", "exaone4", "lfm2", "lfm2moe") or is_gated:
        yield "attn_q_norm.weight", (size,)
        yield "attn_k_norm.weight", (size,)
    if architecture == "olmo2":
        yield "attn_q_norm.weight", (queries,)
        yield "attn_k_norm.weight", (keys,)
    yield "attn_output.weight", (queries, hidden)
    if architecture == "gpt-oss":
        yield "attn_output.bias", (hidden,)
        yield "attn_sinks.weight", (shape["heads"],)


def _convolution(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = shape["hidden"]
    yield "shortconv.in_proj.weight", (hidden, 3 * hidden)
    yield "shortconv.conv.weight", (shape["conv_kernel"], hidden)
    yield "shortconv.out_proj.weight", (hidden, hidden)


def _delta_net(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, sizes = shape["hidden"], shape["delta_net"]
    keys, values = (
        sizes["key_heads"] * sizes["key_size"],
        sizes["value_heads"] * sizes["value_size"],
    )
    yield "attn_qkv.weight", (hidden, 2 * keys + values)
    yield "attn_gate.weight", (hidden, values)
    if shape["architecture"] == "qwen3next":
        yield "ssm_ba.weight", (hidden, 2 * sizes["value_heads"])
    else:
        yield "ssm_beta.weight", (hidden, sizes["value_heads"])
        yield "ssm_alpha.weight", (hidden, sizes["value_heads"])
    yield "ssm_conv1d.weight", (sizes["conv_kernel"], 2 * keys + values)
    yield "ssm_dt.bias", (sizes["value_heads"],)
    yield "ssm_a", (sizes["value_heads"],)
    yield "ssm_norm.weight", (sizes["value_size"],)
    yield "ssm_out.weight", (values, hidden)


def _mamba(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, sizes = shape["hidden"], shape["mamba"]
    inner, states = sizes["heads"] * sizes["head_size"], 2 * sizes["groups"] * sizes["state"]
    yield "ssm_in.weight", (hidden, 2 * inner + states + sizes["heads"])
    yield "ssm_conv1d.weight", (sizes["conv_kernel"], inner + states)
    yield "ssm_conv1d.bias", (inner + states,)
    yield "ssm_dt.bias", (sizes["heads"],)
    yield "ssm_a", (1, sizes["heads"])
    yield "ssm_d", (1, sizes["heads"])
    yield "ssm_norm.weight", (inner // sizes["groups"], sizes["groups"])
    yield "ssm_out.weight", (inner, hidden)


def _feed_forward(shape: Shape, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, architecture = shape["hidden"], shape["architecture"]
    experts = shape.get("experts")
    if not experts or layer < experts.get("leading_dense", 0):
        wide = shape["feed_forward"]
        if architecture in ("phi3", "glm4"):
            yield "ffn_up.weight", (hidden, 2 * wide)
        else:
            yield "ffn_gate.weight", (hidden, wide)
            yield "ffn_up.weight", (hidden, wide)
        yield "ffn_down.weight", (wide, hidden)
        return
    number, wide = experts["number"], experts["feed_forward"]
    yield "ffn_gate_inp.weight", (hidden, number)
    for name, dimensions in (
        ("gate", (hidden, wide)),
        ("up", (hidden, wide)),
        ("down", (wide, hidden)),
    ):
        yield f"ffn_{name}_exps.weight", (*dimensions, number)
        if architecture == "gpt-oss":
            yield f"ffn_{name}_exps.bias", (dimensions[1], number)
        if wide_shared := experts.get("shared_feed_forward"):
            shared = (wide_shared, hidden) if name == "down" else (hidden, wide_shared)
            yield f"ffn_{name}_shexp.weight", shared
    if architecture == "gpt-oss":
        yield "ffn_gate_inp.bias", (number,)
    if architecture == "lfm2moe":
        yield "exp_probs_b.bias", (number,)
    if "shared_feed_forward" in experts and architecture.startswith("qwen"):
        yield "ffn_gate_inp_shexp.weight", (hidden,)


def tensor_type(
    shape: Shape, mix: str, name: str, dimensions: tuple[int, ...], num_layers: int | None = None
) -> str:
    """Return the type of a tensor in a mix, by the rules of llama.cpp's `llama-quantize`.

    A file of fewer layers than the model has the types of its first `num_layers`.
    """
    is_small = len(dimensions) < 2 or not name.endswith(".weight")
    if is_small or any(part in name for part in ("_norm", "ffn_gate_inp", "conv1d", "conv.")):
        return "F32"
    of_output = name == "output.weight" or (shape["tied"] and name == "token_embd.weight")
    chosen = _chosen_type(shape, mix, name, dimensions, num_layers or shape["layers"], of_output)
    if dimensions[0] % 256 and chosen in _WIDE_BLOCKS:
        chosen = "Q8_0" if of_output else _WIDE_BLOCKS[chosen]
    return "F16" if dimensions[0] % 32 else chosen


def _chosen_type(
    shape: Shape, mix: str, name: str, dimensions: tuple[int, ...], layers: int, of_output: bool
) -> str:
    usual = MIXES[mix]
    if mix == "MXFP4":
        return "MXFP4" if len(dimensions) > 2 else "Q8_0"
    if of_output:
        return "Q8_0" if mix == "Q8_0" else "Q6_K"
    if name == "token_embd.weight":
        return usual
    number, part = name.removeprefix("blk.").split(".")[:2]
    layer = int(number)
    has_eight_experts = shape.get("experts", {}).get("number") == 8
    if part in ("attn_v", "attn_qkv"):
        group = shape["heads"] // shape["kv_heads"]
        # Layers without such a tensor do not count.
        kinds = layer_kinds(shape)[:layers]
        counted = [index for index, kind in enumerate(kinds) if kind not in ("conv", "mamba")]
        if has_eight_experts:
            return "Q8_0"
        if mix == "IQ4_XS" and group >= 4:
            return "Q5_K"
        if mix in ("Q4_K_M", "Q5_K_M") and _more_bits(counted.index(layer), len(counted)):
            return "Q6_K"
        return "Q5_K" if shape["layers"] == 80 and usual == "Q4_K" else usual
    if part == "attn_k" and has_eight_experts:
        return "Q8_0"
    if part == "attn_output" and has_eight_experts and mix in ("Q4_K_M", "IQ4_XS"):
        return "Q5_K"
    if part.startswith("ffn_down"):
        if mix in ("Q4_K_M", "Q5_K_M") and _more_bits(layer, layers):
            return "Q6_K"
        if mix == "IQ4_XS" and layer < layers // 8:
            return "Q5_K"
    return usual


def _more_bits(layer: int, layers: int) -> bool:
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
