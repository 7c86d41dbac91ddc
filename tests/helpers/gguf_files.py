"""GGUF files of a tokenizer and nothing else."""

import struct


def gguf_of(tokens, model="gpt2", chat_template=None, tensor_offsets=()):
    """The bytes of a file with these tokens; its other fields are there to be passed over."""

    def text(written):
        return struct.pack("<Q", len(written.encode())) + written.encode()

    def of_texts(written):
        return struct.pack("<IIQ", 9, 8, len(written)) + b"".join(map(text, written))

    fields = {
        "general.architecture": struct.pack("<I", 8) + text("llama"),
        "llama.block_count": struct.pack("<II", 4, 30),
        "llama.rope.freq_base": struct.pack("<If", 6, 1e4),
        "tokenizer.ggml.add_bos_token": struct.pack("<I?", 7, True),
        "tokenizer.ggml.model": struct.pack("<I", 8) + text(model),
        "tokenizer.ggml.token_type": struct.pack("<IIQ3i", 9, 5, 3, 1, 1, 3),
        "tokenizer.ggml.tokens": of_texts(tokens),
        "tokenizer.ggml.merges": of_texts(["a b"]),
    }
    if chat_template is not None:
        fields["tokenizer.chat_template"] = struct.pack("<I", 8) + text(chat_template)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensor_offsets), len(fields))
    head += b"".join(text(name) + value for name, value in fields.items())
    return head + b"".join(
        text(f"weight.{offset}") + struct.pack("<IQQIQ", 2, 4, 4, 0, offset)
        for offset in tensor_offsets
    )
