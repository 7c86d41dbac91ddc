"""Commands that write datastores: build, add, merge, compact."""

from __future__ import annotations

import glob
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specds import terminal
from specds._core import DEFAULT_PRIOR_TOKENS
from specds.cli import display
from specds.cli.arguments import DatastorePath, Json, PriorTokens, size

if TYPE_CHECKING:
    from specds.build import BuildOptions
    from specds.corpora import CorpusOptions


class _OnBadRow(str, Enum):
    FAIL = "fail"
    SKIP = "skip"


class _Engine(str, Enum):
    LOCAL = "local"
    RAY = "ray"


_CORPUS = Annotated[
    str,
    typer.Option(
        help="`ultrachat`, `ultrachat-200k`, `sharegpt`, `the-stack`, `stdlib`; a folder; a file "
        "(.parquet, .jsonl, .json, text; .gz and .zst of them) or a pattern of files; or a dataset "
        "of the hub: `org/name`. The best corpus is a log of the model's own answers."
    ),
]
_OUT = Annotated[Path, typer.Option(help="The folder to make.")]
_TOKENIZER = Annotated[str, typer.Option(help="A name on the hub, a local folder, or `demo`.")]
_FIELD = Annotated[
    str | None, typer.Option(help="The field of a row with the text. [default: found]")
]
_MESSAGES = Annotated[
    str | None, typer.Option(help="The field of a row with a conversation. [default: found]")
]
_LANG = Annotated[str | None, typer.Option(help="The language of `the-stack`, such as python.")]
_CONFIG = Annotated[str | None, typer.Option(help="The configuration of a dataset of the hub.")]
_SPLIT = Annotated[str | None, typer.Option(help="The split of a dataset. [default: train]")]
_REVISION = Annotated[
    str | None, typer.Option(help="A branch, tag or commit of a dataset of the hub.")
]
_BAD_ROW = Annotated[_OnBadRow, typer.Option(help="What to do with a row that cannot be read.")]
_SAMPLE = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="The share of documents to keep, by their hash.")
]
_SEED = Annotated[int, typer.Option(help="Of `--sample`.")]
_INCLUDE = Annotated[
    list[str] | None, typer.Option(help="Read only such files of a folder: `*.py`. Repeatable.")
]
_EXCLUDE = Annotated[
    list[str] | None, typer.Option(help="Leave out such files of a folder. Repeatable.")
]
_DOCUMENTS = Annotated[
    int | None, typer.Option("--limit-documents", parser=size, help="Index at most so many.")
]
_TOKENS = Annotated[
    int | None, typer.Option("--limit-tokens", parser=size, help="Index at most so many: 60M.")
]
_DUPLICATES = Annotated[
    bool, typer.Option("--keep-duplicates", help="Also index documents that came before.")
]
_MEMORY = Annotated[
    int | None,
    typer.Option(parser=size, help="Memory for sorting: 8GB. [default: half of the machine's]"),
]
_SHARD = Annotated[
    int | None, typer.Option(parser=size, help="Cut shards smaller than memory asks for.")
]
_ENGINE = Annotated[
    _Engine,
    typer.Option(
        help="`ray` builds on a cluster; `specds compact --drop-duplicates` then finds what its "
        "workers each had."
    ),
]
_ADDRESS = Annotated[str | None, typer.Option(help="Of a running Ray cluster.")]
_ESTIMATE = Annotated[
    bool,
    typer.Option("--estimate", help="Say from a sample what it would take, and build nothing."),
]


def build(
    context: typer.Context,
    corpus: _CORPUS,
    tokenizer: _TOKENIZER,
    out: _OUT,
    field: _FIELD = None,
    messages_field: _MESSAGES = None,
    lang: _LANG = None,
    config: _CONFIG = None,
    split: _SPLIT = None,
    revision: _REVISION = None,
    on_bad_row: _BAD_ROW = _OnBadRow.FAIL,
    sample: _SAMPLE = 1.0,
    seed: _SEED = 0,
    include: _INCLUDE = None,
    exclude: _EXCLUDE = None,
    max_documents: _DOCUMENTS = None,
    max_tokens: _TOKENS = None,
    keep_duplicates: _DUPLICATES = False,
    max_memory: _MEMORY = None,
    max_shard_tokens: _SHARD = None,
    prior_tokens: PriorTokens = DEFAULT_PRIOR_TOKENS,
    engine: _ENGINE = _Engine.LOCAL,
    ray_address: _ADDRESS = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    estimate: _ESTIMATE = False,
    as_json: Json = False,
) -> None:
    """Build a datastore from a corpus.

    A build that was stopped, also by force, goes on where it was when the same command is given
    again.

    Examples:
        specds build --corpus stdlib --tokenizer demo --out stdlib.specds

        specds build --corpus answers.jsonl --tokenizer ./vicuna --out answers.specds

        specds build --corpus ultrachat --tokenizer lmsys/vicuna-7b-v1.5 --out chat.specds

        specds build --corpus the-stack --lang python --limit-tokens 1G --tokenizer ./codellama
        --out python.specds
    """
    if out.exists() and not overwrite and not estimate:
        raise FileExistsError(
            f"{out} exists: choose another --out, replace it by --overwrite, or add to it by "
            "`specds add`"
        )
    _build(context.params, corpus, tokenizer, out, append=False)


def add(
    context: typer.Context,
    datastore: DatastorePath,
    corpus: _CORPUS,
    tokenizer: Annotated[
        str | None, typer.Option(help="By default the one the datastore was built with.")
    ] = None,
    field: _FIELD = None,
    messages_field: _MESSAGES = None,
    lang: _LANG = None,
    config: _CONFIG = None,
    split: _SPLIT = None,
    revision: _REVISION = None,
    on_bad_row: _BAD_ROW = _OnBadRow.FAIL,
    sample: _SAMPLE = 1.0,
    seed: _SEED = 0,
    include: _INCLUDE = None,
    exclude: _EXCLUDE = None,
    max_documents: _DOCUMENTS = None,
    max_tokens: _TOKENS = None,
    keep_duplicates: _DUPLICATES = False,
    max_memory: _MEMORY = None,
    max_shard_tokens: _SHARD = None,
    prior_tokens: PriorTokens = DEFAULT_PRIOR_TOKENS,
    engine: _ENGINE = _Engine.LOCAL,
    ray_address: _ADDRESS = None,
    estimate: _ESTIMATE = False,
    as_json: Json = False,
) -> None:
    """Add documents to a datastore, in shards of their own.

    Who has the datastore open goes on with what it was. Documents that it has already are left
    out. Many small shards make lookups slower: `specds compact` makes few of them.

    Example:
        specds add chat.specds --corpus answers.jsonl
    """
    from specds._core import Datastore

    tokenizer = tokenizer or Datastore.open(datastore).tokenizer_name
    _build(context.params, corpus, tokenizer, datastore, append=True)


def _build(flags: dict[str, Any], corpus: str, tokenizer: str, out: Path, *, append: bool) -> None:
    from specds.build import build_datastore
    from specds.build.estimate import estimate_build
    from specds.corpora import open_corpus, render_with
    from specds.loading import load_tokenizer

    options = _build_options(flags, append=append)
    with terminal.err.status(f"opening {corpus}"):
        loaded = load_tokenizer(tokenizer)
        opened = open_corpus(corpus, _corpus_options(flags), render=render_with(loaded))
    if flags["estimate"]:
        with terminal.err.status("reading a sample"):
            expected = estimate_build(opened, loaded, options)
        _show(expected.to_dict(), display.estimate_table(expected), as_json=flags["as_json"])
        return
    try:
        with terminal.build_progress() as progress:
            report = build_datastore(
                opened, loaded, out, options, tokenizer_name=tokenizer, progress=progress
            )
    except (Exception, KeyboardInterrupt):
        if any(out.parent.glob(f".{glob.escape(out.name)}.build*")):
            terminal.note("what was complete is kept: the same command goes on from there")
        raise
    _show(report.to_dict(), display.build_table(report), as_json=flags["as_json"])


def _corpus_options(flags: dict[str, Any]) -> CorpusOptions:
    from specds.corpora import CorpusOptions

    return CorpusOptions(
        text_field=flags["field"],
        messages_field=flags["messages_field"],
        language=flags["lang"],
        config=flags["config"],
        split=flags["split"],
        revision=flags["revision"],
        on_bad_row=flags["on_bad_row"].value,
        sample=flags["sample"],
        seed=flags["seed"],
        include=tuple(flags["include"] or ()),
        exclude=tuple(flags["exclude"] or ()),
    )


def _build_options(flags: dict[str, Any], *, append: bool) -> BuildOptions:
    from specds.build import BuildOptions

    return BuildOptions(
        append=append,
        overwrite=flags.get("overwrite", False),
        drop_duplicates=not flags["keep_duplicates"],
        max_documents=flags["max_documents"],
        max_tokens=flags["max_tokens"],
        max_memory=flags["max_memory"],
        max_shard_tokens=flags["max_shard_tokens"],
        prior_tokens=flags["prior_tokens"],
        engine=flags["engine"].value,
        ray_address=flags["ray_address"],
    )


def merge(
    datastores: Annotated[
        list[Path], typer.Argument(help="Folders made by `specds build`, of one tokenizer.")
    ],
    out: _OUT,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    prior_tokens: PriorTokens = DEFAULT_PRIOR_TOKENS,
    as_json: Json = False,
) -> None:
    """Join datastores of one tokenizer into a new one.

    The shards stay as they are, and share their space on the disk with the old ones where the file
    system can; `specds compact` makes few of many.

    Example:
        specds merge chat.specds code.specds --out both.specds
    """
    from specds._core import merge as join

    with terminal.build_progress(after_s=2.0) as progress:
        merged = join(
            datastores, out, overwrite=overwrite, prior_tokens=prior_tokens, progress=progress
        )
    _show_datastore(merged, as_json=as_json)


def compact(
    datastore: DatastorePath,
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Keep documents that recur only once.")
    ] = False,
    max_memory: _MEMORY = None,
    max_shard_tokens: _SHARD = None,
    prior_tokens: PriorTokens = DEFAULT_PRIOR_TOKENS,
    as_json: Json = False,
) -> None:
    """Rebuild the shards of a datastore into as few as memory allows.

    Who has the datastore open goes on with the old shards.

    Example:
        specds compact chat.specds
    """
    from specds._core import compact as rebuild
    from specds.build import BuildOptions

    memory = BuildOptions(max_memory=max_memory).sorting_memory()
    limit = {} if max_shard_tokens is None else {"max_shard_tokens": max_shard_tokens}
    with terminal.build_progress() as progress:
        rebuilt = rebuild(
            datastore,
            max_memory=memory,
            drop_duplicates=drop_duplicates,
            prior_tokens=prior_tokens,
            progress=progress,
            **limit,
        )
    _show_datastore(rebuilt, as_json=as_json)


def _show_datastore(datastore: Any, *, as_json: bool) -> None:
    from specds.cli.inspect import facts_of

    facts = facts_of(datastore)
    _show(facts, display.facts_table(f"Datastore {datastore.path}", facts), as_json=as_json)


def _show(facts: dict[str, Any], table: Any, *, as_json: bool) -> None:
    if as_json:
        terminal.print_json(facts)
    else:
        terminal.out.print(table)
