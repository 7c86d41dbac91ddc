"""Input of a chat: messages of one or more lines, and commands such as `/clear`."""

import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from specds import terminal
from specds.cli.arguments import utf8

Line: TypeAlias = str | dict[str, str]
"""A text of the user, or a message with its role."""
Command: TypeAlias = Callable[[str], Line | None]
"""A command of the chat: takes the rest of its line, and may return a message to send."""

_COMMANDS = {
    "/clear": "start a new conversation",
    "/retry": "reply to the last message again",
    "/undo": "remove the last message and its reply",
    "/drop": "drop the oldest message and its reply, to have room in the context",
    "/system TEXT": "set the system message, and start a new conversation",
    "/tool TEXT": "send the result of a tool",
    "/save FILE": "write the conversation to a file",
    "/load FILE": "continue the conversation of a file",
    "/stats": "show or hide the line of figures after each reply",
    "/help": "show this",
    "/exit": "end, as /quit and Ctrl-D do",
}
_QUOTES = '"""'
_KEYS = f"{_QUOTES} begins and ends a text of several lines, Ctrl-C stops a reply, Ctrl-D ends"


def messages(commands: Mapping[str, Command], banner: str = "") -> Iterator[Line]:
    """Yield the user's messages until the end of input.

    A message is a line, a text that was pasted, or what stands between triple quotes. A command
    such as `/clear` is looked up in `commands`. A terminal shows `banner` and a line of hints
    first; Ctrl-C there cancels the line or the text between quotes, and twice in a row ends the
    input.
    """
    prompts = "", ""
    if is_typed():
        prompts = "> ", "... "
        _keep_pasted_lines_together()
        terminal.err.print(f"{banner}\n/help lists the commands. {_KEYS}.", soft_wrap=True)
    for said in _texts(*prompts):
        command = re.match(r"/[a-z]+(?=\s|$)", said)
        if command is None or "\n" in said:
            yield said
        elif command[0] in ("/exit", "/quit"):
            return
        elif command[0] == "/help":
            rows = (f"{name:14}{about}" for name, about in _COMMANDS.items())
            terminal.err.print("\n".join([*rows, _KEYS]), soft_wrap=True)
        elif command[0] in commands:
            try:
                again = commands[command[0]](said[command.end() :].strip())
            except (OSError, ValueError) as error:
                terminal.note(terminal.text_of_error(error))
                continue
            if again is not None:
                yield again
        else:
            terminal.note(f"no command `{command[0]}`: try /help, or begin a message with a space")


def answer(question: str) -> str:
    """Return a line that is typed after a question; Ctrl-C and Ctrl-D answer with an empty one."""
    try:
        return utf8(_line(question)).strip()
    except (EOFError, KeyboardInterrupt):
        terminal.out.print()
        return ""


def is_typed() -> bool:
    """Return whether messages are typed into a terminal."""
    return bool(sys.stdin) and sys.stdin.isatty()


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore each Ctrl-C that neither a line nor a reply handles, if messages are typed.

    One that arrives when a reply has just ended was meant for the reply.
    """
    if not is_typed():
        yield
        return
    before = signal.signal(signal.SIGINT, _ignore)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _ignore(*_: Any) -> None:
    pass


def _line(prompt: str) -> str:
    if not is_typed():
        return input(prompt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(prompt)
    finally:
        signal.signal(signal.SIGINT, before)


def _texts(prompt: str, next_prompt: str) -> Iterator[str]:
    """Lines, and texts between quotes, without empty ones."""
    was_canceled = False
    while True:
        text = ""
        try:
            text = _line(prompt)
            while text.startswith(_QUOTES) and not text[len(_QUOTES) :].rstrip().endswith(_QUOTES):
                text += "\n" + _line(next_prompt)
        except EOFError:
            if is_typed():
                terminal.out.print()
            if not text:
                return
        except KeyboardInterrupt:
            if not is_typed():
                raise
            terminal.out.print()
            if was_canceled:
                return
            was_canceled = True
            terminal.note("Ctrl-D ends the chat, and so does another Ctrl-C")
            continue
        was_canceled = False
        if text.startswith(_QUOTES):
            text = text.strip().removeprefix(_QUOTES).removesuffix(_QUOTES).strip("\n")
        if text.strip():
            yield utf8(text)


def _keep_pasted_lines_together() -> None:
    """Enable line editing, history, and pasted lines as one text."""
    try:
        import readline
    except ImportError:  # there is none on Windows
        return
    # Some versions disable it by default; editors other than GNU's ignore the setting.
    readline.parse_and_bind("set enable-bracketed-paste on")
