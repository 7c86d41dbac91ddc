"""The tokenizer of a GGUF file, built from its metadata with the package `tokenizers` alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from specds._core import GgufFile, merges_of
from specds._lazy import imported
from specds.models.gguf import (
    CONTROL,
    NORMAL,
    USER_DEFINED,
    chat_template_of,
    field,
    spelled_alike,
    token_id,
    token_types,
    tokens_of,
)
from specds.models.gguf_splits import IGNORE_MERGES, NORMALIZED, OF_GPT2, OF_SMOLLM, SPLITS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase


class UnknownTokenizerError(ValueError):
    """A file's tokenizer is of a kind that is not built here."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise a panic of the package `tokenizers` as ValueError: servers do not catch its own class.

    Raises:
        ValueError: The package panicked.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the package `tokenizers` panicked: {error}") from error


def build_backend(file: GgufFile, path: str | PathLike[str]) -> Any:
    """Build the `tokenizers.Tokenizer` of a file.

    Raises:
        UnknownTokenizerError: The tokenizer is of another kind.
        ValueError: The file has no tokens, or they contradict each other.
    """
    tokenizers = imported("tokenizers")
    tokens = tokens_of(file, path)
    types = token_types(file, len(tokens))
    kind = field(file, "tokenizer.ggml.model")
    try:
        with panics_as_errors():
            if kind == "gpt2":
                backend = _byte_level(file, tokens, tokenizers)
            elif kind == "llama":
                backend = _of_sentencepiece(file, tokens, types, tokenizers)
            else:
                raise UnknownTokenizerError(f"its tokenizer is of the kind {kind!r}")
            # SentencePiece writes spaces as signs, in which tokens of spaces alone are spelled.
            has_signs = kind == "llama" and not _has_space_prefix(file)
            added = [
                tokenizers.AddedToken(
                    token,
                    special=type_ == CONTROL,
                    normalized=has_signs and type_ == USER_DEFINED and not token.strip("▁"),
                )
                for token, type_ in zip(tokens, types, strict=True)
                if type_ in (CONTROL, USER_DEFINED) and token
            ]
            backend.add_tokens(added)
            _add_ends(backend, file, tokens, kind, tokenizers)
    except UnknownTokenizerError:
        raise
    except Exception as error:  # the package has no class of its own
        raise ValueError(f"{path} holds no usable tokenizer: {error}") from error
    return backend


def _byte_level(file: GgufFile, tokens: list[str], tokenizers: Any) -> Any:
    """Build a tokenizer of bytes that are spelled as letters, with its merges in order."""
    pre = field(file, "tokenizer.ggml.pre", "gpt-2")
    numbers = {token: number for number, token in enumerate(tokens)}
    model = tokenizers.models.BPE(
        vocab=numbers,
        merges=_pairs(field(file, "tokenizer.ggml.merges", []), numbers),
        ignore_merges=pre in IGNORE_MERGES,
    )
    backend = tokenizers.Tokenizer(model)
    of = tokenizers.pre_tokenizers
    by_bytes = of.ByteLevel(add_prefix_space=False, use_regex=pre not in SPLITS)
    if pre in SPLITS:
        regexes = map(tokenizers.Regex, SPLITS[pre])
        splits = [of.Split(regex, behavior="isolated", invert=False) for regex in regexes]
        backend.pre_tokenizer = of.Sequence([*splits, by_bytes])
    elif pre in OF_SMOLLM:
        backend.pre_tokenizer = of.Sequence([of.Digits(individual_digits=True), by_bytes])
    elif pre in OF_GPT2:
        backend.pre_tokenizer = by_bytes
    else:
        raise UnknownTokenizerError(f"its tokenizer splits texts by the rule {pre!r}")
    if pre in NORMALIZED:
        backend.normalizer = tokenizers.normalizers.NFC()
    backend.decoder = tokenizers.decoders.ByteLevel()
    return backend


def _pairs(merges: Any, known: Mapping[str, int]) -> list[tuple[str, str]]:
    """Read merges of two tokens to a token: of others, the package panics."""
    if not isinstance(merges, list):
        raise ValueError("its merges are not a list")
    pairs = []
    for merge in merges:
        left, _, right = str(merge).partition(" ")
        missing = [token for token in (left, right, left + right) if token not in known]
        if missing or not (left and right):
            raise ValueError(f"its merge {merge!r} is not one of tokens to a token")
        pairs.append((left, right))
    return pairs


class _Merges(Sequence[tuple[str, str]]):
    """Pairs of tokens, made as they are read: those of Gemma 3 in a list take 0.1 GB."""

    def __init__(self, tokens: list[str], pairs: NDArray[np.int64]) -> None:
        self._tokens, self._pairs = tokens, pairs.ravel().data

    def __len__(self) -> int:
        return len(self._pairs) // 2

    def __getitem__(self, place: Any) -> Any:
        left, right = self._pairs[2 * place], self._pairs[2 * place + 1]
        return self._tokens[left], self._tokens[right]


def _of_sentencepiece(file: GgufFile, tokens: list[str], types: list[int], tokenizers: Any) -> Any:
    """Build a tokenizer whose merges follow from the scores of its tokens."""
    scores = field(file, "tokenizer.ggml.scores", [])
    if len(scores) != len(tokens):
        raise ValueError("it has not one score for each token")
    numbers = {token: number for number, token in enumerate(tokens)}
    normal = [
        score if type_ == NORMAL else None for score, type_ in zip(scores, types, strict=True)
    ]
    unknown = token_id(file, "unknown", len(tokens))
    model = tokenizers.models.BPE(
        vocab=numbers,
        merges=_Merges(tokens, merges_of(tokens, normal)),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    has_prefix = _has_space_prefix(file)
    spaces = tokenizers.normalizers.Replace(" ", "▁")
    prefix = [tokenizers.normalizers.Prepend("▁")] * has_prefix
    backend.normalizer = tokenizers.normalizers.Sequence([*prefix, spaces])
    of = tokenizers.decoders
    strip = [of.Strip(content=" ", left=1)] * has_prefix
    backend.decoder = of.Sequence([of.Replace("▁", " "), of.ByteFallback(), of.Fuse(), *strip])
    return backend


def _has_space_prefix(file: GgufFile) -> bool:
    return field(file, "tokenizer.ggml.add_space_prefix", True) is True


def _add_ends(backend: Any, file: GgufFile, tokens: list[str], kind: str, tokenizers: Any) -> None:
    """Put the tokens around each text that the file asks for."""
    around = {
        name: number
        for name, is_usual in (("bos", kind == "llama"), ("eos", False))
        if field(file, f"tokenizer.ggml.add_{name}_token", is_usual) is True
        and (number := token_id(file, name, len(tokens))) is not None
    }
    if around:
        single = ["bos"] * ("bos" in around) + ["$A"] + ["eos"] * ("eos" in around)
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=[tokens[around[part]] if part in around else part for part in single],
            special_tokens=[(tokens[number], number) for number in around.values()],
        )


def special_tokens(file: GgufFile, path: str | PathLike[str]) -> dict[str, Any]:
    """Return the named special tokens, and those of the chat template, as transformers does."""
    tokens = tokens_of(file, path)
    types, template = token_types(file, len(tokens)), chat_template_of(file) or ""
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    found: dict[str, Any] = {
        f"{ours}_token": tokens[number]
        for name, ours in names.items()
        if (number := token_id(file, name, len(tokens))) is not None
    }
    if "eos_token" in found:
        found.setdefault("pad_token", found["eos_token"])
    controls = (token for token, type_ in zip(tokens, types, strict=True) if type_ == CONTROL)
    named = [token for token in controls if token and token in template]
    return {**found, "extra_special_tokens": named}


def pretrained_tokenizer(file: GgufFile, path: str | PathLike[str]) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a file, as transformers wraps it.

    Raises:
        UnknownTokenizerError: The tokenizer is of a kind that is not built here.
    """
    backend = build_backend(file, path)
    # transformers copies what it is given, by way of JSON.
    given = SimpleNamespace(__deepcopy__=lambda _: backend)
    wrapped: PreTrainedTokenizerBase = imported("transformers").PreTrainedTokenizerFast(
        tokenizer_object=given,
        chat_template=chat_template_of(file),
        clean_up_tokenization_spaces=False,
        name_or_path=str(path),
        padding_side="left",
        **special_tokens(file, path),
    )
    if alike := spelled_alike(tokens_of(file, path)):
        vars(wrapped)["_decode"] = partial(_decode_by_list, wrapped, alike)
    return wrapped


def _decode_by_list(
    tokenizer: Any, alike: Mapping[int, int], token_ids: Any, *args: Any, **options: Any
) -> Any:
    """Decode ids that the backend lacks, because their tokens are spelled like others."""
    ids = [token_ids] if isinstance(token_ids, int) else token_ids
    ids = [alike.get(number, number) for number in ids]
    return type(tokenizer)._decode(tokenizer, ids, *args, **options)
