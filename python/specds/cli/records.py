"""How does a record of options become options of a command: each field one, written once."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from specds.cli.arguments import listed, size

_FLAGS = {
    "text_field": "--field",
    "language": "--lang",
    "max_documents": "--limit-documents",
    "max_tokens": "--limit-tokens",
    "drop_duplicates": "--drop-duplicates/--keep-duplicates",
    "datastores": "--datastore",
    "drafters": "--drafter",
    "budgets": "--budget",
    "baselines": "--baseline",
    "batches": "--batch",
}
"""The fields whose option has a name of its own."""

_METAVARS = {
    "max_tokens": "TOKENS",
    "max_shard_tokens": "TOKENS",
    "prior_tokens": "TOKENS",
    "memory_tokens": "TOKENS",
    "max_new_tokens": "TOKENS",
    "top_k": "TOKENS",
    "max_documents": "DOCUMENTS",
    "max_memory": "BYTES",
    "sample": "SHARE",
    "top_p": "SHARE",
    "include": "PATTERN",
    "exclude": "PATTERN",
    "drafters": "NAME,...",
    "baselines": "NAME,...",
    "modes": "NAME,...",
    "budgets": "NODES,...",
    "batches": "PROMPTS,...",
    "datastores": "FOLDER,...",
    "datastore": "FOLDER|NAME",
    "transcripts": "FILE",
    "memory": "FILE",
    "weights": "FILE",
    "limit": "REQUESTS",
    "runs": "RUNS",
    "ray_address": "ADDRESS",
}

_PANELS = {
    "Limits": ("max_documents", "max_tokens", "sample", "limit"),
    "Resources": ("max_memory", "max_shard_tokens", "engine", "ray_address", "device", "dtype"),
    "Reading the corpus": (
        *("text_field", "messages_field", "language", "config", "split", "revision"),
        *("on_bad_row", "include", "exclude"),
    ),
    "What is measured": (
        *("transcripts", "datastores", "drafters", "budgets", "baselines", "modes", "batches"),
        *("model", "tokenizer", "max_new_tokens"),
    ),
    "Drafting": ("datastore", "weights", "memory", "tenant", "model_tables", "verification"),
    "Sampling": ("temperature", "top_k", "top_p", "seed"),
}
_PANEL_OF = {name: panel for panel, names in _PANELS.items() for name in names}


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
    read as sizes: ``2.5M``; what a sequence holds is given between commas, or one by one. The
    command gets the record whole.

    Args:
        command: Its annotations must be there when it is defined.
    """
    parameters = inspect.signature(command).parameters.values()
    options = {p.name: list(_options_of(p.annotation)) for p in parameters if _record(p.annotation)}

    @wraps(command)
    def spread(**given: Any) -> None:
        for name, of_record in options.items():
            record: Any = _record(inspect.signature(command).parameters[name].annotation)
            values = {option.name: given.pop(option.name) for option in of_record}
            for key, value in values.items():
                if isinstance(value, list):  # each of them read by `_several`, or a text
                    parts = ([each] if isinstance(each, str) else each for each in value)
                    values[key] = tuple(chain.from_iterable(parts))
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


def arguments_of(record: Any, *names: str) -> list[str]:
    """The arguments of a command line that give these fields of a record their values."""
    given: list[str] = []
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name not in names or value == field.default:
            continue
        flag = _FLAGS.get(field.name, "--" + field.name.replace("_", "-"))
        if isinstance(value, bool):
            given.append(flag.split("/")[0 if value else -1])
            continue
        for each in value if isinstance(value, tuple) else (value,):
            given += [flag, str(each)]
    return given


def _record(annotation: Any) -> Any:
    """The dataclass that an annotation names, or None."""
    named = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return named if is_dataclass(named) else None


def _options_of(annotation: Any) -> Iterator[inspect.Parameter]:
    record = _record(annotation)
    marks = get_args(annotation)[1:]
    hints, helps = get_type_hints(record, include_extras=True), _helps(record)
    for field in fields(record):
        if any((field.name in mark.names) is isinstance(mark, Without) for mark in marks):
            continue
        default: Any = field.default
        if get_origin(hints[field.name]) is Annotated:  # it says itself how it is read
            yield _parameter(field.name, default, hints[field.name])
            continue
        kind, settings = _kind(hints[field.name])
        settings |= {"metavar": _METAVARS.get(field.name, _usual_metavar(hints[field.name]))}
        is_required = default is MISSING
        settings |= {"rich_help_panel": None if is_required else _PANEL_OF.get(field.name)}
        flag = _FLAGS.get(field.name, "--" + field.name.replace("_", "-"))
        if kind is bool and default and "/" not in flag:
            flag += "/--no-" + flag.removeprefix("--")
        option = typer.Option(flag, help=helps.get(field.name), **settings)
        default = list(default) if isinstance(default, tuple) else default
        yield _parameter(field.name, default, Annotated[kind, option])


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    if default is MISSING:
        default = inspect.Parameter.empty
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _kind(hint: Any) -> tuple[Any, dict[str, Any]]:
    """What typer takes for a type that it does not know, and how to read it."""
    if get_origin(hint) is tuple:
        return list[str], {}
    for sequence in (hint, *get_args(hint)):
        if get_origin(sequence) is Sequence:
            held = get_args(sequence)[0]
            return list[Any], {
                "parser": _several(_number if int in (held, *get_args(held)) else held)
            }
    if hint is int or (isinstance(hint, UnionType) and int in get_args(hint)):
        return hint, {"parser": size}
    return hint, {}


def _several(read: Callable[[str], Any]) -> Callable[[Any], list[Any]]:
    """Reads what is between commas, unless it is the name of a file; a default is read already."""

    def several(given: Any) -> list[Any]:
        if not isinstance(given, str):
            return [given]
        return list(map(read, [given] if Path(given).is_file() else listed(given)))

    return several


def _number(text: str) -> int | str:
    return text if text == "auto" else size(text)


def _usual_metavar(hint: Any) -> str | None:
    if hint is bool:
        return None
    if get_origin(hint) is Literal:
        return "|".join(get_args(hint))
    return "NUMBER" if {int, float} & {hint, *get_args(hint)} else "NAME"


def _helps(record: Any) -> dict[str, str]:
    """What the docstring of a record says of its fields."""
    helps: dict[str, str] = {}
    for described in reversed(record.__mro__[:-1]):
        text = inspect.cleandoc(described.__doc__ or "")
        section = text.partition("Attributes:\n")[2].partition("\n\n")[0]
        found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
        helps |= {name: " ".join(help_text.split()) for name, help_text in found}
    return helps
