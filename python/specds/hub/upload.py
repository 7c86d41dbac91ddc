"""Uploads of datastores: missing shards and a card, in one commit.

The card is the `README.md` of the repository, with YAML metadata.
"""

import json
import re
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from specds._core import Datastore
from specds.hub.checks import files_of, manifest_of
from specds.hub.client import KIND, api, describe, explained, hub
from specds.hub.names import HubName

CARD = "README.md"
MARK = "<!-- Written by `specds push`"


def card_of(name: HubName, manifest: dict[str, Any], num_bytes: int, license: str | None) -> str:
    """Return the card of a datastore; values of the manifest are escaped."""
    about: dict[str, Any] = {"tags": ["specds", "speculative-decoding"], "viewer": False}
    if license:
        about["license"] = license
    metadata = {
        "corpus": "<br>".join(map(_code, manifest["corpus"])),
        "tokenizer": _code(manifest["tokenizer_name"]),
        "fingerprint of the tokenizer": _code(manifest["tokenizer_fingerprint"]),
        "vocabulary": f"{manifest['vocab_size']:,}",
        "tokens": f"{manifest['num_tokens']:,}",
        "documents": f"{manifest['num_documents']:,}",
        "bytes": f"{num_bytes:,}",
        "build": _code(manifest["build_id"]),
    }
    commands = [f"    {' '.join(command.split())}" for command in manifest.get("commands", ())]
    return (
        (files("specds.hub") / "card.md")
        .read_text(encoding="utf-8")
        .format(
            about="\n".join(f"{key}: {json.dumps(value)}" for key, value in about.items()),
            repository=name.repository,
            name=name,
            metadata="\n".join(f"| {key} | {value} |" for key, value in metadata.items() if value),
            commands="\n".join(["Built by", "", *commands] if commands else []),
        )
    )


def _code(text: str) -> str:
    """Text within a cell of a table, which means nothing there."""
    plain = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""


_OURS = re.compile(r"shard-[0-9a-f]{32}/[a-z]+\.(bin|json)")


def push(
    datastore: str | PathLike[str],
    name: str,
    *,
    private: bool | None = None,
    license: str | None = None,
) -> str:
    """Upload a datastore to the hub in one commit, so that readers see the old one or the new one.

    Shards that the hub has are not uploaded again. Readers of the datastore can read its corpus.

    Args:
        name: ``org/name``, or ``org/name@branch``; it is created if it does not exist.
        private: Visibility of a new repository; by default that of the account.
        license: License of the corpus, as the hub abbreviates it: ``apache-2.0``, ``cc-by-4.0``,
            ...

    Returns:
        The URL of the commit.

    Raises:
        FormatError: The datastore is damaged; nothing is uploaded.
        OSError: The account has no write access, the hub cannot be reached, or its new commit lacks
            files; repeating the call resumes the upload.
    """
    folder, parsed = Path(datastore), HubName.parse(name)
    if parsed is None:
        raise ValueError(f"`{name}` is not a name on the hub: try org/name")
    manifest = manifest_of(folder)
    Datastore(folder).verify(checksums_only=True)
    client, add = api(), hub().CommitOperationAdd
    with explained(parsed):
        client.create_repo(parsed.repository, private=private, exist_ok=True, **KIND)
        if parsed.revision != "main":
            client.create_branch(parsed.repository, branch=parsed.revision, exist_ok=True, **KIND)
        commit, present = describe(parsed)
        listed = [file for file, _ in files_of(folder) if (folder / file).exists()]
        sizes = {file: (folder / file).stat().st_size for file in listed}
        operations = [
            add(file, folder / file)
            for file in listed
            if not (_OURS.fullmatch(file) and present.get(file) == sizes[file])
        ]
        operations += [
            hub().CommitOperationDelete(file)
            for file in sorted(present.keys() - sizes.keys())
            if _OURS.fullmatch(file)
        ]
        if _is_our_card(parsed, commit, present):
            card = card_of(parsed, manifest, sum(sizes.values()), license)
            operations.append(add(CARD, card.encode()))
        made = client.create_commit(
            parsed.repository,
            operations,
            commit_message=f"Datastore {manifest['build_id'][:12]}",
            revision=parsed.revision,
            parent_commit=commit,
            **KIND,
        )
        _, present = describe(HubName(parsed.repository, str(made.oid)))
    missing = [file for file in listed if present.get(file) != sizes[file]]
    if missing:
        raise ConnectionError(
            f"the hub accepted `{parsed}`, but its commit {made.oid} lacks {len(missing)} of "
            f"{len(listed)} files, such as {missing[0]}: repeat `specds push`"
        )
    return str(made.commit_url)


def _is_our_card(name: HubName, commit: str, present: dict[str, int]) -> bool:
    """Return true if the card may be written: it is missing, or `push` wrote it."""
    if CARD not in present:
        return True
    path = hub().hf_hub_download(name.repository, CARD, revision=commit, **KIND)
    return MARK in Path(path).read_text(encoding="utf-8", errors="replace")
