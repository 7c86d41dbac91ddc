"""What several commands take."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from specds.drafters import DrafterName
from specds.hierarchy.registry import drafter_name

if TYPE_CHECKING:
    from specds.hierarchy.registry import HierarchyName

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
DatastorePath = Annotated[Path, typer.Argument(help="A folder made by `specds build`.")]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size(text: str | int) -> int:
    """A number of bytes or tokens: ``4000000``, ``2.5M``, ``8GB``, ``8GiB``."""
    match = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?)(i?)b?\s*", str(text), re.IGNORECASE)
    try:
        number, unit, binary = match.groups() if match else ("", "", "")
        scale = (_BINARY if binary else _UNITS)[unit.lower()]
        return int(float(number) * scale)
    except (KeyError, ValueError):
        raise typer.BadParameter(f"`{text}` is no size: try 500M, 8GB or 8GiB") from None


def budget(text: str | int) -> int | Literal["auto"]:
    """The nodes of a draft: ``auto`` or a number."""
    if text == "auto":
        return "auto"
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise typer.BadParameter(f"`{text}` is no budget: try auto, or a number of nodes from 0 on")
    return number


Budget = Annotated[
    Any,
    typer.Option(
        parser=budget,
        metavar="auto|NODES",
        help="Nodes of a draft that are verified. `auto`: what the drafter's paper says; else in "
        "each step what pays, by the measured time of a step.",
    ),
]


Weights = Annotated[
    str | None,
    typer.Option(
        help="What the fused drafter starts from: a file made by `specds fit`, or `none`. "
        "[default: what is kept with the datastore]"
    ),
]


def drafter(text: str) -> DrafterName | HierarchyName:
    """A drafter of one model by its name, or a hierarchy such as ``hierarchy:small,middle``."""
    try:
        return drafter_name(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def drafter_of_one(text: str) -> DrafterName:
    """A drafter of one model by its name."""
    try:
        return DrafterName.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def text_of(argument: str) -> str:
    """The text of an argument; `-` reads standard input."""
    return sys.stdin.read() if argument == "-" else argument


def listed(text: str) -> list[str]:
    """The different parts of a text between its commas."""
    parts = (part.strip() for part in text.split(","))
    return list(dict.fromkeys(part for part in parts if part))
