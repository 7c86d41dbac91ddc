"""The `specds` command."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from specds import display
from specds.drafter import DrafterName

app = typer.Typer(
    name="specds",
    help="Faster language models with the same text: drafts looked up, verified as a tree.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

_JSON = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
_DATASTORE = Annotated[Path, typer.Argument(help="A folder made by `specds build`.")]
_MAX_NODES = Annotated[int, typer.Option(min=0, help="Node budget of a draft; 0 drafts nothing.")]
_DRAFTER = Annotated[
    DrafterName,
    typer.Option(help="`fused`: datastore and the request's own text; `rest`: datastore alone."),
]
_NEW_TOKENS = Annotated[int, typer.Option(min=1, help="How many tokens to generate at most.")]


@app.callback(invoke_without_command=True)
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    if show_version:
        typer.echo(f"specds {version('specds')}")
        raise typer.Exit


@app.command()
def build(
    corpus: Annotated[
        str, typer.Option(help="`stdlib`, a folder of source files, a .jsonl or a text file.")
    ],
    tokenizer: Annotated[str, typer.Option(help="A name on the hub, a local folder, or `demo`.")],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    field: Annotated[str, typer.Option(help="The field of a .jsonl row with the text.")] = "text",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    as_json: _JSON = False,
) -> None:
    """Build a datastore from a corpus.

    Examples:
        specds build --corpus stdlib --tokenizer demo --out stdlib.specds

        specds build --corpus answers.jsonl --field answer --tokenizer ./vicuna --out a.specds
    """
    from specds.build import build_datastore
    from specds.corpora import open_corpus
    from specds.loading import load_tokenizer

    if out.exists() and not overwrite:
        raise FileExistsError(f"{out} exists: choose another --out, or replace it by --overwrite")
    opened = open_corpus(corpus, text_field=field)
    loaded = load_tokenizer(tokenizer)
    with display.progress_bar() as progress:
        report = build_datastore(
            opened,
            loaded,
            out,
            tokenizer_name=tokenizer,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        display.print_json(report.to_dict())
    else:
        display.out.print(display.build_table(report))


@app.command()
def info(datastore: _DATASTORE, as_json: _JSON = False) -> None:
    """Show what a datastore holds and what it was built from.

    Example:
        specds info stdlib.specds
    """
    from specds import Datastore

    opened = Datastore.open(datastore)
    facts: dict[str, Any] = {
        "path": str(opened.path),
        "corpus": opened.corpus,
        "tokenizer": opened.tokenizer_name,
        "tokenizer_fingerprint": opened.tokenizer_fingerprint,
        "vocab_size": opened.vocab_size,
        "separator": opened.separator,
        "num_documents": opened.num_documents,
        "num_tokens": opened.num_tokens,
        "num_shards": opened.num_shards,
        "num_bytes": opened.num_bytes,
        "bytes_per_token": opened.num_bytes / opened.num_tokens,
    }
    if as_json:
        display.print_json(facts)
    else:
        display.out.print(display.facts_table(f"Datastore {datastore}", facts))


@app.command()
def verify(datastore: _DATASTORE, as_json: _JSON = False) -> None:
    """Read a whole datastore and check every byte of it.

    Example:
        specds verify stdlib.specds
    """
    from specds import Datastore

    opened = Datastore.open(datastore)
    with display.err.status(f"verifying {display.quantity(opened.num_bytes)}B"):
        opened.verify()
    if as_json:
        display.print_json({"path": str(opened.path), "ok": True})
    else:
        display.out.print(f"{datastore}: ok, {opened.num_tokens:,} tokens")


@app.command()
def lookup(
    datastore: _DATASTORE,
    text: Annotated[str, typer.Argument(help="The context; `-` reads standard input.")],
    top: Annotated[int, typer.Option(min=1, help="How many continuations to show.")] = 10,
    max_match: Annotated[int, typer.Option(min=1, help="Longest suffix to look for.")] = 16,
    tokenizer: Annotated[
        str | None, typer.Option(help="By default the one the datastore was built with.")
    ] = None,
    as_json: _JSON = False,
) -> None:
    """Look up what followed the end of a text in the corpus.

    Example:
        specds lookup stdlib.specds "for i in range("
    """
    from specds import Datastore
    from specds.loading import load_tokenizer
    from specds.tokenization import check_tokenizer

    opened = Datastore.open(datastore)
    loaded = load_tokenizer(tokenizer or opened.tokenizer_name)
    check_tokenizer(opened, loaded)
    context = loaded.encode(_text(text), add_special_tokens=False)
    match = opened.lookup(context, max_match=max_match)
    tokens, counts = opened.continuations(match, top)
    rows = [
        {"token_id": int(token), "text": loaded.decode([int(token)]), "count": int(count)}
        for token, count in zip(tokens, counts, strict=True)
    ]
    matched = loaded.decode(context[len(context) - match.length :])
    result = {
        "match_length": match.length,
        "match_text": matched,
        "match_count": match.count,
        "continuations": rows,
    }
    if as_json:
        display.print_json(result)
    else:
        display.out.print(display.lookup_table(result))


@app.command()
def generate(
    model: Annotated[str, typer.Option(help="A name on the hub, a local folder, or `demo`.")],
    datastore: Annotated[Path, typer.Option(help="A folder made by `specds build`.")],
    prompt: Annotated[str, typer.Option(help="The text to complete; `-` reads standard input.")],
    drafter: _DRAFTER = DrafterName.FUSED,
    max_new_tokens: _NEW_TOKENS = 128,
    max_nodes: Annotated[
        int | None,
        typer.Option(min=0, help="Node budget of a draft; by default 8 on a CPU, 64 elsewhere."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    device: Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda`, ...")] = "auto",
    dtype: Annotated[str, typer.Option(help="`auto`, `float32`, `bfloat16`, ...")] = "auto",
    as_json: _JSON = False,
) -> None:
    """Complete a prompt; drafted and accepted tokens are green.

    Examples:
        specds generate --model demo --datastore stdlib.specds --prompt "def main("

        cat chat.txt | specds generate --model ./vicuna-7b --datastore chat.specds --prompt -
    """
    from specds.drafter import open_drafter
    from specds.loading import load_model
    from specds.tokenization import check_tokenizer

    opened = open_drafter(drafter, datastore)
    loaded, tokenizer = load_model(model, device=device, dtype=dtype)
    check_tokenizer(opened.datastore, tokenizer)
    import torch

    from specds.generation import generate as run

    torch.manual_seed(seed)
    ids = tokenizer(_text(prompt), return_tensors="pt")["input_ids"].to(loaded.device)
    if max_nodes is None:  # a CPU computes for each node, a GPU waits for the weights anyway
        max_nodes = 8 if loaded.device.type == "cpu" else 64
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        if temperature > 0
        else {"do_sample": False}
    )
    with display.err.status(f"generating up to {max_new_tokens} tokens"):
        output = run(
            loaded,
            ids,
            opened,
            max_nodes=max_nodes,
            max_new_tokens=max_new_tokens,
            attention_mask=torch.ones_like(ids),
            **sampling,
        )
    new_ids = output.sequences[0, ids.shape[1] :].tolist()
    if as_json:
        text = tokenizer.decode(new_ids)
        display.print_json(
            {
                "text": text,
                "token_ids": new_ids,
                "drafted": list(output.drafted),
                "stats": output.stats.to_dict(),
            }
        )
    else:
        display.out.print(display.coloured(tokenizer, new_ids, output.drafted), soft_wrap=True)
        display.err.print(display.stats_table(output.stats))


@app.command()
def demo(
    num_prompts: Annotated[int, typer.Option("--prompts", min=1, help="Held-out prompts.")] = 12,
    drafter: _DRAFTER = DrafterName.FUSED,
    max_new_tokens: _NEW_TOKENS = 128,
    max_nodes: _MAX_NODES = 8,
    seed: Annotated[int, typer.Option(help="Chooses the prompts; also of the sampling.")] = 0,
    as_json: _JSON = False,
) -> None:
    """Build a datastore from real code and watch a small model write code faster with it.

    Needs no network and no GPU. Completes held-out prompts with `model.generate` and with specds,
    greedy and sampled, and compares text and time.

    Example:
        specds demo --prompts 4
    """
    from specds.demo.run import run_demo

    run_demo(num_prompts, max_new_tokens, max_nodes, seed, drafter, as_json=as_json)


def _text(argument: str) -> str:
    return sys.stdin.read() if argument == "-" else argument


_INTERRUPTED = 130


def main() -> None:
    """Runs the command; an error is one line, exit code 2 for usage and 1 for failure."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except Exception as error:  # the last resort of a command: whatever it is, one line
        # Only the parser's own errors, of usage, know how to show themselves.
        show = getattr(error, "format_message", None)
        display.fail(show() if show else _one_line(error))
        code = 2 if show else 1
    if code == _INTERRUPTED:  # newer releases of typer return it, older ones raise Abort
        display.fail("interrupted")
    sys.exit(code or 0)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    expected = isinstance(error, (ValueError, OSError, ImportError)) and text
    return text if expected else f"{type(error).__name__}: {text}"
