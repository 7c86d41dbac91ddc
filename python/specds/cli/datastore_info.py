"""Commands that inspect a datastore: info, verify, lookup, view."""

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specds import terminal
from specds.cli import display
from specds.cli.arguments import DatastorePath, Json, text_of, tokenizer_name

if TYPE_CHECKING:
    from specds._core import Datastore
    from specds.models.tokenization import Tokenizer

_MOST = 1_000_000
_MOST_ANSWERS = 100


def info(datastore: DatastorePath, /, *, as_json: Json = False) -> None:
    """Show the content of a datastore and how it was built.

    Example:
        specds info stdlib.specds
    """
    from specds._core import Datastore

    display.show_datastore(Datastore(datastore), as_json=as_json)


def verify(datastore: DatastorePath, /, *, as_json: Json = False) -> None:
    """Compare every byte of a datastore with its checksums.

    Example:
        specds verify stdlib.specds
    """
    from specds._core import Datastore

    opened = Datastore(datastore)
    with terminal.waiting(f"verifying {terminal.quantity(opened.num_bytes, 'B')}"):
        opened.verify()
    if as_json:
        terminal.print_json({"path": str(opened.path), "ok": True})
    else:
        terminal.out.print(f"{datastore}: ok, {terminal.counted(opened.num_tokens, 'token')}")


def lookup(
    datastore: DatastorePath,
    text: str,
    /,
    *,
    top: Annotated[
        int,
        typer.Option(metavar="NUMBER", min=1, max=_MOST, help="Number of continuations to show."),
    ] = 10,
    max_match: Annotated[
        int,
        typer.Option(
            metavar="TOKENS", min=1, max=_MOST, help="Maximum length of the matched suffix."
        ),
    ] = 16,
    occurrences: int = 0,
    tokenizer: str | None = None,
    as_json: Json = False,
) -> None:
    """Look up the continuations of the end of a text in the corpus.

    If the text ends within a word, they are the words that begin so.

    Args:
        text (TEXT): The context; `-` reads standard input.
        occurrences: Number of occurrences of the match to show.
        tokenizer: Tokenizer; by default the one that the datastore was built with.

    Examples:
        specds lookup stdlib.specds "for i in range("
        specds lookup stdlib.specds "import " --top 20 --occurrences 3
    """
    from specds.models.healing import Spellings, completions
    from specds.models.render import known_from, text_after

    opened, loaded = _with_tokenizer(datastore, tokenizer)
    given = text_of(text)
    if not given:
        raise ValueError("the text is empty: give the beginning of a text")
    context = loaded.encode(given, add_special_tokens=False)
    found = completions(opened, loaded, Spellings(loaded), context, max_match=max_match)
    if found is None:
        match = opened.lookup(context, max_match=max_match)
        tokens, counts = opened.continuations(match, top)
    else:
        context, tokens, counts = found.context, found.token_ids[:top], found.counts[:top]
    rows = [
        {"token_id": int(token), "text": text_after(loaded, context, [token]), "count": int(count)}
        for token, count in zip(tokens, counts, strict=True)
    ]
    # Passages of an unfinished word have its most frequent completion.
    shown = context if found is None else [*context, int(tokens[0])]
    known = known_from(opened, loaded, shown, max_match=max_match, num_passages=occurrences)
    start = len(context) - (known["length"] if found is None else found.length)
    result: dict[str, Any] = {
        "match_length": len(context) - start,
        "match_text": text_after(loaded, context[:start], context[start:]),
        "match_count": known["count"] if found is None else int(found.counts.sum()),
        "unfinished": None if found is None else found.typed,
        "continuations": rows,
        "occurrences": known["passages"],
    }
    if as_json:
        terminal.print_json(result)
        return
    if rows or result["match_length"]:
        terminal.out.print(display.lookup_table(result))
    else:
        terminal.out.print("nothing of this text occurs in the corpus")
    if found is None and given.endswith(" "):
        terminal.note("the text ends in a space, which most tokenizers join to the next word")
    for source in result["occurrences"]:
        terminal.out.print(display.source_text(source), soft_wrap=True)


def _with_tokenizer(path: Path, name: str | None) -> "tuple[Datastore, Tokenizer]":
    """A datastore and the tokenizer of this name, by default the one that it was built with."""
    from specds._core import Datastore
    from specds.models.load import load_encoder
    from specds.models.tokenization import check_tokenizer

    datastore = Datastore(path)
    tokenizer = load_encoder(tokenizer_name(name, datastore))
    check_tokenizer(datastore, tokenizer)
    return datastore, tokenizer


def view(
    datastore: DatastorePath,
    /,
    *,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535, help="Port; 0 selects a free one."
        ),
    ] = 0,
    browse: bool = False,
    transcripts: Path | None = None,
    tokenizer: str | None = None,
) -> None:
    """Serve a page that shows matches and drafts for a text as you type it.

    Only this machine can open the page, until Ctrl-C. Nothing that you type is stored.

    Args:
        browse: Open the page in the browser of this machine.
        transcripts (FILE): Recorded answers, whose drafts the page shows step by step; rows as for
            `specds bench acceptance`.
        tokenizer: Tokenizer; by default the one that the datastore was built with.

    Example:
        specds view chat.specds --browse
    """
    from specds.bench.transcripts import read_files
    from specds.view import Explorer, serve

    opened, loaded = _with_tokenizer(datastore, tokenizer)
    answers = [] if transcripts is None else read_files([transcripts], loaded, _MOST_ANSWERS)
    with serve(Explorer(opened, loaded, answers), port) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        try:
            terminal.out.print(address)
            if browse:
                webbrowser.open(address)
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            terminal.err.print()
