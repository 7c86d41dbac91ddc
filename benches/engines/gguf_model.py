"""Conversion of a Llama-like model to a float32 GGUF file: `python gguf_model.py FOLDER FILE`."""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file


def write(folder, out):
    """Its text is tokenized otherwise: give token ids to what reads it."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_tokenizer(writer, tokenizer, config["vocab_size"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    for name, tensor in load_file(folder / "model.safetensors").items():
        rows = tensor.astype(np.float32)
        for part, number in heads.items():
            if part in name:
                rows = in_pairs(rows, config[number])
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer, tokenizer, vocab_size):
    tokens = [f"[PAD{token}]" for token in range(vocab_size)]
    types = [gguf.TokenType.UNUSED] * vocab_size
    for text, token in tokenizer["model"]["vocab"].items():
        tokens[token], types[token] = text, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]], types[added["id"]] = added["content"], gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in merges])


def in_pairs(rows, num_heads):
    """Reorder rows: llama.cpp rotates adjacent pairs, and hub models rotate halves of a head."""
    halves = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
