"""How does a record of options become options of a command: each field one, written once."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import wraps
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from specds.cli.arguments import size

_FLAGS = {
    "text_field": "--field",
    "language": "--lang",
    "max_documents": "--limit-documents",
    "max_tokens": "--limit-tokens",
    "drop_duplicates": "--drop-duplicates/--keep-duplicates",
}
"""The fields whose option has a name of its own."""


class Only:
    """Marks the fields of a record that a command takes: ``Annotated[Record, Only("a", "b")]``."""

    def __init__(self, *names: str) -> None:
        self.names = names


class Without(Only):
    """Marks the fields of a record that a command does not take."""


def with_records(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its records as options.

    A parameter that is a dataclass becomes an option for each field: its default is the field's,
    its help is what the docstring of the record says of it under ``Attributes``. Whole numbers are
    read as sizes: ``2.5M``. The command gets the record whole.

    Args:
        command: Its annotations must be there when it is defined.
    """
    parameters = inspect.signature(command).parameters.values()
    options = {p.name: list(_options_of(p.annotation)) for p in parameters if _record(p.annotation)}

    @wraps(command)
    def spread(**given: Any) -> None:
        for name, of_record in options.items():
            record: Any = _record(inspect.signature(command).parameters[name].annotation)
            values = {option.name: _plain(given.pop(option.name)) for option in of_record}
            try:
                given[name] = record(**values)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
        command(**given)

    spread.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in parameters
            for option in options.get(parameter.name, [parameter])
        ]
    )
    del spread.__wrapped__
    spread.__annotations__ = {}
    return spread


def _record(annotation: Any) -> Any:
    """The dataclass that an annotation names, or None."""
    named = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return named if is_dataclass(named) else None


def _options_of(annotation: Any) -> Iterator[inspect.Parameter]:
    record = _record(annotation)
    marks = get_args(annotation)[1:]
    hints, helps = get_type_hints(record), _helps(record)
    for field in fields(record):
        if any((field.name in mark.names) is isinstance(mark, Without) for mark in marks):
            continue
        default: Any = field.default
        kind, settings = _kind(field.name, hints[field.name])
        flag = _FLAGS.get(field.name, "--" + field.name.replace("_", "-"))
        if kind is bool and default and "/" not in flag:
            flag += "/--no-" + flag.removeprefix("--")
        option = typer.Option(flag, help=helps.get(field.name), **settings)
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=list(default) if isinstance(default, tuple) else default,
            annotation=Annotated[kind, option],
        )


def _kind(name: str, hint: Any) -> tuple[Any, dict[str, Any]]:
    """What typer takes for a type that it does not know, and how to read it."""
    if get_origin(hint) is Literal:
        return Enum(name, {value: value for value in get_args(hint)}, type=str), {}
    if get_origin(hint) is tuple:
        return list[str], {}
    if hint is int or (isinstance(hint, UnionType) and int in get_args(hint)):
        return hint, {"parser": size}
    return hint, {}


def _plain(value: Any) -> Any:
    """The value of a field that typer has read as something else."""
    if isinstance(value, Enum):
        return value.value
    return tuple(value) if isinstance(value, list) else value


def _helps(record: Any) -> dict[str, str]:
    """What the docstring of a record says of its fields."""
    section = (inspect.getdoc(record) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}
