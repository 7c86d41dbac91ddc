"""Commands that write datastores: build, add, merge, compact."""

import glob
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from specds import terminal
from specds._core import DEFAULTS, was_killed_after_publishing
from specds.cli import display
from specds.cli.arguments import DatastorePath, Json, Verbose, listed, tokenizer_name
from specds.cli.records import Without, arguments_of
from specds.corpora import CorpusOptions
from specds.indexing import BuildOptions
from specds.indexing.options import DocumentOptions, ShardOptions

_READING = Annotated[CorpusOptions, Without("without")]
_OF_CORPUS = typer.Option(
    "--corpus",
    metavar="CORPUS",
    help="`ultrachat`, `ultrachat-200k`, `sharegpt`, `the-stack`, `stdlib`; a folder; a file "
    "(.jsonl, .json, .csv, .ipynb, text; .gz and .zst of them; .parquet, .arrow) or a pattern of "
    "files; a request cache (FOLDER|URL); or a dataset on the hub: `org/name`. Separate several "
    "with commas, or repeat --corpus. The best corpus is a log of the model's own answers.",
)
_CORPUS = Annotated[list[str], _OF_CORPUS]
_CORPUS_OR_NONE = Annotated[list[str] | None, _OF_CORPUS]


def build(
    *,
    corpus: _CORPUS,
    tokenizer: str,
    out: Path,
    reading: _READING,
    options: DocumentOptions,
    overwrite: bool = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Build a datastore from a corpus.

    A stopped or killed build continues when you repeat the command.

    Args:
        tokenizer: A name on the hub, a local folder, a GGUF file, or `demo`.
        out (FOLDER): Folder to create.
        overwrite: Replace an existing datastore after the new one is complete.

    Examples:
        specds build --corpus stdlib --tokenizer demo --out stdlib.specds
        specds build --corpus answers.jsonl --tokenizer ./vicuna --out a.specds
        specds build --corpus ultrachat --tokenizer ./vicuna --out chat.specds
        specds build --corpus the-stack --language c --tokenizer ./vicuna --out c
        specds build --corpus s3://bucket/fleet --tokenizer ./vicuna --out f.specds
    """
    _require_out(out, overwrite=overwrite)
    shown = {"as_json": as_json, "verbose": verbose}
    _build(corpus, tokenizer, out, reading, options, overwrite=overwrite, **shown)


def _require_out(out: Path, *, overwrite: bool) -> None:
    """Reject an unusable `--out` before the corpus is read."""
    if not out.absolute().parent.is_dir():
        raise FileNotFoundError(f"{out.parent}: no such folder: make it, or choose another --out")

    if out.exists() and not (out / "manifest.json").exists():
        raise FileExistsError(
            f"{out} is not a datastore, and nothing else is replaced: choose another --out"
        )
    if out.exists() and not overwrite and not was_killed_after_publishing(out):
        raise FileExistsError(
            f"{out} exists: choose another --out, replace it by --overwrite, or add to it by "
            "`specds add`"
        )


def add(
    datastore: Path,
    /,
    *,
    corpus: _CORPUS_OR_NONE = None,
    from_memory: str | None = None,
    tenant: str = "",
    reading: _READING,
    options: DocumentOptions,
    tokenizer: str | None = None,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Add documents to a datastore, in new shards.

    Readers keep the version that they opened. Documents that the datastore already holds are left
    out. Many small shards slow lookups down: `specds compact` joins them.

    With `--from-memory`, the documents are a tenant's requests in a request cache, from which they
    are removed when the datastore holds them. The datastore is created if there is none. Servers
    can run at the same time; after a kill, repeat the command.

    Args:
        datastore (DATASTORE): A folder made by `specds build`.
        from_memory (FOLDER|URL): Request cache, written by `save`, by `--memory`, or by a server.
        tenant: Tenant whose requests `--from-memory` moves; by default requests without one.
        tokenizer: Tokenizer; by default the one that the datastore was built with.

    Examples:
        specds add chat.specds --corpus answers.jsonl
        specds add ann.specds --from-memory requests.memory --tenant ann
    """
    if bool(corpus) == bool(from_memory):
        raise typer.BadParameter("exactly one of --corpus and --from-memory is required")
    if from_memory is not None:
        _move(from_memory, tenant, datastore, options, tokenizer, as_json=as_json)
        return
    from specds._core import Datastore

    tokenizer = tokenizer_name(tokenizer, Datastore(datastore))
    shown = {"as_json": as_json, "verbose": verbose}
    _build(corpus or (), tokenizer, datastore, reading, options, append=True, **shown)


def _move(
    memory: str,
    tenant: str,
    datastore: Path,
    options: DocumentOptions,
    tokenizer: str | None,
    *,
    as_json: bool,
) -> None:
    from specds.indexing import add_from_memory
    from specds.models.load import load_encoder
    from specds.terminal.progress import build_progress

    loaded = None if tokenizer is None or datastore.exists() else load_encoder(tokenizer)
    with build_progress(after_s=2.0) as progress:
        report = add_from_memory(
            datastore,
            memory,
            tenant,
            BuildOptions(**vars(options)),
            tokenizer=loaded,
            tokenizer_name=tokenizer,
            progress=progress,
        )
    display.show("Datastore", asdict(report), as_json=as_json)


def _build(
    corpus: Sequence[str],
    tokenizer: str,
    out: Path,
    reading: CorpusOptions,
    options: DocumentOptions,
    *,
    as_json: bool,
    verbose: bool,
    overwrite: bool = False,
    append: bool = False,
) -> None:
    from specds.corpora import open_corpora
    from specds.indexing import build_datastore
    from specds.models.load import load_encoder
    from specds.models.resolve import OF_DEMO, SMOLLM2, ModelRef
    from specds.terminal.progress import build_progress

    # A file may have a comma in its name.
    named = [[name] if Path(name).exists() else listed(name) for name in corpus]
    ref = ModelRef.resolve(tokenizer, "tokenizer")
    # A relative path would be one of this folder alone.
    is_local = ref.kind != "hub" and tokenizer not in (*OF_DEMO, SMOLLM2)
    name = str(Path(tokenizer).absolute()) if is_local else tokenizer
    with terminal.waiting(f"opening {', '.join(corpus)}"):
        loaded = load_encoder(ref)
        render = _renderer(loaded, reading)
        opened = open_corpora(chain.from_iterable(named), reading, render=render)
    command = _command(corpus, tokenizer, reading, options)
    whole = BuildOptions(**vars(options), overwrite=overwrite, append=append, commands=(command,))
    try:
        with build_progress() as progress:
            report = build_datastore(
                opened, loaded, out, whole, tokenizer_name=name, progress=progress
            )
    except (Exception, KeyboardInterrupt) as error:
        if any(out.parent.glob(f".{glob.escape(out.name)}.build*")):
            terminal.note("what was read is kept: repeat the command to continue")
        elif isinstance(error, KeyboardInterrupt):
            terminal.note("nothing was read yet: the same command starts from the beginning")
        raise
    display.show_build(report.to_dict(), as_json=as_json, verbose=verbose)
    if report.num_resumed and not report.text_bytes:
        terminal.note("the datastore was complete: its build was killed as it published it")
    elif report.share_read < 0.5:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in report.skipped.items())
        terminal.note(f"only {report.share_read:.0%} of the corpus was read; left out: {reasons}")


def _renderer(tokenizer: Any, reading: CorpusOptions) -> Any:
    from specds.corpora import render_with

    if reading.chat_template is None:
        return render_with(tokenizer)
    template = Path(reading.chat_template).read_text(encoding="utf-8")
    return render_with(tokenizer, template, reading.chat_template)


def _command(
    corpus: Sequence[str], tokenizer: str, reading: CorpusOptions, options: DocumentOptions
) -> str:
    """The command that gives the same shards anywhere: where they are made is left out."""
    corpora = [word for each in corpus for word in ("--corpus", each)]
    read = arguments_of(reading, *(field.name for field in fields(reading)))
    built = arguments_of(options, *DEFAULTS["build"])
    command = shlex.join(["specds", "build", *corpora, "--tokenizer", tokenizer, *read, *built])
    return os.fsencode(command).decode(errors="replace")


def merge(
    datastores: list[Path], /, *, out: Path, overwrite: bool = False, as_json: Json = False
) -> None:
    """Join datastores with the same tokenizer into a new one.

    The shards do not change, and share disk space with the old ones if the file system allows;
    `specds compact` joins them.

    Args:
        datastores (DATASTORE...): Folders made by `specds build`, of one tokenizer.
        out (FOLDER): Folder to create.
        overwrite: Replace an existing datastore after the new one is complete.

    Example:
        specds merge chat.specds code.specds --out both.specds
    """
    from specds._core import merge as join

    merged = join(datastores, out, overwrite=overwrite)
    display.show_datastore(merged, as_json=as_json)


def compact(
    datastore: DatastorePath,
    /,
    *,
    options: ShardOptions,
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Keep one copy of documents that recur.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Rebuild a datastore with as few shards as memory allows.

    Readers keep the shards that they opened.

    Example:
        specds compact chat.specds
    """
    from specds._core import compact as rebuild
    from specds.terminal.progress import build_progress

    with build_progress() as progress:
        rebuilt = rebuild(
            datastore, drop_duplicates=drop_duplicates, progress=progress, **options.for_core()
        )
    display.show_datastore(rebuilt, as_json=as_json)
