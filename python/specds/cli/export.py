"""The command that makes transformers generate with specds: export-generate."""

from pathlib import Path
from typing import Literal

from specds import terminal


def export_generate(
    folder: Path,
    /,
    *,
    datastore: Path | None = None,
    into: Path | None = None,
    otherwise: Literal["refuse", "plain"] = "refuse",
) -> None:
    """Write a `custom_generate` folder: transformers then generates with specds.

    Args:
        folder (FOLDER): A folder for `custom_generate`.
        datastore (FOLDER): Also draft from this folder made by `specds build`.
        into (FOLDER): A model's folder that also gets a `custom_generate`.
        otherwise: Calls that drafts cannot serve: `refuse` them, or decode `plain`ly.

    Examples:
        specds export-generate ./specds-generate --datastore src.specds

        specds export-generate ./specds-generate --into ./my-model

        transformers serve --trust-remote-code ./my-model
    """
    from specds.generation import folder as generation

    if into is not None and not (into / "config.json").exists():
        raise ValueError(f"{into}: no model is there: give a folder with a config.json")
    folders = (folder, into) if into is not None else (folder,)
    for each in folders:
        generation.require_folder(each, datastore)
    for each in folders:
        made = generation.export_generate(each, datastore, otherwise=otherwise)
        terminal.err.print(f"wrote {made}", markup=False, soft_wrap=True)
