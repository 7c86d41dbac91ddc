"""Prompts that are filled in the middle, by the tokens that a model's file names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specds._core import GgufFile
from specds.models.gguf import token_id

# The older name of a field, and the usual spellings of a token.
_SPELLED = {
    "pre": ("prefix", "<|fim_prefix|>", "<fim_prefix>", "<|fim_begin|>", "<PRE>", "[PREFIX]"),
    "suf": ("suffix", "<|fim_suffix|>", "<fim_suffix>", "<|fim_hole|>", "<SUF>", "[SUFFIX]"),
    "mid": ("middle", "<|fim_middle|>", "<fim_middle>", "<|fim_end|>", "<MID>", "[MIDDLE]"),
    "rep": ("", "<|repo_name|>", "<repo_name>", "<reponame>"),
    "sep": ("", "<|file_sep|>", "<file_sep>"),
    "pad": ("", "<|fim_pad|>", "<fim_pad>"),
    "eot": ("", "<|endoftext|>", "<EOT>", "<|end_of_text|>"),
}
_LEAST_ROOM = 128
"""Tokens that other files leave free, at least."""


class FillPrompts:
    """Writes prompts that are filled in the middle.

    Args:
        file: The model's file, if it has one.

    Attributes:
        ends: Tokens that end what is filled in, like those that end any text.
    """

    def __init__(self, tokenizer: Any, file: GgufFile | None, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._marks = {name: self._mark(name, file, vocab_size) for name in _SPELLED}
        marks = (self._marks[name] for name in ("rep", "sep", "pad", "eot"))
        self.ends = frozenset(mark for mark in marks if mark is not None)

    def __bool__(self) -> bool:
        """Return whether the model can fill in the middle."""
        return None not in (self._marks[name] for name in ("pre", "suf", "mid"))

    def token_ids(
        self, before: str, after: str, files: Sequence[tuple[str, str]], most: int
    ) -> list[int]:
        """Return the prompt of a text with a gap, as llama.cpp writes it.

        Args:
            before: The text before the gap.
            after: The text after it.
            files: Names and texts of other files, the nearest ones last.
            most: The most tokens of the prompt; the first ones of the other files are left out.
        """
        pre, suf, mid = (self._marks[name] for name in ("pre", "suf", "mid"))
        prompt: list[Any] = [*self._tokenizer.encode("", add_special_tokens=True)]
        for mark, text in ((pre, before), (suf, after), (mid, "")):
            prompt += [mark, *self._ids(text)]
        others = self._named("rep", "project") if files else []
        for name, text in files:
            others += [*self._named("sep", name), *self._ids(text)]
        others += self._named("sep", "filename") if files else []
        room = max(most - len(prompt) - _LEAST_ROOM, 0)
        return [*others[max(len(others) - room, 0) :], *prompt]

    def _named(self, mark: str, name: str) -> list[Any]:
        number = self._marks[mark]
        return [] if number is None else [number, *self._ids(f"{name}\n")]

    def _ids(self, text: str) -> list[int]:
        return [*self._tokenizer.encode(text, add_special_tokens=False)]

    def _mark(self, name: str, file: GgufFile | None, vocab_size: int) -> int | None:
        older, *spelled = _SPELLED[name]
        if file is not None:
            for key in filter(None, (f"fim_{name}", older, "eot" if name == "eot" else "")):
                if (number := token_id(file, key, vocab_size)) is not None:
                    return number
        found = map(self._tokenizer.backend_tokenizer.token_to_id, spelled)
        return next((number for number in found if number is not None), None)
