"""The command that makes tri-grams of a datastore."""

from pathlib import Path
from typing import Annotated

import typer

from specds import terminal
from specds.cli import display
from specds.cli.arguments import DatastorePath, Json


def trigrams(
    datastore: DatastorePath,
    out: Annotated[Path, typer.Option(help="The file to make.")],
    order: Annotated[
        int, typer.Option(min=2, max=4, help="Tokens of an n-gram; ADED's ablations are 2 and 4.")
    ] = 3,
    max_words: Annotated[
        int, typer.Option(min=1, help="Keep at most this many words after each prefix: ADED's threshold.")
    ] = 12,
    min_count: Annotated[
        int, typer.Option(min=1, help="Leave out n-grams that occur less often.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Count the tri-grams of a datastore, for the ADED drafter.

    They take a fraction of the datastore's space, and `generate` then needs no datastore.

    Example:
        specds trigrams stdlib.specds --out stdlib.trigrams
    """
    from specds._core import Datastore, Trigrams

    if out.exists():
        raise FileExistsError(f"{out} exists: choose another --out")
    opened = Datastore.open(datastore)
    with terminal.build_progress(after_s=2.0) as progress:
        counted = Trigrams.build(
            opened, order=order, max_words=max_words, min_count=min_count, progress=progress
        )
    counted.save(out)
    num_bytes = out.stat().st_size
    facts = {
        "path": str(out),
        "order": counted.order,
        "max_words": counted.max_words,
        "min_count": counted.min_count,
        "tokenizer": counted.tokenizer_name,
        "vocab_size": counted.vocab_size,
        "num_prefixes": counted.num_prefixes,
        "num_entries": len(counted),
        "num_bytes": num_bytes,
        "bytes_per_entry": num_bytes / max(len(counted), 1),
    }
    if as_json:
        terminal.print_json(facts)
    else:
        terminal.out.print(display.facts_table(f"Tri-grams {out}", facts))
