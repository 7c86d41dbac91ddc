"""Commands that run a model: generate, demo."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from specds import display
from specds.cli.arguments import Json, Weights, text_of
from specds.drafters import DrafterName


class Verification(str, Enum):
    """How drafts are verified."""

    AUTO = "auto"
    FAST = "fast"
    TREE = "tree"
    BATCHED = "batched"


_DATASTORE = Annotated[Path | None, typer.Option(help="A folder made by `specds build`.")]
_TRIGRAMS = Annotated[
    Path | None, typer.Option(help="A folder made by `specds trigrams`, for ADED.")
]
_DRAFTER = Annotated[
    DrafterName,
    typer.Option(
        help="`fused`: datastore and the request's own text; `rest`: datastore alone; "
        "`rest-paper`: the same by all occurrences; `aded`: tri-grams that adapt to the text; "
        "`aded-...`: an ablation of it; `prompt-lookup`: the request's own text alone; "
        "`n-grammys`: that and the model's bigrams; `n-grammys-...`: a part of it."
    ),
]
_VERIFICATION = Annotated[
    Verification,
    typer.Option(
        help="`fast`: every node once, by packed attention; `tree`: the same by the model's own; "
        "`batched`: each path as a row of a batch; `auto`: `fast` where the model allows it."
    ),
]
_NEW_TOKENS = Annotated[int, typer.Option(min=1, help="How many tokens to generate at most.")]


def generate(
    model: Annotated[str, typer.Option(help="A name on the hub, a local folder, or `demo`.")],
    prompt: Annotated[str, typer.Option(help="The text to complete; `-` reads standard input.")],
    datastore: _DATASTORE = None,
    trigrams: _TRIGRAMS = None,
    drafter: _DRAFTER = DrafterName.FUSED,
    weights: Weights = None,
    max_new_tokens: _NEW_TOKENS = 128,
    max_nodes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Node budget of a draft; by default the drafter's own, else 8 on a CPU, 64 "
            "elsewhere.",
        ),
    ] = None,
    verification: _VERIFICATION = Verification.AUTO,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    device: Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda`, ...")] = "auto",
    dtype: Annotated[str, typer.Option(help="`auto`, `float32`, `bfloat16`, ...")] = "auto",
    as_json: Json = False,
) -> None:
    """Complete a prompt; drafted and accepted tokens are green.

    Examples:
        specds generate --model demo --datastore stdlib.specds --prompt "def main("

        cat chat.txt | specds generate --model ./vicuna-7b --datastore chat.specds --prompt -
    """
    from specds._core import Datastore, Trigrams
    from specds.drafters import (
        DrafterInputs,
        make_drafter,
        node_budget,
        read_weights,
        require_inputs,
    )
    from specds.loading import load_model
    from specds.tokenization import check_tokenizer

    given = {"datastore": datastore is not None, "trigrams": trigrams is not None}
    require_inputs(drafter, **given, model=True)
    opened = None if datastore is None else Datastore.open(datastore)
    counted = None if trigrams is None else Trigrams.open(trigrams)
    loaded, tokenizer = load_model(model, device=device, dtype=dtype)
    for built in (opened, counted):
        if built is not None:
            check_tokenizer(built, tokenizer)
    import torch

    from specds.generation import generate as run

    torch.manual_seed(seed)
    ids = tokenizer(text_of(prompt), return_tensors="pt")["input_ids"].to(loaded.device)
    with display.build_progress(after_s=2.0) as progress:
        inputs = DrafterInputs(opened, loaded, counted, progress, read_weights(weights))
        made = make_drafter(drafter, inputs)
    # A CPU computes for each node, a GPU waits for the weights anyway.
    usual = 8 if loaded.device.type == "cpu" else 64
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        if temperature > 0
        else {"do_sample": False}
    )
    with display.err.status(f"generating up to {max_new_tokens} tokens"):
        output = run(
            loaded,
            ids,
            made,
            max_nodes=node_budget(made, max_nodes, usual),
            verification=verification.value,
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


def demo(
    num_prompts: Annotated[int, typer.Option("--prompts", min=1, help="Held-out prompts.")] = 12,
    drafter: _DRAFTER = DrafterName.FUSED,
    max_new_tokens: _NEW_TOKENS = 128,
    max_nodes: Annotated[
        int | None,
        typer.Option(min=0, help="Node budget of a draft; by default the drafter's own, else 8."),
    ] = None,
    verification: _VERIFICATION = Verification.AUTO,
    seed: Annotated[int, typer.Option(help="Chooses the prompts; also of the sampling.")] = 0,
    as_json: Json = False,
) -> None:
    """Build a datastore from real code and watch a small model write code faster with it.

    Needs no network and no GPU. Completes held-out prompts with `model.generate` and with specds,
    greedy and sampled, and compares text and time.

    Example:
        specds demo --prompts 4
    """
    from specds.demo.run import run_demo

    run_demo(
        num_prompts,
        max_new_tokens,
        max_nodes,
        seed,
        drafter,
        verification=verification.value,
        as_json=as_json,
    )
