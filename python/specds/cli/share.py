"""Commands that share datastores: push, pull."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specds import terminal
from specds.cli.arguments import Json

if TYPE_CHECKING:
    from specds.hub.upload import Acceptance

_NAME = Annotated[str, typer.Argument(metavar="NAME", help="`org/name` on the hub.")]
_REVISION = Annotated[
    str | None, typer.Option(metavar="NAME", help="A branch, and for `pull` a tag or a commit.")
]
_BUDGETS = (16, 64)


def push(
    datastore: Annotated[
        Path, typer.Argument(metavar="DATASTORE", help="A folder made by `specds build`.")
    ],
    name: _NAME,
    revision: _REVISION = None,
    private: Annotated[
        bool | None,
        typer.Option(
            "--private/--public", help="Who can see a new one; by default as your account says."
        ),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option("--license", metavar="NAME", help="Of the corpus: `apache-2.0`, ..."),
    ] = None,
    transcripts: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Recorded answers, JSONL of `prompt` and `completion`, that are replayed for the "
            "card. May be given several times.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Upload a datastore to the Hugging Face hub, with a card.

    Shards that the hub has are not sent again. A datastore holds its whole corpus: everyone who can
    read it can read the texts.

    Example:
        specds push chat.specds org/chat --private --license cc-by-4.0
    """
    from specds import hub

    measured = [row for file in transcripts or () for row in _acceptance(datastore, file)]
    address = hub.push(
        datastore, _at(name, revision), private=private, licence=licence, acceptance=measured
    )
    if as_json:
        terminal.print_json({"name": name, "commit": address})
    else:
        terminal.out.print(address)


def pull(
    name: _NAME,
    revision: _REVISION = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Refuse a datastore that is not of this tokenizer.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Download a datastore from the Hugging Face hub and check it.

    Prints its folder in the hub's cache. Files that are there are not downloaded again, and an
    interrupted download continues.

    Example:
        specds pull org/chat
    """
    from specds import hub
    from specds.loading import load_encoder

    loaded = None if tokenizer is None else load_encoder(tokenizer)
    folder = hub.pull(_at(name, revision), tokenizer=loaded)
    if as_json:
        terminal.print_json({"name": name, "path": str(folder)})
    else:
        terminal.out.print(str(folder), soft_wrap=True)


def _at(name: str, revision: str | None) -> str:
    return name if revision is None else f"{name}@{revision}"


def _acceptance(datastore: Path, transcript: Path) -> "list[Acceptance]":
    from specds.bench.options import ReplayOptions
    from specds.bench.replay.run import run_replay
    from specds.hub.upload import Acceptance

    options = ReplayOptions(
        transcripts=[transcript], datastores=[datastore], drafters=("fused",), budgets=_BUDGETS
    )
    with terminal.waiting(f"replaying {transcript}"):
        rows = run_replay(options)["rows"]
    return [
        Acceptance(transcript.name, row["drafter"], row["budget"], row["mean_acceptance_length"])
        for row in rows
    ]
