"""The `specds` command: parsing of arguments, calls of the package, and output.

Each file has a group of commands; `display` draws results. This folder may import all others.
"""

import logging
import re
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from specds import terminal
from specds._core import __version__
from specds._lazy import EXTRAS, advice
from specds.cli import (
    bench,
    check,
    datastore_info,
    datastores,
    display,
    generate,
    request_caches,
    serve,
    share,
)
from specds.cli.help import SETTINGS, HelpCommand, HelpGroup
from specds.cli.records import with_records

__all__ = ["app", "main"]

app = typer.Typer(
    name="specds",
    help="Faster generation with the same output: drafts from a datastore and earlier requests.",
    cls=HelpGroup,
    context_settings=SETTINGS,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_COMMANDS = {
    "Text": (
        generate.generate,
        generate.chat,
        serve.serve,
        generate.demo,
        share.export_generate,
    ),
    "Datastores": (
        datastores.build,
        datastores.add,
        datastores.merge,
        datastores.compact,
        share.push,
        share.pull,
    ),
    "Inspection and benchmarks": (
        datastore_info.info,
        datastore_info.verify,
        datastore_info.lookup,
        datastore_info.view,
        check.check,
        check.list_files,
    ),
}
for panel, commands in _COMMANDS.items():
    for command in commands:
        name = command.__name__.partition("_files")[0].replace("_", "-")
        app.command(name, cls=HelpCommand, rich_help_panel=panel)(with_records(command))
_memory = typer.Typer(
    name="memory",
    cls=HelpGroup,
    help="Inspect and edit request caches.",
    context_settings=SETTINGS,
    rich_markup_mode=None,
)
_memory.callback()(lambda: None)
for of_memory in (request_caches.info, request_caches.compact, request_caches.forget):
    _memory.command(cls=HelpCommand)(with_records(of_memory))
app.add_typer(_memory, rich_help_panel="Datastores")
app.add_typer(bench.app, rich_help_panel="Inspection and benchmarks")


_BEGIN = """\
specds demo                                        watch a model write faster
specds chat --model MODEL                          talk to a model of yours
specds build --corpus ./src --tokenizer MODEL --out src.specds
specds --help                                      all commands"""


@app.callback(invoke_without_command=True)
def _options(
    ctx: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --version: what a bug report needs.")
    ] = False,
) -> None:
    if show_version:
        typer.echo(f"specds {__version__}")
        if verbose:
            terminal.out.print(display.two_columns("", check.environment()))
    elif ctx.invoked_subcommand is None:
        terminal.out.print(_BEGIN, soft_wrap=True)
    if ctx.invoked_subcommand is None:
        raise typer.Exit


_INTERRUPTED = 130


def main() -> None:
    """Run the command; an error is one line, exit code 2 for usage and 1 for failure."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a stream can be closed or replaced
            stream.reconfigure(errors="replace")
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except Exception as error:  # any error of a command is shown as one line
        # Only the parser's own errors, of usage, know how to show themselves.
        show = getattr(error, "format_message", None)
        message = show() if show else _one_line(error)
        if message.startswith("Missing option '--model'"):
            message += " Try `--model demo`, a folder, a GGUF file, or a name on the hub."
        terminal.fail(message)
        code = 2 if show else 1
    if code == _INTERRUPTED:  # newer releases of typer return it, older ones raise Abort
        terminal.fail("interrupted")
    sys.exit(code or 0)


def _one_line(error: Exception) -> str:
    return re.sub(r"[^\s:`]{1000,}", lambda name: f"{name[0][:100]}...", _message(error))


def _message(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        return advice(error.name)
    text = " ".join(terminal.text_of_error(error).split())
    expected = isinstance(error, (ValueError, OSError, ImportError)) and text
    return text if expected else f"{type(error).__name__}: {text}"
