"""Tokenizers: identified by fingerprint, applied to batches of documents."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import cached_property
from itertools import chain
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from specds._core import Datastore, GgufFile
from specds.models.chat_template import render
from specds.models.gguf import chat_template_of, spelled_alike, token_id, tokens_of
from specds.models.gguf_tokenizer import (
    UnknownTokenizerError,
    build_backend,
    panics_as_errors,
    special_tokens,
)

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerBase


Tokenizer: TypeAlias = "PreTrainedTokenizerBase"
"""One of transformers, or what reads the same files without it."""


class TokenizerError(ValueError):
    """The tokenizer differs from the one that a datastore was built with."""


_AS_IT_LIES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""The classes whose tokens transformers takes from `tokenizer.json` and nothing else."""


class Encoded(dict[str, Any]):
    """Token ids of texts, by the names that transformers gives them."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


_LONG = 4096
"""Characters from which other threads run while a text is tokenized."""


@dataclass(frozen=True, repr=False)
class FastTokenizer:
    """A tokenizer without transformers and torch: of a folder or of a GGUF file."""

    name_or_path: str
    backend_tokenizer: Any
    eos_token_id: int | None
    chat_template: str | None
    special_tokens: dict[str, str]
    alike: Mapping[int, int] = attribute(default_factory=dict)
    """Ids that the backend lacks, and those whose tokens are spelled like theirs."""

    is_fast = True

    @classmethod
    def read(cls, folder: Path) -> FastTokenizer | None:
        """Read a tokenizer; return None if transformers would change the file's tokenizer."""
        paths = [folder / name for name in ("tokenizer.json", "tokenizer_config.json")]
        if not all(path.is_file() for path in paths) or (folder / "tekken.json").exists():
            return None
        config = json.loads(paths[1].read_text(encoding="utf-8"))
        altered = any(config.get(key) for key in ("auto_map", "fix_mistral_regex"))
        if config.get("tokenizer_class") not in _AS_IT_LIES or altered:
            return None
        import tokenizers

        backend = tokenizers.Tokenizer.from_file(str(paths[0]))
        if not _has_all_special_tokens(backend, folder, config):
            return None
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = bool(config.get("split_special_tokens"))
        file, named = folder / "chat_template.jinja", _named(config)
        template = file.read_text("utf-8") if file.is_file() else config.get("chat_template")
        if not isinstance(template, str | None):  # several, by name
            return None
        return cls(
            str(folder),
            backend,
            backend.token_to_id(named["eos_token"]) if "eos_token" in named else None,
            template,
            named,
        )

    @classmethod
    def read_gguf(cls, path: Path) -> FastTokenizer | None:
        """Read the tokenizer of a GGUF file; None if it is of an unknown kind."""
        with suppress(UnknownTokenizerError):
            return cls.of_gguf(GgufFile(path), path)
        return None

    @classmethod
    def of_gguf(cls, file: GgufFile, path: str | PathLike[str]) -> FastTokenizer:
        """Build the tokenizer of an open GGUF file; see `build_backend`."""
        backend = build_backend(file, path)
        named = special_tokens(file, path)
        more = {
            str(number): token for number, token in enumerate(named.pop("extra_special_tokens"))
        }
        tokens = tokens_of(file, path)
        eos = token_id(file, "eos", len(tokens))
        template = chat_template_of(file)
        alike = spelled_alike(tokens)
        return cls(str(path), backend, eos, template, named | more, alike)

    def __repr__(self) -> str:
        return f"FastTokenizer({self.name_or_path!r}, vocab_size={len(self)})"

    def __len__(self) -> int:
        """One more than the largest token id."""
        return self._size

    @cached_property
    def _size(self) -> int:
        return vocab_size(self)

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        return_tensors: Literal["np"] | None = None,
    ) -> Encoded:
        """Return the token ids of a text, or of several, as `input_ids`.

        Args:
            text: The text, or a list of texts.
            add_special_tokens: Add the tokens that begin and end a text.
            return_tensors: `np` for an array, int64 `(num_texts, length)`, of texts of one length.

        Raises:
            ValueError: Other tensors are asked for, or texts of several lengths in one array.
        """
        texts = [text] if isinstance(text, str) else [*text]
        ids: Any = [self.encode(one, add_special_tokens=add_special_tokens) for one in texts]
        if return_tensors is None:
            ids = ids[0] if isinstance(text, str) else ids
            mask = [1] * len(ids) if isinstance(text, str) else [[1] * len(one) for one in ids]
            return Encoded(input_ids=ids, attention_mask=mask)
        if return_tensors != "np":
            raise ValueError(
                f"return_tensors={return_tensors!r} needs transformers: use 'np', or load the file "
                "by `load_gguf(path, framework='transformers')`"
            )
        if len({*map(len, ids)}) > 1:
            raise ValueError("texts of several lengths make no array: tokenize each by itself")
        import numpy as np  # the command line's help does without it

        found = np.array(ids, dtype=np.int64).reshape(len(texts), -1)
        return Encoded(input_ids=found, attention_mask=np.ones_like(found))

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend_tokenizer.get_vocab(with_added_tokens=True))

    @property
    def all_special_ids(self) -> list[int]:
        known = map(self.backend_tokenizer.token_to_id, self.special_tokens.values())
        return [number for number in known if number is not None]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return encoded(self.backend_tokenizer, text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        ids = [self.alike.get(number, number) for number in map(int, token_ids)]
        with panics_as_errors():
            text = self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return str(text)

    def apply_chat_template(
        self,
        messages: Any,
        *,
        tools: Sequence[Any] | None = None,
        chat_template: str | None = None,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        return_dict: bool = False,
        **variables: Any,
    ) -> Any:
        """Return the text of a conversation, its token ids, or these as `input_ids`.

        Args:
            tools: Definitions of functions in OpenAI's format.
            chat_template: A template instead of the tokenizer's.
            **variables: Other variables of the template, such as `enable_thinking`.
        """
        if chat_template is None:
            require_chat_template(self)
        given = {"tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt}
        text = render(
            str(chat_template or self.chat_template),
            messages,
            **(self.special_tokens | given | variables),
        )
        if not tokenize:
            return text
        ids = self.encode(text, add_special_tokens=False)
        return {"input_ids": ids} if return_dict else ids


def encoded(backend: Any, text: str, *, add_special_tokens: bool) -> list[int]:
    """Return the token ids of a text by a tokenizer of `tokenizers`."""
    with panics_as_errors():
        if len(text) < _LONG:
            return list(backend.encode(text, add_special_tokens=add_special_tokens).ids)
        # `encode` holds the interpreter, a second for each million characters.
        (found,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(found.ids)


def _named(config: dict[str, Any]) -> dict[str, str]:
    names = [name for name in config if re.fullmatch(r"(bos|eos|unk|pad|sep|cls|mask)_token", name)]
    return {name: token for name in names for token in _contents(config[name])}


def _contents(token: Any) -> set[str]:
    """Return the contents of special tokens: single, listed, or with settings."""
    if isinstance(token, dict):
        token = [token["content"]] if "content" in token else [*token.values()]
    if isinstance(token, list):
        return set().union(*map(_contents, token))
    return {token} if isinstance(token, str) else set()


def _has_all_special_tokens(backend: Any, folder: Path, config: dict[str, Any]) -> bool:
    """Return true if transformers would add no token to those of the tokenizer."""
    import tokenizers

    known = backend.get_added_tokens_decoder()
    named = {key: config[key] for key in config if key.endswith(("_token", "special_tokens"))}
    other = folder / "special_tokens_map.json"
    if other.is_file():
        named |= json.loads(other.read_text(encoding="utf-8"))
    added = {
        (int(number), repr(tokenizers.AddedToken(**token)))
        for number, token in (config.get("added_tokens_decoder") or {}).items()
    }
    contents = {token.content for token in known.values()}
    return _contents(named) <= contents and added <= {(n, repr(t)) for n, t in known.items()}


def vocab_size(tokenizer: Tokenizer | FastTokenizer) -> int:
    """Return one more than the tokenizer's largest token id, added tokens included."""
    return max(index for token, index in tokenizer.get_vocab().items() if _means(token, index)) + 1


def model_vocab_size(model: Any) -> int:
    """Return a model's vocabulary size by its configuration."""
    return int(model.config.get_text_config(decoder=True).vocab_size)


def fingerprint(tokenizer: Tokenizer) -> str:
    """Return the SHA-256 (hex) of the vocabulary in id order."""
    vocabulary = tokenizer.get_vocab().items()
    items = sorted((index, token) for token, index in vocabulary if _means(token, index))
    return hashlib.sha256(json.dumps(items).encode()).hexdigest()


def _means(token: str, index: int) -> bool:
    """Return true for an id of the tokenizer; GGUF files also name padding ids."""
    return token != f"[PAD{index}]"


def require_chat_template(tokenizer: Tokenizer | FastTokenizer) -> None:
    if not tokenizer.chat_template:
        raise ValueError("this tokenizer has no chat template: give it one, or use `generate`")


def check_tokenizer(built: Datastore | SimpleNamespace, tokenizer: Tokenizer) -> None:
    """Raise `TokenizerError` unless a datastore was built with this tokenizer."""
    if fingerprint(tokenizer) != built.tokenizer_fingerprint:
        raise TokenizerError(
            f"the datastore at {built.path} was built with the tokenizer `{built.tokenizer_name}`, "
            "which has another vocabulary: use that one, or build a datastore with "
            f"`{_rebuild(built, tokenizer.name_or_path)}`"
        )


def check_vocabulary(built: Datastore, num_tokens: int) -> None:
    """Raise `TokenizerError` if a model's vocabulary size shows that its token ids differ.

    A model may have more tokens than its tokenizer, because of padding, or a few less.
    """
    if abs(built.vocab_size - num_tokens) > max(built.vocab_size, num_tokens) // 16:
        raise TokenizerError(
            f"the datastore at {built.path} was built with the tokenizer `{built.tokenizer_name}` "
            f"of {built.vocab_size:,} tokens, and the model has {num_tokens:,}: build one with the "
            "model's own tokenizer with `specds build`"
        )


def _rebuild(built: Datastore | SimpleNamespace, name: str) -> str:
    """Return the command that built a datastore, for another tokenizer."""
    corpora = " ".join(f"--corpus {shlex.quote(line)}" for line in built.corpus)
    known = [line for line in built.commands if "--tokenizer" in line]
    command = known[0] if known else f"specds build {corpora} --tokenizer NAME"
    try:
        words = shlex.split(command)
        words[words.index("--tokenizer") + 1] = name
    except (ValueError, IndexError):  # a command that others wrote
        words = ["specds", "build", "--tokenizer", name]
    return shlex.join([*words, "--out", "FOLDER"])


def encode_batch(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Tokenize documents without special tokens, on all cores with a fast tokenizer.

    Returns:
        All token ids, `uint32`, and the number of tokens of each document, `int64`.
    """
    import numpy as np  # the command line's help does without it

    if getattr(tokenizer, "is_fast", False):
        backend = tokenizer.backend_tokenizer
        # transformers passes it on at a call of its own `encode`.
        splits = getattr(tokenizer, "split_special_tokens", backend.encode_special_tokens)
        if backend.encode_special_tokens != splits:
            backend.encode_special_tokens = splits
        encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
        rows = [encoding.ids for encoding in encodings]
    else:
        rows = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    flat = np.fromiter(chain.from_iterable(rows), dtype=np.uint32, count=int(lengths.sum()))
    return flat, lengths


def local_tokenizer(name: str) -> Any:
    """Return the tokenizer of a model on this machine; None if it is not here."""
    path = Path(name)
    if name and path.is_file():
        return FastTokenizer.read_gguf(path)
    if name and path.is_dir() and (read := FastTokenizer.read(path)) is not None:
        return read
    if not name:
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name, local_files_only=True)
