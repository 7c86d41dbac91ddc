"""Metadata of GGUF files: vocabulary, configuration and generation settings, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

from specds._core import GgufFile

MAGIC = b"GGUF"
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Types of tokens."""

_MODEL_TYPES = {
    "gemma3": "gemma3_text", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss", "lfm2moe": "lfm2_moe", "qwen3next": "qwen3_next",
    "qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text",
}  # fmt: skip
# Sizes of mixtures of experts and of recurrent layers: names in transformers, by those in GGUF.
_SIZES = {
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": (
        "shared_expert_intermediate_size", "shared_intermediate_size"
    ),
    "leading_dense_block_count": ("num_dense_layers",),
    "shortconv.l_cache": ("conv_L_cache",),
    "ssm.conv_kernel": ("linear_conv_kernel_dim",),
    "ssm.state_size": ("linear_key_head_dim", "linear_value_head_dim"),
    "ssm.group_count": ("linear_num_key_heads",),
    "ssm.time_step_rank": ("linear_num_value_heads",),
}  # fmt: skip
# Tokens that end a turn, in files that name only the token that ends a text.
_ENDS_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")
# Settings of transformers by their names in GGUF.
_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}


def field(file: GgufFile, key: str, default: Any = None) -> Any:
    """Return the value of a field, or `default` if the file lacks it."""
    try:
        return file[key]
    except KeyError:
        return default


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
        template = field(file, "tokenizer.chat_template")
        spelled = {token: number for number, token in enumerate(tokens_of(file, path))}
        return cls(str(path), spelled, template if isinstance(template, str) else None)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.tokens)


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


def model_settings(file: GgufFile, shapes: dict[str, int]) -> dict[str, Any]:
    """Return the arguments of the configuration of transformers, `model_type` included.

    Args:
        file: The file.
        shapes: The `config` of its `ForwardModel`.
    """
    architecture = str(field(file, "general.architecture"))
    settings: dict[str, Any] = {**shapes}
    del settings["num_weights"]
    settings["model_type"] = _MODEL_TYPES.get(architecture, architecture)
    settings["tie_word_embeddings"] = "output.weight" not in file.tensors()
    epsilon = field(file, f"{architecture}.attention.layer_norm_rms_epsilon")
    if isinstance(epsilon, float):
        settings["rms_norm_eps"] = epsilon
    settings["rope_parameters"] = _rope_parameters(file, architecture)
    if architecture == "gemma3":
        is_27b = shapes["num_hidden_layers"] == 62
        whole = shapes["hidden_size"] // shapes["num_attention_heads"]
        settings["query_pre_attn_scalar"] = whole if is_27b else shapes["head_dim"]
        settings["final_logit_softcapping"] = field(file, "gemma3.final_logit_softcapping")
    for name, ours in _SIZES.items():
        if size := field(file, f"{architecture}.{name}"):
            settings |= dict.fromkeys(ours, size)
    window = field(file, f"{architecture}.attention.sliding_window")
    if isinstance(window, int) and window > 0:
        settings["sliding_window"] = window
        if architecture == "llama":
            settings["model_type"] = "mistral"
    if architecture == "llama" and "num_experts" in settings:
        settings["model_type"] = "mixtral"
    of_layers = field(file, f"{architecture}.attention.head_count_kv")
    if architecture.startswith("lfm2") and isinstance(of_layers, list):
        settings["layer_types"] = ["full_attention" if number else "conv" for number in of_layers]
    return settings


def _rope_parameters(file: GgufFile, architecture: str) -> dict[str, Any]:
    base = float(field(file, f"{architecture}.rope.freq_base", 10_000.0))
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    if field(file, f"{architecture}.rope.scaling.type") == "linear":
        factor = field(file, f"{architecture}.rope.scaling.factor", 1.0)
        found |= {"rope_type": "linear", "factor": factor}
    if architecture != "gemma3":
        return found
    local = float(field(file, "gemma3.rope.freq_base_swa", 10_000.0))
    of_windows = {"rope_type": "default", "rope_theta": local}
    return {"full_attention": found, "sliding_attention": of_windows}


def generation_settings(file: GgufFile, tokens: list[str]) -> dict[str, Any]:
    """Return the arguments of the generation configuration of transformers."""
    ids = {name: token_id(file, name, len(tokens)) for name in ("bos", "eos", "eot", "eom")}
    ends = {ids[name] for name in ("eos", "eot", "eom")} - {None}
    types, template = token_types(file, len(tokens)), field(file, "tokenizer.chat_template", "")
    numbers = {token: number for number, token in enumerate(tokens)}
    for token in _ENDS_OF_TURN:
        number = numbers.get(token)
        if number is not None and types[number] == CONTROL and token in str(template):
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
