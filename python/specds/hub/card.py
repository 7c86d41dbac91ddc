"""What people read of a datastore before they pull it: `README.md`, with its YAML."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specds.hub.names import HubName

CARD = "README.md"
MARK = "<!-- Written by `specds push`, again each time; without this line it is left alone. -->"


@dataclass(frozen=True)
class Acceptance:
    """What a replay of recorded answers gave.

    Attributes:
        transcript: Their name.
        drafter: What drafted.
        budget: The most nodes of a draft.
        tokens_per_step: Of a forward pass of the target, bonus token included.
    """

    transcript: str
    drafter: str
    budget: int
    tokens_per_step: float


def card_of(
    name: HubName,
    manifest: dict[str, Any],
    num_bytes: int,
    licence: str | None,
    acceptance: Sequence[Acceptance],
) -> str:
    """The card of a datastore.

    Args:
        name: Where it will be.
        manifest: What it says of itself; shown as text, whatever is in it.
        num_bytes: Of all its files.
        licence: Of the corpus, as the hub abbreviates it.
        acceptance: What was measured with it.
    """
    about: dict[str, Any] = {"tags": ["specds", "speculative-decoding"], "viewer": False}
    if licence:
        about["license"] = licence
    facts = {
        "corpus": "<br>".join(map(_code, manifest["corpus"])),
        "tokenizer": _code(manifest["tokenizer_name"]),
        "fingerprint of the tokenizer": _code(manifest["tokenizer_fingerprint"]),
        "vocabulary": f"{manifest['vocab_size']:,}",
        "tokens": f"{manifest['num_tokens']:,}",
        "documents": f"{manifest['num_documents']:,}",
        "bytes": f"{num_bytes:,}",
        "build": _code(manifest["build_id"]),
    }
    lines = [
        "---",
        *(f"{key}: {json.dumps(value)}" for key, value in about.items()),
        "---",
        "",
        MARK,
        "",
        f"# {name.repository}",
        "",
        "A datastore of [specds](https://pypi.org/project/specds): models whose tokenizer has this",
        "fingerprint write the same text with it, in fewer forward passes.",
        "",
        f"    specds generate --model MODEL --datastore {name} PROMPT",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {key} | {value} |" for key, value in facts.items() if value),
        "",
    ]
    if manifest.get("commands"):
        built = (f"    {' '.join(command.split())}" for command in manifest["commands"])
        lines += ["Built by", "", *built, ""]
    if acceptance:
        lines += ["| recorded answers | drafter | nodes | tokens a forward pass |"]
        lines += ["| --- | --- | ---: | ---: |"]
        lines += [
            f"| {_code(row.transcript)} | {_code(row.drafter)} | {row.budget} "
            f"| {row.tokens_per_step:.2f} |"
            for row in acceptance
        ]
        lines += [""]
    return "\n".join(lines)


def _code(text: str) -> str:
    """Text within a cell of a table, which means nothing there."""
    plain = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""
