"""Gives a datastore to others: what the hub lacks of it, and a card, in one commit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from specds._core import Datastore
from specds.hub.card import CARD, MARK, Acceptance, card_of
from specds.hub.checks import files_of, manifest_of
from specds.hub.client import KIND, api, describe, explained, hub
from specds.hub.names import HubName

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

_OURS = re.compile(r"shard-[0-9a-f]{32}/[a-z]+\.(bin|json)|prior-[0-9a-f]{32}\.bin")


def push(
    datastore: str | PathLike[str],
    name: str,
    *,
    private: bool | None = None,
    licence: str | None = None,
    acceptance: Sequence[Acceptance] = (),
) -> str:
    """Uploads a datastore to the hub, where readers see the old one or the new one.

    A shard is named by its contents, so one that is there is not sent again. Whoever can read the
    datastore can read its whole corpus.

    Args:
        datastore: Its folder.
        name: ``org/name``, or ``org/name@branch``; made where it is not there.
        private: Whether a new one is private; by default as the account is set.
        licence: Of the corpus, as the hub abbreviates it: ``apache-2.0``, ``cc-by-4.0``, ...
        acceptance: What was measured with it, for the card.

    Returns:
        The address of the commit.

    Raises:
        ValueError: The name is no name of the hub.
        FormatError: The datastore is damaged: nothing is sent.
        PermissionError: You may not write there.
        ConnectionError: The hub cannot be reached; the same call goes on.
    """
    folder, parsed = Path(datastore), HubName.parse(name)
    if parsed is None:
        raise ValueError(f"`{name}` is no name on the hub: try org/name")
    manifest = manifest_of(folder)
    Datastore.open(folder).verify(checksums_only=True)
    client, add = api(), hub().CommitOperationAdd
    with explained(parsed):
        client.create_repo(parsed.repository, private=private, exist_ok=True, **KIND)
        if parsed.revision != "main":
            client.create_branch(parsed.repository, branch=parsed.revision, exist_ok=True, **KIND)
        commit, present = describe(parsed)
        files = files_of(manifest)
        operations = [
            add(file, folder / file)
            for file in files
            if not (_OURS.fullmatch(file) and present.get(file) == (folder / file).stat().st_size)
        ]
        operations += [
            hub().CommitOperationDelete(file)
            for file in sorted(present.keys() - set(files))
            if _OURS.fullmatch(file)
        ]
        if _is_our_card(parsed, commit, present):
            card = card_of(
                parsed,
                manifest,
                sum((folder / file).stat().st_size for file in files),
                licence,
                acceptance,
            )
            operations.append(add(CARD, card.encode()))
        message = f"Datastore {manifest['build_id'][:12]}"
        made = client.create_commit(
            parsed.repository,
            operations,
            commit_message=message,
            revision=parsed.revision,
            parent_commit=commit,
            **KIND,
        )
    return str(made.commit_url)


def _is_our_card(name: HubName, commit: str, present: dict[str, int]) -> bool:
    """Whether the card may be written: there is none, or it is one of ours."""
    if CARD not in present:
        return True
    path = hub().hf_hub_download(name.repository, CARD, revision=commit, **KIND)
    return MARK in Path(path).read_text(encoding="utf-8", errors="replace")
