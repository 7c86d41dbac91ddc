"""Commands that run a model: generate, demo."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specds import terminal
from specds.cli import arguments, display
from specds.cli.arguments import Budget, Json, Weights, text_of
from specds.drafters import DrafterName
from specds.hierarchy.registry import HierarchyName

if TYPE_CHECKING:
    from specds.drafters import Drafter


class Verification(str, Enum):
    """How drafts are verified."""

    AUTO = "auto"
    FAST = "fast"
    TREE = "tree"
    BATCHED = "batched"


_DATASTORE = Annotated[Path | None, typer.Option(help="A folder made by `specds build`.")]
_DRAFTER = Annotated[
    Any,  # `DrafterName`, read by typer's parser
    typer.Option(
        parser=arguments.drafter_of_one,
        metavar="NAME[:OPTION=VALUE]",
        help="`fused`: datastore, the request's own text, earlier ones in `--memory`, and the "
        "model's own predictions (`fused:effort=low` or `normal`: how much of these is read, by "
        "default as the time of a step allows); `rest`: datastore alone; "
        "`aded`: tri-grams that adapt to the text (`aded:search=greedy`, `aded:order=2`, or 4: its "
        "ablations); `prompt-lookup`: the request's own text alone; `n-grammys`: that and the "
        "model's bigrams (`n-grammys:parts=context`, `bigram`, `extended-bigram`, `unigram`: a "
        "part of it).",
    ),
]
_DRAFTER_OR_HIERARCHY = Annotated[
    Any,  # `DrafterName | HierarchyName`: typer knows no unions
    typer.Option(
        parser=arguments.drafter,
        metavar="NAME[:OPTION=VALUE]",
        help="As of `specds demo`, or a hierarchy, `hierarchy:MODEL,...`: models of one tokenizer "
        "that draft for each other and for the target, the smallest first, and a datastore, where "
        "there is one, for the smallest. With the option `joined=yes` among the models, "
        "what the datastore drafts goes up to the target as well; `ablation=sd`, `self`, `pre` or "
        "`pre-self`: those of HSDDW.",
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
    drafter: _DRAFTER_OR_HIERARCHY = "fused",
    weights: Weights = None,
    memory: Annotated[
        Path | None,
        typer.Option(help="A file that keeps what was written; it need not be there yet."),
    ] = None,
    tenant: Annotated[
        str, typer.Option(help="Whose requests `--memory` drafts from, and adds this one to.")
    ] = "",
    model_tables: Annotated[
        bool,
        typer.Option(
            "--model-tables", help="Draft from the model's own bigrams too: without a datastore."
        ),
    ] = False,
    max_new_tokens: _NEW_TOKENS = 128,
    budget: Budget = "auto",
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

        specds generate --model demo --prompt "import json" --memory requests.bin --tenant ann

        specds generate --model demo --drafter hierarchy:demo-tiny,demo-small --prompt "def main("
    """
    from specds._core import Datastore
    from specds.drafters import (
        DrafterInputs,
        FusedDrafter,
        make_drafter,
        read_weights,
        require_inputs,
    )
    from specds.loading import load_model
    from specds.tokenization import check_tokenizer

    kept = {"memory": memory is not None, "model_tables": model_tables}
    is_hierarchy = isinstance(drafter, HierarchyName)
    if is_hierarchy and memory is not None:
        raise ValueError("a hierarchy keeps no memory: leave out --memory")
    # What drafts for the smallest model of a hierarchy is made of the same.
    own = DrafterName.parse("fused") if is_hierarchy else drafter
    require_inputs(own, datastore=datastore is not None, **kept, model=True)
    if tenant and memory is None:
        raise ValueError("a tenant is whose requests a memory keeps: give it by --memory")
    if memory is not None and not memory.absolute().parent.is_dir():
        raise ValueError(f"{memory.parent}: no such folder: make it, or keep the memory elsewhere")
    opened = None if datastore is None else Datastore.open(datastore)
    loaded, tokenizer = load_model(model, device=device, dtype=dtype)
    if opened is not None:
        check_tokenizer(opened, tokenizer)
    import torch

    from specds.generation import generate as run

    torch.manual_seed(seed)
    ids = tokenizer(text_of(prompt), return_tensors="pt")["input_ids"].to(loaded.device)
    made: Drafter
    with terminal.build_progress(after_s=2.0) as progress:
        inputs = DrafterInputs(
            opened,
            loaded,
            progress=progress,
            weights=read_weights(weights),
            tokenizer=tokenizer,
            memory=memory,
            model_tables=model_tables,
        )
        if not is_hierarchy:
            made = make_drafter(drafter, inputs)
        else:
            retrieves = opened is not None or model_tables
            retrieval = make_drafter(own, inputs) if retrieves else None
            made = drafter.drafter(drafter.load(loaded, tokenizer), retrieval)
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        if temperature > 0
        else {"do_sample": False}
    )
    with terminal.err.status(f"generating up to {max_new_tokens} tokens"):
        output = run(
            loaded,
            ids,
            made.for_request(tenant) if isinstance(made, FusedDrafter) else made,
            budget=budget,
            verification=verification.value,
            max_new_tokens=max_new_tokens,
            attention_mask=torch.ones_like(ids),
            **sampling,
        )
    new_ids = output.sequences[0, ids.shape[1] :].tolist()
    if as_json:
        text = tokenizer.decode(new_ids)
        terminal.print_json(
            {
                "text": text,
                "token_ids": new_ids,
                "drafted": list(output.drafted),
                "stats": output.stats.to_dict(),
                "sources": made.stats() if isinstance(made, FusedDrafter) else {},
            }
        )
    else:
        terminal.out.print(display.coloured(tokenizer, new_ids, output.drafted), soft_wrap=True)
        terminal.err.print(display.stats_table(output.stats))
    if memory is not None and isinstance(made, FusedDrafter):
        made.save(memory)


def demo(
    num_prompts: Annotated[int, typer.Option("--prompts", min=1, help="Held-out prompts.")] = 12,
    drafter: _DRAFTER = "fused",
    max_new_tokens: _NEW_TOKENS = 128,
    budget: Budget = "auto",
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
    from specds.cli.demo import run_demo

    run_demo(
        num_prompts,
        max_new_tokens,
        budget,
        seed,
        drafter,
        verification=verification.value,
        as_json=as_json,
    )
