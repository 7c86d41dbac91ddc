"""Expressions that split texts into words, by `tokenizer.ggml.pre` of GGUF files."""

from __future__ import annotations

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_ASCII_SIGN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"


def _by_case(ending: str, number: str) -> str:
    """Return words that end before an upper letter after a lower one."""
    first, later = f"[{_UPPER}]", f"[{_LOWER}]"
    sign = r"[^\r\n\p{L}\p{N}]?"
    words = f"{sign}{first}*{later}+{ending}|{sign}{first}+{later}*{ending}"
    signs = _SIGNS.replace(r"[\r\n]*", r"[\r\n/]*")
    return f"{words}|{number}|{signs}|{_SPACES}"


_LLAMA3 = f"{_ENDINGS}|{_WORD}|\\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_QWEN35 = _QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
_SEED = _QWEN2.replace(_SIGNS, r" ?[^\s\p{L}\p{N}\r\n]+")
_GPT4O = _by_case(f"{_ENDINGS}?", r"\p{N}{1,3}")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-\u309f\u30a0-\u30ff]+",
    _ASCII_SIGN
    + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _SPACES,
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")
_BAILING = rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+"

_NAMES = {
    (_LLAMA3,): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 smaug-bpe dbrx glm4 "
        "chatglm-bpe"
    ),
    (_QWEN2,): "qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2",
    (_QWEN35,): "qwen35",
    (_by_case("", r"\p{N}"),): "tekken",
    (_GPT4O,): "gpt-4o llama4 kanana2 minimax-m2",
    (_SEED,): "seed-coder",
    (_BAILING,): "bailingmoe bailingmoe2 llada-moe",
    _DEEPSEEK3: "deepseek-v3 hunyuan-dense joyai-llm",
    _DEEPSEEK_CODER: "deepseek-coder",
}
SPLITS = {name: splits for splits, names in _NAMES.items() for name in names.split()}
"""Expressions by name; each splits the parts that those before it leave."""
OF_GPT2 = {
    "gpt-2", "gpt2", "phi-2", "jina-es", "mpt", "olmo", "jais", "exaone4", "trillion",
    "granite-docling", "a.x-4.0",
}  # fmt: skip
"""Names of the expression of GPT-2."""
OF_SMOLLM = {
    "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2",
}  # fmt: skip
"""Names that split digits before the expression of GPT-2."""
NORMALIZED = {"qwen2", "qwen35", "deepseek-r1-qwen"}
"""Names of tokenizers that compose characters first."""
IGNORE_MERGES = {
    "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "tekken",
}  # fmt: skip
"""Names of tokenizers that take a word that is a token as a whole."""
