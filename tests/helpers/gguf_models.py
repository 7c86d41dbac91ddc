"""GGUF files of small random models."""

import numpy as np
import pytest

from specds._core import ForwardModel, GgufFile
from specds.models import gguf_writer

BLOCKS = {  # number of the type, weights and bytes of a block, places of its halves
    "F32": (0, 1, 4, ()),
    "F16": (1, 1, 2, ()),
    "BF16": (30, 1, 2, ()),
    "Q4_0": (2, 32, 18, (0,)),
    "Q4_1": (3, 32, 20, (0, 2)),
    "Q5_0": (6, 32, 22, (0,)),
    "Q5_1": (7, 32, 24, (0, 2)),
    "Q8_0": (8, 32, 34, (0,)),
    "Q4_K": (12, 256, 144, (0, 2)),
    "Q5_K": (13, 256, 176, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
    "Q2_K": (10, 256, 84, (80, 82)),
    "Q3_K": (11, 256, 110, (108,)),
    "IQ4_NL": (20, 32, 18, (0,)),
    "IQ4_XS": (23, 256, 136, (0,)),
    "MXFP4": (39, 32, 17, ()),
}
SPREAD = {"Q8_0": 50, "Q4_K": 400, "Q5_K": 800, "Q6_K": 2000, "Q5_0": 12, "Q5_1": 12}
SPREAD |= {"Q2_K": 30, "Q3_K": 80, "IQ4_NL": 80, "IQ4_XS": 1600}
# Times the scale of what is subtracted, so that the mean of weights is about zero.
_MIDDLE = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}

# A prime number: no row begins where another does.
_MOST_BLOCKS = 65_521


def random_tensor(random, kind, rows, columns, spread=0.1):
    """The bytes of random blocks whose weights are about `spread`."""
    _, weights, size, halves = BLOCKS[kind]
    number = rows * columns // weights
    if number > _MOST_BLOCKS:  # the same ones again, which begin elsewhere in each row
        some = random_tensor(random, kind, 1, _MOST_BLOCKS * weights, spread)
        times, rest = divmod(number, _MOST_BLOCKS)
        return b"".join([*[some] * times, some[: rest * size]])
    if kind == "MXFP4":
        blocks = random.integers(0, 256, (number, size), dtype=np.uint8)
        first = 120 + round(np.log2(spread / 0.1))
        blocks[:, 0] = random.integers(first, first + 4, number)  # powers of two
        return blocks.tobytes()
    if not halves:
        values = (random.standard_normal(number) * spread).astype("<f4")
        if kind == "BF16":
            return (values.view("<u4") >> 16).astype("<u2").tobytes()
        return values.astype("<f2" if kind == "F16" else "<f4").tobytes()
    blocks = random.integers(0, 256, (number, size), dtype=np.uint8)
    for place in halves:
        scale = random.uniform(0.5, 1.0, number) * spread / SPREAD.get(kind, 6)
        if place == 2 and kind in ("Q4_1", "Q5_1"):
            scale = random.uniform(-2 * spread, 0.0, number)
        elif place == halves[-1]:
            scale = scale * _MIDDLE.get(kind, 1.0)
        blocks[:, place : place + 2] = scale.astype("<f2").view(np.uint8).reshape(number, 2)
    return blocks.tobytes()


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""The values of the numbers of MXFP4."""


def mxfp4(weights):
    """Round an array to MXFP4.

    Returns:
        The bytes of its blocks of 32 along the last axis, and the values that they hold.
    """
    blocks = weights.reshape(-1, 32).astype(np.float32)
    most = np.abs(blocks).max(-1, keepdims=True)
    exponents = np.floor(np.log2(np.maximum(most, 2.0**-100))) - 2
    scales = np.exp2(exponents).astype(np.float32)
    numbers = np.abs(blocks[:, :, None] / scales[:, :, None] - FP4).argmin(-1).astype(np.uint8)
    packed = numbers[:, :16] | numbers[:, 16:] << 4
    stored = np.concatenate([(exponents + 127).astype(np.uint8), packed], axis=1)
    return stored.tobytes(), (FP4[numbers] * scales).reshape(weights.shape)


def write_gguf(path, metadata, tensors):
    """Writes a file; `tensors` maps a name to its type, dimensions (columns first) and bytes."""
    numbered = {name: (BLOCKS[kind][0], *rest) for name, (kind, *rest) in tensors.items()}
    gguf_writer.write_gguf(path, metadata, numbered)
    return path


def write_model(
    path,
    architecture,
    kinds=("F32",),
    *,
    seed=1,
    hidden=64,
    wide=96,
    heads=4,
    vocab=80,
    extra=(),
    num_parts=1,
    **more,
):
    """Writes a model of this family whose weights have these types in turn.

    Returns the path of its first part.
    """
    random = np.random.default_rng(seed)
    kv_heads, size, layers = 2, 32, 3
    sizes = {
        "embedding_length": hidden, "feed_forward_length": wide, "block_count": layers,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads,
        "attention.key_length": size, "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 5000.0, "context_length": 256,
    }  # fmt: skip
    metadata = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key}": value for key, value in (sizes | more).items()}
    metadata |= dict(extra)
    tensors = {}

    def vector(name, length, middle=1.0):
        values = (middle + 0.2 * random.standard_normal(length)).astype("<f4")
        tensors[name] = ("F32", (length,), values.tobytes())

    def matrix(name, rows, columns):
        kind = kinds[len(tensors) % len(kinds)]
        tensors[name] = (kind, (columns, rows), random_tensor(random, kind, rows, columns))

    matrix("token_embd.weight", vocab, hidden)
    vector("output_norm.weight", hidden)
    if architecture != "gemma3":
        matrix("output.weight", vocab, hidden)
    for layer in range(layers):
        of = f"blk.{layer}."
        vector(f"{of}attn_norm.weight", hidden)
        vector(f"{of}ffn_norm.weight", hidden)
        for name, number in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            matrix(f"{of}attn_{name}.weight", number * size, hidden)
            if architecture == "qwen2":
                vector(f"{of}attn_{name}.bias", number * size, 0.0)
            if architecture in ("qwen3", "gemma3") and name != "v":
                vector(f"{of}attn_{name}_norm.weight", size)
        if architecture == "gemma3":
            vector(f"{of}post_attention_norm.weight", hidden)
            vector(f"{of}post_ffw_norm.weight", hidden)
        matrix(f"{of}attn_output.weight", hidden, heads * size)
        matrix(f"{of}ffn_gate.weight", wide, hidden)
        matrix(f"{of}ffn_up.weight", wide, hidden)
        matrix(f"{of}ffn_down.weight", hidden, wide)
    return write_parts(path, metadata, tensors, num_parts)


def write_parts(path, metadata, tensors, num_parts):
    """Writes a file, or parts with numbers in their names; the first one has the metadata."""
    if num_parts == 1:
        return write_gguf(path, metadata, tensors)
    paths = [
        path.with_name(f"{path.stem}-{part + 1:05}-of-{num_parts:05}.gguf")
        for part in range(num_parts)
    ]
    for part, of_part in enumerate(paths):
        split = {"split.no": part, "split.count": num_parts, "split.tensors.count": len(tensors)}
        of = {name: tensors[name] for name in list(tensors)[part::num_parts]}
        write_gguf(of_part, {**(metadata if part == 0 else {}), **split}, of)
    return paths[0]


def write_mamba(path):
    """Writes a model of recurrent layers alone, with a tokenizer of bytes."""
    random, hidden, inner, state = np.random.default_rng(1), 32, 64, 8
    sizes = {
        "embedding_length": hidden, "block_count": 1, "context_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-5, "ssm.conv_kernel": 4,
        "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": 2,
    }  # fmt: skip
    metadata = {"general.architecture": "mamba", **byte_tokenizer()}
    metadata["tokenizer.ggml.merges"] = ["a b"]  # llama.cpp rejects none
    metadata |= {f"mamba.{name}": value for name, value in sizes.items()}
    shapes = {
        "attn_norm.weight": (hidden,), "ssm_in.weight": (hidden, 2 * inner),
        "ssm_conv1d.weight": (4, inner), "ssm_conv1d.bias": (inner,),
        "ssm_x.weight": (inner, 2 + 2 * state), "ssm_dt.weight": (2, inner),
        "ssm_dt.bias": (inner,), "ssm_a": (state, inner), "ssm_d": (inner,),
        "ssm_out.weight": (inner, hidden),
    }  # fmt: skip
    shapes = {f"blk.0.{name}": shape for name, shape in shapes.items()}
    shapes |= {"token_embd.weight": (hidden, 258), "output_norm.weight": (hidden,)}
    parts = {
        name: ("F32", shape, random_tensor(random, "F32", shape[0], (*shape, 1)[1]))
        for name, shape in shapes.items()
    }
    return write_gguf(path, metadata, parts)


def write_tokens(path, tokens, model="gpt2", **more):
    """Writes a file of a tokenizer; its other fields are there to be passed over."""
    metadata = {
        "general.architecture": "llama", "llama.rope.freq_base": 1e4,
        "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.model": model,
        "tokenizer.ggml.token_type": [1, 1, 3], "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["a b"],
    }  # fmt: skip
    return write_gguf(path, metadata | more, {})


def byte_tokenizer(template=None):
    """The metadata of a tokenizer of single bytes, with two control tokens after them."""
    letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled, others = {byte: chr(byte) for byte in letters}, 256
    for byte in range(256):
        if byte not in spelled:
            spelled[byte] = chr(others)
            others += 1
    tokens = [*(spelled[byte] for byte in range(256)), "<|im_start|>", "<|im_end|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * 256 + [3] * 2,
        "tokenizer.ggml.merges": [], "tokenizer.ggml.eos_token_id": 257,
    }  # fmt: skip
    return metadata | ({"tokenizer.chat_template": template} if template else {})


def core_of(path, instructions="auto"):
    """The core's model of a file; the test is skipped where a processor lacks the instructions."""
    try:
        return ForwardModel(GgufFile(path), instructions=instructions)
    except ValueError as error:
        if "does not have" not in str(error):
            raise
        pytest.skip(str(error))
