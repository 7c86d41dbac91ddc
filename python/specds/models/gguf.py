"""Vocabulary of a GGUF file, read without packages and without weights."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import BinaryIO

MAGIC = b"GGUF"
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
# Far above real files: bounds on the fields, on the bytes of a text, and on the items of a list.
_MOST_FIELDS, _MOST, _MOST_ITEMS = 1 << 16, 1 << 24, {_STRING: 1 << 24, _ARRAY: 1 << 12}


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
        with Path(path).open("rb") as file:
            try:
                fields = _fields(file, Path(path).stat().st_size)
            except (struct.error, UnicodeDecodeError, RecursionError) as error:
                raise ValueError(
                    f"{path} is not a complete GGUF file: download it again"
                ) from error
        tokens = fields.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list) or not all(isinstance(each, str) for each in tokens):
            raise ValueError(f"{path} holds no tokenizer: pass one with --tokenizer")
        if fields.get("tokenizer.ggml.model") == "llama":
            # The original spells spaces alone by SentencePiece's own sign.
            tokens = ["▁" * len(each) if not each.strip(" ") else each for each in tokens]
        template = fields.get("tokenizer.chat_template")
        spelled = {token: number for number, token in enumerate(tokens)}
        return cls(str(path), spelled, template if isinstance(template, str) else None)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.tokens)


def _fields(file: BinaryIO, size: int) -> dict[str, object]:
    """The texts, and the arrays of texts, among the fields; numbers are passed over."""

    def number(kind: str) -> int:
        whole = struct.Struct(f"<{kind}")
        return whole.unpack(file.read(whole.size))[0]  # type: ignore[no-any-return]

    def text() -> str:
        length = number("Q")
        if length > min(size - file.tell(), _MOST):
            raise struct.error
        return file.read(length).decode()

    def value(kind: int) -> object:
        if kind == _STRING:
            return text()
        if kind == _ARRAY:
            held, count = number("I"), number("Q")
            if count > min(size - file.tell(), _MOST_ITEMS.get(held, size)):
                raise struct.error
            if held in _NUMBERS:
                file.seek(count * struct.calcsize(f"<{_NUMBERS[held]}"), 1)
                return None
            return [value(held) for _ in range(count)]
        if kind not in _NUMBERS:
            raise struct.error
        number(_NUMBERS[kind])
        return None

    if file.read(4) != MAGIC:
        raise struct.error
    number("I")  # the version
    num_tensors = number("Q")
    num_fields = number("Q")
    if num_fields > _MOST_FIELDS:
        raise struct.error
    fields = {text(): value(number("I")) for _ in range(num_fields)}
    last = 0
    for _ in range(num_tensors):
        text()
        file.seek(8 * number("I") + 4, 1)  # its shape and its type
        last = max(last, number("Q"))
    if num_tensors and file.tell() + last >= size:
        raise struct.error  # the last tensor begins after the end
    return fields
