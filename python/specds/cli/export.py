"""The command that makes transformers generate with specds: export-generate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from specds import terminal

_FOLDER = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder for `custom_generate`.")]


def export_generate(
    folder: _FOLDER,
    datastore: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also draft from this folder made by `specds build`."),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A model's folder that also gets a `custom_generate`."),
    ] = None,
    otherwise: Annotated[
        Literal["refuse", "plain"],
        typer.Option(
            metavar="refuse|plain",
            help="Calls that drafts cannot serve: `refuse` them, or decode `plain`ly.",
        ),
    ] = "refuse",
) -> None:
    """Write a `custom_generate` folder: transformers then generates with specds.

    Examples:
        specds export-generate ./specds-generate --datastore src.specds

        specds export-generate ./specds-generate --into ./my-model

        transformers serve --trust-remote-code ./my-model
    """
    from specds.generation.folder import export_generate as export

    if into is not None and not (into / "config.json").exists():
        raise ValueError(f"{into}: no model is there: give a folder with a config.json")
    for target in (folder, into) if into is not None else (folder,):
        made = export(target, datastore, otherwise=otherwise)
        terminal.err.print(f"wrote {made}", markup=False, soft_wrap=True)
