"""Metadata of GGUF files: vocabulary and generation settings, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

from specds._core import GgufFile

MAGIC = b"GGUF"
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Types of tokens."""

# Tokens that end a turn, in files that name only the token that ends a text.
_ENDS_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")
# Settings of transformers by their names in GGUF.
_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}

CONVERTED = frozenset(
    (
        *("bloom", "deci", "falcon", "gemma2", "gemma3", "gemma4", "gpt-oss", "gpt2", "lfm2"),
        *("llama", "mamba", "minimax-m2", "mistral", "nemotron", "phi3", "qwen2", "qwen2moe"),
        *("qwen3", "qwen3moe", "stablelm", "starcoder2", "t5", "umt5"),
    )
)
"""The architectures of GGUF files that transformers converts."""


def field(file: GgufFile, key: str, default: Any = None) -> Any:
    """Return the value of a field, or `default` if the file lacks it."""
    try:
        return file[key]
    except KeyError:
        return default


def architecture_of(path: str | PathLike[str]) -> str:
    """Return the name that llama.cpp gives the architecture of a file; empty without one."""
    return str(field(GgufFile(path), "general.architecture", ""))


@dataclass(frozen=True)
class GgufVocabulary:
    """The tokens of a GGUF file, which identify its tokenizer."""

    name_or_path: str
    tokens: dict[str, int]
    chat_template: str | None

    @classmethod
    def read(cls, path: str | PathLike[str]) -> GgufVocabulary:
        """Read the file's fields.

        Raises:
            ValueError: The file is not GGUF, is truncated, or has no tokens.
        """
        file = GgufFile(path)
        spelled = {token: number for number, token in enumerate(tokens_of(file, path))}
        return cls(str(path), spelled, chat_template_of(file))

    def get_vocab(self) -> dict[str, int]:
        return dict(self.tokens)


def chat_template_of(file: GgufFile) -> str | None:
    """Return the chat template of a file, None if it has none."""
    template = field(file, "tokenizer.chat_template")
    return template if isinstance(template, str) else None


def tokens_of(file: GgufFile, path: str | PathLike[str]) -> list[str]:
    """Return the tokens of a file in the order of their ids.

    Raises:
        ValueError: The file has no tokens.
    """
    tokens = field(file, "tokenizer.ggml.tokens")
    if not (isinstance(tokens, list) and tokens and isinstance(tokens[0], str)):
        raise ValueError(f"{path} holds no tokenizer: pass one with --tokenizer")
    if field(file, "tokenizer.ggml.model") == "llama":
        # The original spells spaces alone by SentencePiece's own sign.
        return ["▁" * len(each) if each and not each.strip(" ") else each for each in tokens]
    return tokens


def spelled_alike(tokens: list[str]) -> dict[int, int]:
    """Return the ids of tokens that a later one is spelled like, and the id of the last such one.

    Texts are encoded with the last one, as llama.cpp does; a model may write each of them.
    """
    last = {token: number for number, token in enumerate(tokens)}
    if len(last) == len(tokens):
        return {}
    return {number: last[token] for number, token in enumerate(tokens) if last[token] != number}


def token_types(file: GgufFile, num_tokens: int) -> list[int]:
    """Return the type of each token; all are normal in a file without types."""
    types = field(file, "tokenizer.ggml.token_type")
    is_whole = isinstance(types, list) and len(types) == num_tokens
    return types if is_whole else [NORMAL] * num_tokens


def token_id(file: GgufFile, name: str, num_tokens: int) -> int | None:
    """Return the id of a special token (`bos`, `eos`, `padding`, ...), None if there is none."""
    number = field(file, f"tokenizer.ggml.{name}_token_id")
    is_id = isinstance(number, int) and not isinstance(number, bool) and 0 <= number < num_tokens
    return number if is_id else None


def generation_settings(file: GgufFile, tokens: list[str]) -> dict[str, Any]:
    """Return the arguments of the generation configuration of transformers."""
    ids = {name: token_id(file, name, len(tokens)) for name in ("bos", "eos", "eot", "eom")}
    ends = {ids[name] for name in ("eos", "eot", "eom")} - {None}
    types, template = token_types(file, len(tokens)), chat_template_of(file) or ""
    numbers = {token: number for number, token in enumerate(tokens)}
    for token in _ENDS_OF_TURN:
        number = numbers.get(token)
        if number is not None and types[number] == CONTROL and token in template:
            ends.add(number)
    padding = token_id(file, "padding", len(tokens))
    settings: dict[str, Any] = {
        "bos_token_id": ids["bos"],
        "eos_token_id": sorted(ends, key=lambda number: number != ids["eos"]) or None,
        "pad_token_id": ids["eos"] if padding is None else padding,
    }
    sampling = {
        name: value
        for key, name in _SAMPLING.items()
        if (value := field(file, f"general.sampling.{key}")) is not None
    }
    return {**settings, **sampling, "do_sample": True} if sampling else settings
