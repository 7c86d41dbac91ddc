"""The commands of `specds chat` that change the conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specds import terminal
from specds.cli.chat_input import answer

if TYPE_CHECKING:
    from specds.cli.chat_input import Command, Line
    from specds.generation import Chat


class ChatCommands:
    """Commands of a conversation, by name in `by_name`.

    Attributes:
        shows_stats: Whether a line of figures follows each reply.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._kept = chat.messages  # by a file
        self.shows_stats = True
        commands = (
            *(self.clear, self.retry, self.undo, self.drop, self.system, self.tool),
            *(self.save, self.load),
        )
        self.by_name: dict[str, Command] = {f"/{each.__name__}": each for each in commands}
        self.by_name["/stats"] = self.switch_stats

    def clear(self, _: str = "") -> None:
        self._chat.clear()
        terminal.note("a new conversation")

    def retry(self, _: str) -> Line:
        """Remove the last turn and return its message."""
        return self._remove_last_turn()

    def undo(self, _: str) -> None:
        said = str(self._remove_last_turn()["content"]).splitlines()[0]
        terminal.note(f"removed: {said[:60]}")

    def drop(self, _: str) -> None:
        if not self._chat.drop_oldest():
            raise ValueError("no reply yet")
        left = self._chat.tokens_left
        of_context = "" if left is None else f": {terminal.counted(left, 'token')} are left"
        terminal.note(f"dropped the oldest message and its reply{of_context}")

    def note_context(self) -> None:
        """Note that the context is full, or that less than a quarter of it is left."""
        left, whole = self._chat.tokens_left, self._chat.context_length
        if whole is None or left is None:
            return
        if self._chat.finish_reason == "context":
            terminal.note(f"ended: {full_context(whole)}: {_REMEDY}")
        elif 4 * left < whole:
            terminal.note(f"{left:,} of the {whole:,} tokens of the context are left: {_REMEDY}")

    def system(self, text: str) -> None:
        self._chat.first_messages = [{"role": "system", "content": text}] if text else []
        self._chat.clear()

    def tool(self, text: str) -> Line:
        """Return the message of a tool's result."""
        return {"role": "tool", "content": text}

    def save(self, name: str) -> None:
        _require_name(name)
        content = json.dumps({"messages": self._chat.messages}, indent=2, ensure_ascii=False)
        Path(name).write_text(content + "\n", encoding="utf-8")
        self._kept = self._chat.messages
        terminal.note(f"saved to {name}")

    def offer_to_save(self) -> None:
        """Ask for a file for a conversation that no file has; an empty answer discards it."""

        def is_unsaved() -> bool:
            roles = [message["role"] for message in self._chat.messages]
            return self._chat.messages != self._kept and "assistant" in roles

        while is_unsaved():
            name = answer("Save the conversation to which file? (Enter: do not save) ")
            if not name:
                return
            try:
                self.save(name)
            except OSError as error:
                terminal.note(terminal.text_of_error(error))

    def load(self, name: str) -> None:
        _require_name(name)
        try:
            messages = json.loads(Path(name).read_text(encoding="utf-8"))["messages"]
            known = [{**each, "role": str(each["role"])} for each in messages]
        except (KeyError, TypeError, ValueError, RecursionError):
            raise ValueError(f"{name} is not a conversation that /save wrote") from None
        self._chat.clear()
        self._chat.messages = self._kept = known
        terminal.note(terminal.counted(len(known), "message"))

    def switch_stats(self, _: str) -> None:
        self.shows_stats = not self.shows_stats
        terminal.note(f"all replies: {self._chat.stats}")

    def _remove_last_turn(self) -> dict[str, Any]:
        nothing: dict[str, Any] = {"role": ""}
        *before, message, reply = nothing, nothing, *self._chat.messages
        if message["role"] not in ("user", "tool") or reply["role"] != "assistant":
            raise ValueError("no reply yet")
        self._chat.messages = before[2:]
        return message


_REMEDY = "/drop drops the oldest message and its reply, /clear all"


def full_context(length: int) -> str:
    return f"context of {length:,} tokens is full"


def _require_name(name: str) -> None:
    if not name:
        raise ValueError("name a file")
