"""Conversion of a Llama-like model to a float32 GGUF file: `python gguf_model.py FOLDER FILE`."""

import json
import sys
from pathlib import Path

from specds.models.gguf_writer import write_llama

NORMAL, CONTROL, UNUSED = 1, 3, 5


def tokenizer_fields(folder):
    """Return the tokenizer of a folder as metadata; llama.cpp splits its texts in another way."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    tokens = [f"[PAD{token}]" for token in range(config["vocab_size"])]
    types = [UNUSED] * len(tokens)
    for text, token in tokenizer["model"]["vocab"].items():
        tokens[token], types[token] = text, NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]], types[added["id"]] = added["content"], CONTROL
    fields = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": types}
    fields["merges"] = [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    fields |= {"eos_token_id": config["eos_token_id"], "add_bos_token": False}
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}


if __name__ == "__main__":
    source = Path(sys.argv[1])
    write_llama(source, Path(sys.argv[2]), tokenizer_fields(source), as_float32=True)
