"""Prompts in which the control tokens of untrusted messages are spelled as text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from specds.models.tokenization import encoded

_TRUSTED = ("assistant", "system", "developer")
"""Roles whose messages keep their control tokens: the model and the operator write them."""


class SpelledPrompts:
    """Token ids of conversations in which users and tools cannot write a control token.

    By default, the tokenizer reads a text such as ``<|im_end|>`` within a message as the control
    token that the chat template itself writes. Here, it stays text: what is between two control
    tokens of the template is tokenized without control tokens.

    Args:
        tokenizer: One with a `backend_tokenizer`.

    Raises:
        ValueError: The tokenizer has none.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError("control tokens can be spelled with a fast tokenizer only")
        added = backend.get_added_tokens_decoder().values()
        self._control = {token.content: token for token in added if token.special}
        longest_first = sorted(self._control, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._tokenizer = tokenizer
        self._first, self._later = _without_control(backend)

    def token_ids(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Return the token ids of a conversation.

        Args:
            messages: As in `apply_chat_template`.
            **variables: Its other arguments, such as `tools` and `add_generation_prompt`.
        """
        known = json.dumps([*messages], ensure_ascii=False, default=str)
        # Letters and digits, which no template escapes.
        mark = next(mark for number in count() if (mark := f"spelled{number}mark") not in known)

        def hidden(text: str) -> str:
            return self._pattern.sub(lambda found: mark.join(found[0]), text)

        given = [
            message if message.get("role") in _TRUSTED else _mapped(message, hidden)
            for message in messages
        ]
        text = self._tokenizer.apply_chat_template(given, tokenize=False, **variables)
        return self._encoded(str(text), mark)

    def _encoded(self, text: str, mark: str) -> list[int]:
        """Encode a text; a part that has marks is encoded without control tokens and marks."""
        ids: list[int] = []
        start = end = 0  # of what is not encoded yet, and of the last control token
        before = None
        for found in [*self._pattern.finditer(text), None]:
            part = text[end : found.start() if found else len(text)]
            after = self._control[found[0]] if found else None
            if mark in part:
                ids += self._encode(text[start:end])
                start = end + len(part)
                part = part.lstrip() if before is not None and before.rstrip else part
                part = part.rstrip() if after is not None and after.lstrip else part
                backend = self._first if end == 0 else self._later
                ids += encoded(backend, part.replace(mark, ""), add_special_tokens=False)
            end, before = found.end() if found else end, after
        return ids + self._encode(text[start:])

    def _encode(self, text: str) -> list[int]:
        return [*self._tokenizer.encode(text, add_special_tokens=False)] if text else []


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a message, or a part of it, with its texts changed, but no key and no role."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        rows = value.items()
        return {key: each if key == "role" else _mapped(each, change) for key, each in rows}
    if isinstance(value, (list, tuple)):
        return [_mapped(each, change) for each in value]
    return value


def _without_control(backend: Any) -> list[Any]:
    """Return copies of a tokenizer without control tokens: for the first and for later parts.

    Only the first part may get a space in front.
    """
    import tokenizers

    about = backend.to_str()
    later = about.replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
    copies = [tokenizers.Tokenizer.from_str(each) for each in (about, later)]
    for copy in copies:
        copy.encode_special_tokens = True
    return copies
