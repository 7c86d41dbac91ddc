"""Output to a terminal: lines and errors, drawn by rich; `progress` draws bars."""

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

# A terminal obeys controls, and C1 controls too; marks of direction show text in another order.
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}
_OTHERS = (range(0x80, 0xA0), range(0x202A, 0x202F), range(0x2066, 0x206A), range(0xD800, 0xE000))
_PICTURES = _CONTROLS | dict.fromkeys((*chain(*_OTHERS), 0x061C, 0x200E, 0x200F), 0xFFFD)


class LiteralConsole(Console):
    """A console that prints text from files, models and users literally.

    Brackets are not markup, and control characters are replaced by visible symbols. With
    `NO_COLOR`, texts are not dim or bold either.
    """

    def __init__(self, **settings: Any) -> None:
        if os.environ.get("NO_COLOR"):
            settings["color_system"] = None
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_text = segment.control is None
            yield segment._replace(text=segment.text.translate(_PICTURES)) if is_text else segment


out = LiteralConsole()
err = LiteralConsole(stderr=True)


def print_json(value: Any, *, is_line: bool = False) -> None:
    sys.stdout.write(json.dumps(value, indent=None if is_line else 2) + "\n")


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the fields of rows that are single values, with a header."""
    fields = chain.from_iterable(row.items() for row in rows)
    nested = {name for name, value in fields if isinstance(value, (dict, list))}
    names = [name for name in rows[0] if name not in nested] if rows else []
    writer = csv.DictWriter(sys.stdout, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def text_of_error(error: BaseException) -> str:
    """Return the text of an error; one of the operating system begins with the file."""
    if isinstance(error, OSError) and error.filename and error.errno:
        return f"{error.filename}: {os.strerror(error.errno).lower()}"
    return str(error)


def fail(message: str) -> None:
    err.print(Text.assemble(("error", "bold red"), ": ", message), soft_wrap=True)


def note(message: str) -> None:
    err.print(Text.assemble(("note", "bold cyan"), ": ", message), soft_wrap=True)


def waiting(message: str) -> AbstractContextManager[Any]:
    """Show a message on standard error while the context is active."""
    # rich imports a third of itself for it, which help does without.
    return err.status(Text(message))


def quantity(value: float, unit: str = "") -> str:
    """Format a number with three digits, a decimal prefix and a unit: ``12.3 M``, ``108 B``."""
    for prefix in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return f"{value:.3g} {(prefix + unit).strip()}".rstrip()
        value /= 1000
    return f"{value:.3g} T{unit}"


def counted(number: int, what: str) -> str:
    """Format a count with its noun: ``1 token``, ``2,000 tokens``."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """Format a duration: ``3 h 5 min``, ``42 s``, ``0.2 s``."""
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
