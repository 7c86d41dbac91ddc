"""The `specds` command: reads arguments, calls the package, shows what comes of it.

One file a group of commands; `display` draws results. May import everything.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated

import typer

from specds import terminal
from specds._core import __version__
from specds.cli import bench, build, fit, inspect, run

__all__ = ["app", "main"]

app = typer.Typer(
    name="specds",
    help="Faster language models with the same text: drafts looked up, verified as a tree.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for command in (
    *(build.build, build.add, build.merge, build.compact, fit.fit),
    *(inspect.info, inspect.verify, inspect.lookup),
    *(run.generate, run.demo),
):
    app.command()(command)
app.add_typer(bench.app)


@app.callback(invoke_without_command=True)
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    if show_version:
        typer.echo(f"specds {__version__}")
        raise typer.Exit


_INTERRUPTED = 130


def main() -> None:
    """Runs the command; an error is one line, exit code 2 for usage and 1 for failure."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except Exception as error:  # the last resort of a command: whatever it is, one line
        # Only the parser's own errors, of usage, know how to show themselves.
        show = getattr(error, "format_message", None)
        message = show() if show else _one_line(error)
        if message:  # where help was shown instead, there is none
            terminal.fail(message)
        code = 2 if show else 1
    if code == _INTERRUPTED:  # newer releases of typer return it, older ones raise Abort
        terminal.fail("interrupted")
    sys.exit(code or 0)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.errno:
        return f"{error.filename}: {os.strerror(error.errno).lower()}"
    text = " ".join(str(error).split())
    expected = isinstance(error, (ValueError, OSError, ImportError)) and text
    return text if expected else f"{type(error).__name__}: {text}"
