"""Conversion of rows to documents, and errors of rows without one."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from specds.corpora.document import CorpusError, CorpusOptions, Document, Item, Skipped, sift
from specds.corpora.messages import Conversation
from specds.corpora.rendering import Render, Template, missing
from specds.corpora.requests import MESSAGES_FIELDS, READ_FIELDS, conversation_of, is_session

TEXT_FIELDS = ("text", "content", "completion", "response", "answer", "output")
"""Fields of a text, likewise; a `prompt` precedes its `completion`."""

_READ_FIELDS = {*READ_FIELDS, *TEXT_FIELDS, "prompt"}

NumberedRow: TypeAlias = "tuple[int, Any, int]"
"""The number of a row, the row or the `BadRowError` in its place, and the size read for it."""
Spent: TypeAlias = "Callable[[], int]"
"""A function that returns the number of bytes that were read since its last call."""


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
                text, talk = _text_of(row, self.options, self.render)
            except ValueError as error:
                if self.options.on_bad_row == "fail":
                    fields = columns or (row if isinstance(row, dict) else ())
                    message = f"{self.place}{number}: {error}{_remedy(fields)}"
                    raise CorpusError(message) from error
                reason = error.reason if isinstance(error, BadRowError) else str(error)
                yield Skipped(f"{self.name}:{number}", f"bad row: {reason}", num_bytes)
            else:
                name = f"{self.name}:{number}"
                unwritten = tuple(sorted(missing(talk, text))) if talk else ()
                yield Document(name, text, num_bytes, unwritten)
                if not talk or not isinstance(self.render, Template):
                    continue
                if calls := self.render.calls_with_text(talk.messages, talk.tools):
                    yield Document(f"{name} (arguments as text)", calls, 0)


def _text_of(row: Any, options: CorpusOptions, render: Render) -> tuple[str, Conversation | None]:
    """Return the text of a row, and the conversation that it was written from."""
    if isinstance(row, BadRowError):
        raise row
    if not isinstance(row, dict):
        raise BadRowError(f"{type(row).__name__}, expected an object")
    chosen = options.messages_field or options.text_field
    if chosen in row and row[chosen] is None:
        return "", None
    if options.text_field is not None:
        text = row.get(options.text_field)
        if not isinstance(text, str):
            found = f" but {type(text).__name__}" if options.text_field in row else ""
            raise BadRowError(f"no text{found} in `{options.text_field}`")
        return text, None
    talk = _conversation(row, options.messages_field)
    if talk is not None:
        tools = {"tools": talk.tools} if talk.tools else {}
        return render(talk.messages, **tools), talk
    for field in TEXT_FIELDS:
        text = row.get(field)
        if isinstance(text, str):
            prompt = row.get("prompt") if field == "completion" else None
            return (prompt + text if isinstance(prompt, str) else text), None
    for field in (*MESSAGES_FIELDS, *TEXT_FIELDS):
        if field in row:
            if row[field] is None:
                return "", None
            raise BadRowError(f"no text but {type(row[field]).__name__} in `{field}`")
    raise BadRowError("neither a text nor a conversation in a field of a usual name")


def _conversation(row: dict[str, Any], field: str | None) -> Conversation | None:
    try:
        return conversation_of(row, field)
    except ValueError as error:
        names = (name for name in MESSAGES_FIELDS if name in row)
        place = field or next(names, None)
        raise BadRowError(f"{error} in `{place}`" if place else str(error)) from error


def whole_sessions(rows: Iterable[NumberedRow]) -> Iterator[NumberedRow]:
    """Join the rows of each session of an agent to one row; other rows are left as they are."""
    rows = iter(rows)
    for first in rows:
        if not is_session(first[1]):
            yield first
            continue
        events, size = list[dict[str, Any]](), 0
        for number, row, num_bytes in chain([first], rows):
            if isinstance(row, BadRowError):  # the last line, while the agent writes it
                yield number, row, num_bytes
            else:
                events.extend([row] if isinstance(row, dict) else [])
                size += num_bytes
        names = (row["sessionId"] for row in events if "sessionId" in row)
        name = next(names, None)
        sessions: dict[Any, list[Any]] = {}
        for row in events:
            name = row.get("sessionId", name)
            sessions.setdefault((name, bool(row.get("isSidechain"))), []).append(row)
        for number, session in enumerate(sessions.values(), 1):
            yield number, {"trace": session}, size if number == 1 else 0


def _remedy(fields: Iterable[str]) -> str:
    names = ", ".join(f"`{field}`" for field in fields)
    skip = "skip bad rows with --on-bad-row skip"
    if not names:
        return f" ({skip})"
    return f"; its fields: {names} (choose one with --text-field or --messages-field, or {skip})"
