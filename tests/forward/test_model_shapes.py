"""The table of shapes of real models: its fields, weights, and types of tensors."""

from collections import Counter
from itertools import product

import pytest

from model_shapes import MIXES, SHAPES, layer_kinds, num_weights, tensor_type, tensors

NUMBERS = ("layers", "hidden", "heads", "kv_heads", "head_size", "vocab", "context")
FIELDS = {
    "architecture", "parameters", "layers", "hidden", "feed_forward", "heads", "kv_heads",
    "head_size", "vocab", "context", "tied", "norm_epsilon", "rope_base",
}  # fmt: skip
OTHER_FIELDS = {
    "attention_softcap", "conv_kernel", "delta_net", "experts", "logit_softcap", "mamba", "no_rope",
    "order", "query_scale", "query_scale_beta", "rope_base_local", "rope_dimensions",
    "rope_scaling", "scales", "unverified", "window", "without_rope",
}  # fmt: skip
KINDS = {"full_attention", "sliding_attention", "conv", "linear_attention", "mamba"}


@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_has_the_fields_of_a_model(name):
    shape = SHAPES[name]
    assert set(shape) >= FIELDS
    assert set(shape) <= FIELDS | OTHER_FIELDS
    assert all(isinstance(shape[field], int) and shape[field] > 0 for field in NUMBERS)
    assert shape["heads"] % shape["kv_heads"] == 0
    assert set(layer_kinds(shape)) <= KINDS
    assert ("sliding_attention" in layer_kinds(shape)) == ("window" in shape)
    assert (shape["feed_forward"] == 0) == (
        "experts" in shape and not shape["experts"].get("leading_dense")
    )
    assert set(shape.get("unverified", ())) <= FIELDS | OTHER_FIELDS


@pytest.mark.parametrize("name", SHAPES)
def test_weights_of_each_shape_sum_up_to_the_parameters_of_the_model(name):
    shape = SHAPES[name]
    if shape["parameters"] is None:
        pytest.skip("the number of its text model was not found")
    tolerance = 0.01 if "parameters" in shape.get("unverified", ()) else 1e-6
    assert num_weights(shape) == pytest.approx(shape["parameters"], rel=tolerance)
    assert num_weights(shape | {"hidden": shape["hidden"] + 256}) != pytest.approx(
        shape["parameters"], rel=tolerance
    )


def test_shapes_are_those_of_forty_models():
    assert len(SHAPES) >= 40
    assert len({shape["architecture"] for shape in SHAPES.values()}) >= 16


def types(name, mix, part=""):
    shape = SHAPES[name]
    return Counter(
        tensor_type(shape, mix, tensor, dimensions)
        for tensor, dimensions in tensors(shape)
        if part in tensor and len(dimensions) > 1
    )


@pytest.mark.parametrize(
    ("name", "mix", "part", "expected"),
    [
        # Of 32 layers, the first and last four and each third between them have more bits.
        ("Llama-3.1-8B", "Q4_K_M", "ffn_down", {"Q6_K": 16, "Q4_K": 16}),
        ("Llama-3.1-8B", "Q4_K_M", "attn_v", {"Q6_K": 16, "Q4_K": 16}),
        ("Llama-3.1-8B", "Q5_K_M", "attn_v", {"Q6_K": 16, "Q5_K": 16}),
        ("Llama-3.1-8B", "Q4_K_M", "token_embd", {"Q4_K": 1}),
        ("Llama-3.1-8B", "Q4_K_M", "output.weight", {"Q6_K": 1, "Q4_K": 32}),
        ("Llama-3.2-1B", "Q4_K_M", "token_embd", {"Q6_K": 1}),
        ("Llama-3.3-70B", "Q4_K_M", "attn_v", {"Q6_K": 40, "Q5_K": 40}),
        ("Llama-3.1-8B", "IQ4_XS", "attn_v", {"Q5_K": 32}),
        ("Llama-2-7B", "IQ4_XS", "attn_v", {"IQ4_XS": 32}),
        ("Llama-2-7B", "IQ4_XS", "ffn_down", {"Q5_K": 4, "IQ4_XS": 28}),
        ("Mixtral-8x7B", "Q4_K_M", "attn_k", {"Q8_0": 32}),
        ("Mixtral-8x7B", "Q4_K_M", "attn_output", {"Q5_K": 32}),
        # Rows of 896 weights are not whole blocks of 256.
        ("Qwen2.5-0.5B", "Q4_K_M", "ffn_up", {"Q5_0": 24}),
        ("Qwen2.5-0.5B", "Q6_K", "", {"Q8_0": 145, "Q6_K": 24}),
        ("Qwen2.5-0.5B", "IQ4_XS", "ffn_gate", {"IQ4_NL": 24}),
        ("gpt-oss-20b", "MXFP4", "_exps.weight", {"MXFP4": 72}),
        ("gpt-oss-20b", "MXFP4", "attn", {"Q8_0": 96}),
    ],
)
def test_types_of_tensors_are_those_of_the_quantization_tool(name, mix, part, expected):
    assert types(name, mix, part) == expected


@pytest.mark.parametrize("name", SHAPES)
def test_rows_are_whole_blocks_in_every_mix(name):
    shape = SHAPES[name]
    for mix, (tensor, dimensions) in product(MIXES, tensors(shape)):
        kind = tensor_type(shape, mix, tensor, dimensions)
        block = {"F32": 1, "F16": 1}.get(kind, 256 if kind.endswith(("_K", "_XS")) else 32)
        assert dimensions[0] % block == 0
