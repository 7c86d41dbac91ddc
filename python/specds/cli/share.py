"""Commands that export: push and pull on the hub, export-generate for transformers."""

from pathlib import Path
from typing import Literal

from specds import terminal
from specds.cli.arguments import Json


def push(
    datastore: Path,
    name: str,
    /,
    *,
    private: bool | None = None,
    license: str | None = None,
    as_json: Json = False,
) -> None:
    """Upload a datastore to the Hugging Face hub, with a card.

    Shards that the hub has are not uploaded again. A datastore contains its whole corpus: everyone
    who can read it can read the texts.

    Args:
        datastore (DATASTORE): A folder made by `specds build`.
        name (NAME): `org/name` on the hub, or `org/name@branch`.
        private: Visibility of a new repository; by default that of your account.
        license: License of the corpus, such as `apache-2.0`.

    Example:
        specds push chat.specds org/chat --private --license cc-by-4.0
    """
    from specds import hub

    address = hub.push(datastore, name, private=private, license=license)
    if as_json:
        terminal.print_json({"name": name, "commit": address})
    else:
        terminal.out.print(address)


def pull(name: str, /, *, as_json: Json = False) -> None:
    """Download a datastore from the Hugging Face hub and check it.

    Prints the folder in the hub's cache. Files in the cache are not downloaded again, and an
    interrupted download resumes.

    Args:
        name (NAME): `org/name` on the hub, or `org/name@revision`.

    Example:
        specds pull org/chat
    """
    from specds import hub

    folder = hub.pull(name)
    if as_json:
        terminal.print_json({"name": name, "path": str(folder)})
    else:
        terminal.out.print(str(folder), soft_wrap=True)


def export_generate(
    folder: Path,
    /,
    *,
    datastore: Path | None = None,
    into: Path | None = None,
    on_unsupported: Literal["refuse", "baseline"] = "refuse",
) -> None:
    """Write a `custom_generate` folder, with which transformers generates by specds.

    Args:
        folder (FOLDER): Folder to create.
        datastore (FOLDER): Also draft from this folder made by `specds build`.
        into (FOLDER): Folder of a model to which `custom_generate` is also added.
        on_unsupported: `refuse` unsupported calls, or decode them without drafts (`baseline`).

    Examples:
        specds export-generate ./specds-generate --datastore src.specds
        specds export-generate ./specds-generate --into ./my-model
    """
    from specds.transformers import custom_generate

    if into is not None and not (into / "config.json").exists():
        raise ValueError(f"{into}: no model is there: give a folder with a config.json")
    folders = (folder, into) if into is not None else (folder,)
    for each in folders:
        custom_generate.require_folder(each, datastore)
    for each in folders:
        made = custom_generate.export_generate(each, datastore, on_unsupported=on_unsupported)
        terminal.err.print(f"wrote {made}", markup=False, soft_wrap=True)
