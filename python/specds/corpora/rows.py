"""Conversion of rows to documents, and errors of rows without one."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from specds.corpora.document import CorpusError, CorpusOptions, Document, Item, Skipped, sift
from specds.models.tokenization import Tokenizer

Messages: TypeAlias = "list[dict[str, str]]"
Render: TypeAlias = "Callable[[Messages], str]"
"""Turns messages of `role` and `content` into text; a `ValueError` makes it a bad row."""

_ROLES = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "model": "assistant",
}


def conversation(value: Any) -> Messages:
    """Return the messages of a conversation in one of the usual formats.

    These are lists of objects with `role` and `content` (OpenAI; the content may be a list of text
    parts) or with `from` and `value` (ShareGPT), and lists of alternating strings (UltraChat).
    """
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"no conversation but {type(value).__name__}")
    return [_message(message, index) for index, message in enumerate(value)]


def _message(message: Any, index: int) -> dict[str, str]:
    if isinstance(message, str):
        return {"role": ("user", "assistant")[index % 2], "content": message}
    if not isinstance(message, dict):
        raise ValueError(f"a message is {type(message).__name__}")
    role = message.get("role") or message.get("from")
    content = message["content"] if "content" in message else message.get("value")
    if not isinstance(role, str):
        raise ValueError("a message without `role` or `from`")
    return {"role": _ROLES.get(role.lower(), role.lower()), "content": _content(content)}


def _content(content: Any) -> str:
    if content is None:  # a message that only calls tools
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    raise ValueError("a message without text in `content` or `value`")


def plain(messages: Messages) -> str:
    """Join the messages, one per line, without roles, which a model does not generate."""
    return "\n".join(message["content"] for message in messages)


@dataclass(frozen=True)
class _Template:
    tokenizer: Tokenizer

    def __call__(self, messages: Messages) -> str:
        from jinja2 import TemplateError

        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False))
        except TemplateError:
            return plain(messages)


def render_with(tokenizer: Tokenizer) -> Render:
    """Return a renderer that applies a tokenizer's chat template.

    Without a chat template, or if the template rejects a conversation (such as one that the
    assistant begins), the messages are joined, one per line.
    """
    return _Template(tokenizer) if tokenizer.chat_template else plain


MESSAGES_FIELDS = ("messages", "conversations", "conversation", "data")
"""Fields of a conversation, the first of which that a row has is read."""

TEXT_FIELDS = ("text", "content", "completion", "response", "answer", "output")
"""Fields of a text, likewise; a `prompt` precedes its `completion`."""

_READ_FIELDS = {*MESSAGES_FIELDS, *TEXT_FIELDS, "prompt"}

NumberedRow: TypeAlias = "tuple[int, Any, int]"
"""The number of a row, the row or the `BadRowError` in its place, and the size read for it."""


class BadRowError(ValueError):
    """A row without a text, with a reason that other bad rows share, and the row's content."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason + detail)
        self.reason = reason


@dataclass(frozen=True)
class RowReader:
    """Converter of rows to documents.

    Attributes:
        place: Beginning of the place in errors: ``a/b.jsonl:``, ``a/b.parquet: row ``.
    """

    name: str
    place: str
    options: CorpusOptions
    render: Render

    def documents(self, rows: Iterable[NumberedRow], columns: Iterable[str] = ()) -> Iterator[Item]:
        """Yield the document of each row, or what was skipped; `columns` are named in errors."""
        return sift(self._items(rows, columns), self.options)

    def columns(self, names: Iterable[str]) -> list[str]:
        """Return the columns of a table to read: known ones, or all if none is known."""
        names = list(names)
        options = self.options
        chosen = options.text_field or options.messages_field
        wanted = {chosen} if chosen else _READ_FIELDS
        return [name for name in names if name in wanted] or names

    def _items(self, rows: Iterable[NumberedRow], columns: Iterable[str]) -> Iterator[Item]:
        for number, row, num_bytes in rows:
            try:
                text = _text_of(row, self.options, self.render)
            except ValueError as error:
                if self.options.on_bad_row == "fail":
                    fields = columns or (row if isinstance(row, dict) else ())
                    message = f"{self.place}{number}: {error}{_remedy(fields)}"
                    raise CorpusError(message) from error
                reason = error.reason if isinstance(error, BadRowError) else str(error)
                yield Skipped(f"{self.name}:{number}", f"bad row: {reason}", num_bytes)
            else:
                yield Document(f"{self.name}:{number}", text, num_bytes)


def _text_of(row: Any, options: CorpusOptions, render: Render) -> str:
    if isinstance(row, BadRowError):
        raise row
    if not isinstance(row, dict):
        raise BadRowError(f"{type(row).__name__}, expected an object")
    chosen = options.messages_field or options.text_field
    if chosen in row and row[chosen] is None:
        return ""
    if options.messages_field is not None:
        return render(_conversation(row, options.messages_field))
    if options.text_field is not None:
        text = row.get(options.text_field)
        if not isinstance(text, str):
            found = f" but {type(text).__name__}" if options.text_field in row else ""
            raise BadRowError(f"no text{found} in `{options.text_field}`")
        return text
    for field in MESSAGES_FIELDS:
        if _may_be_conversation(row.get(field)):
            return render(_conversation(row, field))
    for field in TEXT_FIELDS:
        text = row.get(field)
        if isinstance(text, str):
            prompt = row.get("prompt") if field == "completion" else None
            return prompt + text if isinstance(prompt, str) else text
    for field in (*MESSAGES_FIELDS, *TEXT_FIELDS):
        if field in row:
            if row[field] is None:
                return ""
            raise BadRowError(f"no text but {type(row[field]).__name__} in `{field}`")
    raise BadRowError("neither a text nor a conversation in a field of a usual name")


def _may_be_conversation(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(v, (str, dict)) for v in value)


def _conversation(row: dict[str, Any], field: str) -> list[dict[str, str]]:
    try:
        return conversation(row.get(field))
    except ValueError as error:
        raise BadRowError(f"{error} in `{field}`") from error


def _remedy(fields: Iterable[str]) -> str:
    names = ", ".join(f"`{field}`" for field in fields)
    skip = "skip bad rows with --on-bad-row skip"
    if not names:
        return f" ({skip})"
    return f"; its fields: {names} (choose one with --text-field or --messages-field, or {skip})"
