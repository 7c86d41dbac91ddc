"""`specds demo`: build a datastore from real code, complete held-out prompts both ways, compare."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from specds import display
from specds.build import BuildReport, build_datastore
from specds.corpora import CorpusOptions, open_corpus
from specds.demo.held_out import HELD_OUT, prompts
from specds.demo.measure import Comparison, compare
from specds.drafters import DrafterName, node_budget, open_drafter
from specds.loading import load_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerBase

MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled, T = 0.7": {"do_sample": True, "temperature": 0.7, "top_k": 0},
}


def run_demo(
    num_prompts: int,
    max_new_tokens: int,
    max_nodes: int | None,
    seed: int,
    drafter_name: DrafterName = DrafterName.FUSED,
    *,
    verification: str = "auto",
    as_json: bool = False,
) -> None:
    """Runs the demo and prints what it measured.

    Args:
        num_prompts: How many held-out prompts.
        max_new_tokens: Tokens for each of them.
        max_nodes: Node budget of a draft; by default the drafter's own, else 8.
        seed: Chooses the prompts, and seeds the sampling.
        drafter_name: What drafts.
        verification: How drafts are verified, as in `specds.generate`.
        as_json: Print one JSON document instead of text and tables.
    """
    chosen = prompts(num_prompts, seed=seed)
    model, tokenizer = load_model("demo", device="cpu")
    with tempfile.TemporaryDirectory(prefix="specds-demo-") as folder:
        report = _build(tokenizer, Path(folder, "stdlib.specds"))
        if not as_json:
            display.out.print(display.build_table(report))
        drafter = open_drafter(drafter_name, report.path, model)
        compare_in_mode = partial(
            compare,
            model,
            tokenizer,
            drafter,
            chosen,
            max_nodes=node_budget(drafter, max_nodes, 8),
            verification=verification,
            seed=seed,
            max_new_tokens=max_new_tokens,
        )
        comparisons = _in_all_modes(compare_in_mode, len(chosen))
    if as_json:
        modes = [comparison.to_dict() for comparison in comparisons]
        display.print_json({"build": report.to_dict(), "modes": modes})
    else:
        for comparison in comparisons:
            _show_text(tokenizer, comparison)
        display.out.print(display.comparison_table(comparisons))


def _build(tokenizer: PreTrainedTokenizerBase, out: Path) -> BuildReport:
    corpus = open_corpus("stdlib", CorpusOptions(without=tuple(sorted(HELD_OUT))))
    with display.build_progress() as progress:
        return build_datastore(corpus, tokenizer, out, tokenizer_name="demo", progress=progress)


def _in_all_modes(compare_in_mode: Callable[..., Comparison], num_prompts: int) -> list[Comparison]:
    columns = ("{task.description}", MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=display.err) as progress:
        comparisons = []
        for mode, settings in MODES.items():
            task = progress.add_task(f"completing prompts, {mode}", total=num_prompts)
            advance = partial(progress.advance, task)
            comparisons.append(compare_in_mode(mode=mode, on_completion=advance, **settings))
        return comparisons


def _show_text(tokenizer: PreTrainedTokenizerBase, comparison: Comparison) -> None:
    display.out.rule(f"{comparison.mode}: drafted and accepted tokens are green")
    for completion in comparison.completions[:2]:
        prompt = completion.prompt
        display.out.print(f"{prompt.name}", style="bold")
        display.out.print("\n".join(prompt.text.splitlines()[-3:]), style="dim", markup=False)
        text = display.coloured(tokenizer, completion.token_ids, completion.drafted)
        display.out.print(text, soft_wrap=True)
        display.out.print()
