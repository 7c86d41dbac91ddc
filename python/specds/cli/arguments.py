"""Arguments that several commands share."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from specds._core import Datastore
    from specds.drafters import DrafterName

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print the rows as CSV instead of text.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show all figures.")]
DatastorePath = Annotated[
    Path,
    typer.Argument(
        metavar="DATASTORE", help="A folder made by `specds build`, or `org/name` on the hub."
    ),
]

_MOST = (1 << 63) - 1
_MOST_NODES = 4096
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size(text: str | int) -> int:
    """A number of bytes or tokens: ``4000000``, ``2.5M``, ``8GB``, ``8GiB``."""
    if str(text).strip().startswith("-"):
        raise typer.BadParameter(f"`{text}` is too small: at least 0")
    match = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?)(i?)b?\s*", str(text), re.IGNORECASE)
    try:
        number, unit, binary = match.groups() if match else ("", "", "")
        scale = (_BINARY if binary else _UNITS)[unit.lower()]
        value = int(float(number) * scale)
    except (KeyError, ValueError):
        raise typer.BadParameter(f"`{text}` is not a size: try 500M, 8GB or 8GiB") from None
    if value > _MOST:
        raise typer.BadParameter(f"`{text}` is too large: at most 2^63 - 1")
    return value


def most_nodes(text: str | int) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= _MOST_NODES:
        raise typer.BadParameter(
            f"`{text}` is not a valid node count: try auto, or a number from 0 to {_MOST_NODES:,}"
        )
    return number


def svg(text: str | Path) -> Path:
    """The path of a plot."""
    path = Path(text)
    if path.suffix.lower() != ".svg":
        raise typer.BadParameter(f"plots are SVG files: name it `{path.with_suffix('.svg')}`")
    return path


Plot = Annotated[
    Any,
    typer.Option(
        parser=svg, metavar="FILE.svg", help="Write a bar chart of the rows to this file, as SVG."
    ),
]
MaxNodes = Annotated[
    Any,
    typer.Option(
        parser=most_nodes,
        metavar="auto|NODES",
        rich_help_panel="Drafting",
        help="Maximum nodes of a draft. `auto`: the paper's number for drafters of a paper; "
        "otherwise the number that maximizes throughput at the measured time of a step.",
    ),
]


def drafter(text: str) -> DrafterName:
    import specds.papers  # noqa: F401  (enters `hierarchy` among the names)
    from specds.drafters import DrafterName

    try:
        return DrafterName.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def text_of(argument: str) -> str:
    """The text of an argument; `-` reads standard input."""
    if argument == "-":
        if sys.stdin is None:
            raise ValueError("standard input is closed: give the text as an argument")
        argument = sys.stdin.read()
    return utf8(argument)


def utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text is not UTF-8") from None
    return text


def listed(text: str) -> list[str]:
    """The different parts of a text between its commas."""
    parts = (part.strip() for part in text.split(","))
    return list(dict.fromkeys(part for part in parts if part))


def tokenizer_name(given: str | None, datastore: Datastore) -> str:
    """The tokenizer that was given, or the one that a datastore was built with.

    If that folder is gone, one of its name next to the datastore is used: both may have moved.
    """
    if not given and not datastore.tokenizer_name:
        raise ValueError(f"{datastore.path} names no tokenizer: pass one with --tokenizer")
    named = Path(given or datastore.tokenizer_name)
    moved = (folder / named.name for folder in datastore.path.absolute().parents[:2])
    if not given and named.is_absolute() and not named.exists():
        return next((str(path) for path in moved if path.exists()), datastore.tokenizer_name)
    return given or datastore.tokenizer_name
