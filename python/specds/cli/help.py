"""How is help drawn: text that fits any width, options by what they are about, examples to copy."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import typer
from rich.text import Text

from specds import terminal

_COLUMN, _INDENT = 30, 8
# Narrower terminals have the texts of options beneath their names.
_NARROW = 76
_WIDEST = 110


def show_help(command: Any, context: Any) -> None:
    """Prints the help of a command, or of a group of them."""
    width = min(terminal.out.width, _WIDEST) - 2
    terminal.out.print(Text.assemble(("Usage: ", "bold"), command.get_usage(context)[7:], "\n"))
    about, *examples = re.split(r"^Examples?:\n", command.help or "", flags=re.MULTILINE)
    for paragraph in re.split(r"\n\n+", about.strip()):
        _print("\n".join(_wrapped(paragraph, width)) + "\n")
    for commands in examples:
        _title("Examples")
        for example in re.split(r"\n\n+", commands.strip()):
            _print("\n".join(_shell(example, width - 2)))
        _print("")
    for title, entries in _panels(command, context).items():
        _title(title)
        for names, text in entries:
            shown = Text("\n".join(_entry(names, text, width)))
            shown.stylize("bold cyan", 2, 2 + len(names))
            terminal.out.print(shown, soft_wrap=True)
        _print("")


class _Drawn:
    def format_help(self, ctx: Any, formatter: Any) -> None:
        show_help(self, ctx)


class Command(_Drawn, typer.core.TyperCommand):
    """A command whose help is drawn here."""


class Group(_Drawn, typer.core.TyperGroup):
    """A group of commands whose help is drawn here; `help COMMAND` is `COMMAND --help`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, [*args[1:], "-h"] if args[0] == "help" else args)


def _panels(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Names and texts by the title that they stand under."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, below in getattr(command, "commands", {}).items():
        title = getattr(below, "rich_help_panel", None)
        text = (below.help or "").partition("\n\n")[0]
        panels.setdefault(title if isinstance(title, str) else "Commands", []).append((name, text))
    for parameter in command.get_params(context):
        names, text = parameter.get_help_record(context)
        usual = "Required" if parameter.required else "Options"
        if parameter.param_type_name == "argument":
            names, usual = parameter.metavar or parameter.name.upper(), "Arguments"
        title = getattr(parameter, "rich_help_panel", None) or usual
        panels.setdefault(title, []).append((names, text))
    order = {"Arguments": -2, "Required": -1, "Options": 1}
    return dict(sorted(panels.items(), key=lambda panel: order.get(panel[0], 0)))


def _entry(names: str, text: str, width: int) -> Iterator[str]:
    """The lines of one option."""
    column = _COLUMN if width >= _NARROW else _INDENT
    lines = _wrapped(text, width - column)
    head = f"  {names}"
    if lines and len(head) + 2 <= column:
        head = head.ljust(column) + lines.pop(0)
    yield head
    yield from (" " * column + line for line in lines)


def _shell(example: str, width: int) -> Iterable[str]:
    """A command that can be copied, whatever the width."""
    # What is quoted stays on its line.
    whole = re.sub(r'"[^"]*"', lambda quoted: quoted[0].replace(" ", "\0"), example)
    lines = _wrapped(whole, width - 6)
    for number, line in enumerate(lines):
        more = " \\" if number + 1 < len(lines) else ""
        yield f"  {'    ' if number else ''}{line}{more}".replace("\0", " ")


def _wrapped(text: str, width: int) -> list[str]:
    plain = " ".join(text.replace("`", "").split())
    return textwrap.wrap(plain, width, break_long_words=False, break_on_hyphens=False)


def _title(text: str) -> None:
    terminal.out.print(Text(text, "bold"))


def _print(text: str) -> None:
    terminal.out.print(Text(text), soft_wrap=True)
