"""Derivation of typer options from function parameters and dataclass fields."""

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
    "drop_duplicates": "--drop-duplicates/--keep-duplicates",
    "private": "--private/--public",
    "datastores": "--datastore",
    "drafters": "--drafter",
    "baselines": "--baseline",
    "batches": "--batch",
}
"""Flags whose name differs from the field."""

_PANELS = {
    "Limits": ("max_documents", "max_tokens", "sample", "limit"),
    "Resources": ("max_memory", "max_shard_tokens", "engine", "ray_address", "device", "dtype"),
    "Reading the corpus": (
        *("text_field", "messages_field", "language", "config", "split", "revision"),
        *("on_bad_row", "include", "exclude"),
    ),
    "Measurement": (
        *("transcripts", "datastores", "drafters", "max_nodes", "baselines", "modes", "batches"),
        *("model", "tokenizer", "max_new_tokens"),
    ),
    "Drafting": ("datastore", "memory", "tenant", "model_tables", "verification"),
    "Sampling": ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"),
}
_PANEL_OF = {name: panel for panel, names in _PANELS.items() for name in names}


class Without:
    """Annotation of a record without some of its fields: ``Without("a", "b")``."""

    def __init__(self, *names: str) -> None:
        self.names = names


def with_records(command: Callable[..., None]) -> Callable[..., None]:
    """Convert a command for typer: parameters become options, those before ``/`` arguments.

    ``Args`` of its docstring are the help texts, with the metavar in brackets. Integers are parsed
    as sizes: ``2.5M``. Sequences are separated by commas, or the option is repeated. A parameter
    that is a dataclass becomes one option per field, with the help in ``Attributes`` of its
    docstring. Annotations of typer are kept.
    """
    parameters = inspect.signature(command).parameters.values()
    told, options, records = _told(command, "Args"), [], {}
    positional = [each.name for each in parameters if each.kind is each.POSITIONAL_ONLY]
    for each in parameters:
        if record := _record(each.annotation):
            of_record = list(_options_of(each.annotation))
            records[each.name] = record, [option.name for option in of_record]
            options += of_record
        else:
            make = typer.Argument if each.name in positional else typer.Option
            options.append(_option(each.name, each.annotation, each.default, told, make))

    @wraps(command)
    def spread(**given: Any) -> None:
        given = {name: _flat(value) for name, value in given.items()}
        for name, (record, names) in records.items():
            try:
                given[name] = record(**{field: given.pop(field) for field in names})
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
        command(*[given.pop(name) for name in positional], **given)

    spread.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    del spread.__wrapped__
    spread.__annotations__ = {}
    spread.__doc__ = _help_of(command)
    return spread


def _help_of(command: Callable[..., None]) -> str:
    """Return the docstring without its arguments; a mark makes click print examples verbatim."""
    text = re.sub(r"\n+Args:\n(?: {4}.*\n)+", "\n", inspect.cleandoc(command.__doc__ or ""))
    return text.replace("\nExample", "\n\b\nExample")


def _flat(value: Any) -> Any:
    """A list of typer's as a tuple; each of it was read by `_several`, or is one thing."""
    if not isinstance(value, list):
        return value
    return tuple(chain.from_iterable(each if isinstance(each, list) else [each] for each in value))


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
    hints, told = get_type_hints(record, include_extras=True), _told(record, "Attributes")
    for field in fields(record):
        if any(field.name in mark.names for mark in marks):
            continue
        is_required = field.default is MISSING
        default = inspect.Parameter.empty if is_required else field.default
        panel = None if is_required else _PANEL_OF.get(field.name)
        yield _option(field.name, hints[field.name], default, told, rich_help_panel=panel)


def _option(
    name: str,
    hint: Any,
    default: Any,
    told: dict[str, tuple[str, str]],
    make: Callable[..., Any] = typer.Option,
    **settings: Any,
) -> inspect.Parameter:
    if get_origin(hint) is not Annotated:  # else it says itself how it is read
        given, text = told.get(name, ("", ""))
        kind, reading = _kind(hint)
        flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
        if kind is bool and default is True and "/" not in flag:
            flag += "/--no-" + flag.removeprefix("--")
        flags, metavar = [flag] if make is typer.Option else [], given or _usual_metavar(name, hint)
        hint = Annotated[kind, make(*flags, metavar=metavar, help=text, **reading, **settings)]
        default = list(default) if isinstance(default, tuple) else default
    kind_of = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind_of, default=default, annotation=hint)


def _kind(hint: Any) -> tuple[Any, dict[str, Any]]:
    """Return the type that typer needs for a hint, and the settings of its parser."""
    if get_origin(hint) is tuple:
        return list[str], {}
    if sequence := _is_sequence(hint):
        (held,) = get_args(sequence)
        read = _number if int in (held, *get_args(held)) else held
        return list[Any], {"parser": _several(read)}
    if hint is int or (isinstance(hint, UnionType) and int in get_args(hint)):
        return hint, {"parser": size}
    return hint, {}


def _is_sequence(hint: Any) -> Any:
    """The sequence that a type is, or may be."""
    return next((each for each in (hint, *get_args(hint)) if get_origin(each) is Sequence), None)


def _several(read: Callable[[str], Any]) -> Callable[[Any], list[Any]]:
    """Read what is between commas, unless it is the name of a file; a default is read already."""

    def several(given: Any) -> list[Any]:
        if not isinstance(given, str):
            return [given]
        return list(map(read, [given] if Path(given).is_file() else listed(given)))

    return several


def _number(text: str) -> int | str:
    return text if text == "auto" else size(text)


def _usual_metavar(name: str, hint: Any) -> str | None:
    held = {hint, *get_args(hint)}
    if bool in held:
        return None
    if get_origin(hint) is Literal:
        return "|".join(get_args(hint))
    if {int, float} & held:
        kinds = ("tokens", "memory", "documents")
        return next((kind.upper() for kind in kinds if name.endswith(kind)), "NUMBER")
    return "FILE" if Path in held else "NAME,..." if _is_sequence(hint) else "NAME"


def _told(described: Any, section: str) -> dict[str, tuple[str, str]]:
    """Read the metavar and the help of each name from a docstring and those of base classes."""
    told: dict[str, tuple[str, str]] = {}
    for each in reversed(getattr(described, "__mro__", (described,))):
        text = inspect.cleandoc(each.__doc__ or "")
        lines = text.partition(f"{section}:\n")[2].partition("\n\n")[0]
        found = re.findall(r"^ {4}(\w+)(?: \((\S+)\))?: (.*(?:\n {8}.*)*)", lines, re.MULTILINE)
        told |= {name: (metavar, " ".join(said.split())) for name, metavar, said in found}
    return told
