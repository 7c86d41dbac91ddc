"""GGUF files of small models of transformers, so that the core can compute them without torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

# A type's number in GGUF, by its name in safetensors.
_TYPES = {"F32": (0, "<f4"), "F16": (1, "<f2"), "BF16": (30, "<u2")}
SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
"""Fields of a configuration by their names in GGUF."""
LAYER_PARTS = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
"""Parts of a layer by their names in transformers."""
_PARTS = LAYER_PARTS | {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip
_ROTATED = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}


def write_llama(
    folder: Path,
    path: Path,
    tokenizer: Mapping[str, Any] | None = None,
    *,
    as_float32: bool = False,
) -> None:
    """Write the weights of a Llama model in one file of safetensors.

    Args:
        folder: The folder of the model.
        path: The GGUF file.
        tokenizer: Fields of the tokenizer; by default there are none.
        as_float32: Write weights of float16 as float32.

    Raises:
        ValueError: The folder has another model.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("model_type") != "llama" or not (folder / "model.safetensors").is_file():
        raise ValueError(f"{folder} is not a Llama model in one file of safetensors")
    metadata = {f"llama.{name}": config[ours] for name, ours in SIZES.items()}
    metadata["llama.rope.freq_base"] = float(config["rope_parameters"]["rope_theta"])
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, stored in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        number, dtype = _TYPES[stored["dtype"]]
        start, end = stored["data_offsets"]
        weights = np.frombuffer(data[8 + length :][start:end], dtype).reshape(stored["shape"])
        if as_float32:
            number, weights = 0, weights.astype(np.float32)
        part = name.removesuffix(".weight")
        prefix = ""
        if part.startswith("model.layers."):
            _, _, layer, part = part.split(".", 3)
            prefix = f"blk.{layer}."
        if (ours := _PARTS[part]) in _ROTATED:
            # GGUF rotates neighbors, transformers halves of a head.
            heads = weights.reshape(config[_ROTATED[ours]], 2, -1, weights.shape[1])
            weights = heads.swapaxes(1, 2).reshape(weights.shape)
        tensors[f"{prefix}{ours}.weight"] = number, weights.shape[::-1], weights.tobytes()
    write_gguf(path, {"general.architecture": "llama", **metadata, **(tokenizer or {})}, tensors)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, tuple[int, ...], bytes]],
) -> None:
    """Write a file.

    Args:
        path: The file.
        metadata: Fields by name.
        tensors: The number of the type, the dimensions (columns first) and the bytes, by name.
    """
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(encoded_text(name) + encoded_value(value) for name, value in metadata.items())
    size = 0
    for name, (number, dimensions, contents) in tensors.items():
        head += encoded_text(name) + struct.pack(
            f"<I{len(dimensions)}Q", len(dimensions), *dimensions
        )
        head += struct.pack("<IQ", number, size)
        size += len(contents) + -len(contents) % 32
    with path.open("wb") as file:
        for part in (head, *(contents for _, _, contents in tensors.values())):
            file.write(part)
            file.write(bytes(-len(part) % 32))


def encoded_text(written: str) -> bytes:
    """Return a text as a file has it."""
    return struct.pack("<Q", len(written.encode())) + written.encode()


def encoded_value(value: Any) -> bytes:
    """Return a field's kind and value."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        is_small = 0 <= value < 1 << 32
        return struct.pack("<II", 4, value) if is_small else struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, list):
        items = [encoded_value(each) for each in value]
        kind = struct.unpack_from("<I", items[0])[0] if items else 4
        # llama.cpp reads lists of numbers as signed ones.
        start = struct.pack("<IIQ", 9, 5 if kind == 4 else kind, len(items))
        return start + b"".join(item[4:] for item in items)
    return struct.pack("<I", 8) + encoded_text(value)
