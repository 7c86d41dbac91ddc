"""Commands that ask a datastore: info, verify, lookup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from specds import terminal
from specds.cli import display
from specds.cli.arguments import DatastorePath, Json, text_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specds._core import Datastore


def info(datastore: DatastorePath, as_json: Json = False) -> None:
    """Show what a datastore holds and what it was built from.

    Example:
        specds info stdlib.specds
    """
    from specds._core import Datastore

    display.show_datastore(Datastore.open(datastore), as_json=as_json)


def verify(datastore: DatastorePath, as_json: Json = False) -> None:
    """Read a whole datastore and check every byte of it.

    Example:
        specds verify stdlib.specds
    """
    from specds._core import Datastore

    opened = Datastore.open(datastore)
    with terminal.err.status(f"verifying {terminal.quantity(opened.num_bytes)}B"):
        opened.verify()
    if as_json:
        terminal.print_json({"path": str(opened.path), "ok": True})
    else:
        terminal.out.print(f"{datastore}: ok, {opened.num_tokens:,} tokens")


def lookup(
    datastore: DatastorePath,
    text: Annotated[str, typer.Argument(help="The context; `-` reads standard input.")],
    top: Annotated[int, typer.Option(min=1, help="How many continuations to show.")] = 10,
    max_match: Annotated[int, typer.Option(min=1, help="Longest suffix to look for.")] = 16,
    sources: Annotated[
        int, typer.Option(min=0, help="The most places of it in the corpus to show.")
    ] = 0,
    tokenizer: Annotated[
        str | None, typer.Option(help="By default the one the datastore was built with.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look up what followed the end of a text in the corpus.

    Examples:
        specds lookup stdlib.specds "for i in range("

        specds lookup stdlib.specds "import " --top 20 --sources 3
    """
    from specds._core import Datastore
    from specds.loading import load_tokenizer
    from specds.tokenization import check_tokenizer

    opened = Datastore.open(datastore)
    loaded = load_tokenizer(tokenizer or opened.tokenizer_name)
    check_tokenizer(opened, loaded)
    context = loaded.encode(text_of(text), add_special_tokens=False)
    match = opened.lookup(context, max_match=max_match)
    tokens, counts = opened.continuations(match, top)
    rows = [
        {"token_id": int(token), "text": loaded.decode([int(token)]), "count": int(count)}
        for token, count in zip(tokens, counts, strict=True)
    ]
    matched = loaded.decode(context[len(context) - match.length :])
    result: dict[str, Any] = {
        "match_length": match.length,
        "match_text": matched,
        "match_count": match.count,
        "continuations": rows,
        "sources": [
            _source(opened, loaded, int(position), match.length)
            for position in opened.positions(match, sources)
        ],
    }
    if as_json:
        terminal.print_json(result)
    else:
        terminal.out.print(display.lookup_table(result))
        for source in result["sources"]:
            terminal.out.print(display.source_text(source), soft_wrap=True)


_AROUND = 24
"""Tokens shown before a place of the corpus, and after it."""


def _source(
    datastore: Datastore, tokenizer: PreTrainedTokenizerBase, position: int, length: int
) -> dict[str, Any]:
    """The text around a place where a match occurs."""
    document = datastore.document(position)
    tokens, start = document.token_ids.tolist(), position - document.start
    return {
        "position": position,
        "document": document.index,
        "before": tokenizer.decode(tokens[max(start - _AROUND, 0) : start]),
        "match": tokenizer.decode(tokens[start : start + length]),
        "after": tokenizer.decode(tokens[start + length : start + length + _AROUND]),
    }
