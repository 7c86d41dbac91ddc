"""`specds demo`: build a datastore from real code, complete held-out prompts both ways, compare."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specds import terminal
from specds.cli import display
from specds.cli.writing import coloured
from specds.demo.held_out import build_stdlib, prompts
from specds.demo.measure import MODES, compare
from specds.drafters import FusedDrafter
from specds.loading import load_model, one_thread_for

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specds.demo.measure import Comparison


def run_demo(
    num_prompts: int, max_new_tokens: int, *, verbose: bool = False, as_json: bool = False
) -> None:
    """Runs the demo and prints what it measured.

    Args:
        num_prompts: How many held-out prompts.
        max_new_tokens: Tokens for each of them.
        verbose: Tell where the time went.
        as_json: Print one JSON document instead of text and tables.
    """
    chosen = prompts(num_prompts)
    model, tokenizer = load_model("demo", device="cpu")
    one_thread_for("demo")
    with tempfile.TemporaryDirectory(prefix="specds-demo-") as folder:
        report = build_stdlib(tokenizer, Path(folder, "stdlib.specds"))
        if not as_json:
            terminal.out.print(display.facts_table("Datastore", report.to_dict()))
        make = partial(FusedDrafter, report.path)
        run = partial(compare, model, tokenizer, make, chosen, max_new_tokens=max_new_tokens)
        with terminal.request_progress("completing prompts,") as progress:
            total = len(MODES) * len(chosen)
            comparisons = [
                run(mode=mode, on_completion=partial(progress, mode, total), **settings)
                for mode, settings in MODES.items()
            ]
    if as_json:
        modes = [comparison.to_dict() for comparison in comparisons]
        terminal.print_json({"build": report.to_dict(), "modes": modes})
    else:
        for comparison, num_texts in zip(comparisons, (2, 1), strict=True):
            _show_texts(tokenizer, comparison, num_texts)
        terminal.out.print(display.comparison_table(comparisons, verbose=verbose))
        terminal.out.print(_NEXT, soft_wrap=True)


def _show_texts(tokenizer: PreTrainedTokenizerBase, comparison: Comparison, num_texts: int) -> None:
    """Some completions, those first that repeat themselves least: anybody can foretell a loop."""
    terminal.out.rule(f"{comparison.mode}: drafted and accepted tokens are green")
    fewest = sorted(comparison.completions, key=lambda completion: completion.repetition)
    for completion in fewest[:num_texts]:
        prompt = completion.prompt
        terminal.out.print(f"{prompt.name}", style="bold")
        terminal.out.print("\n".join(prompt.text.splitlines()[-3:]), style="dim")
        text = coloured(tokenizer, completion.token_ids, completion.drafted)
        terminal.out.print(text, soft_wrap=True)
        terminal.out.print()


_NEXT = """
Next, with your own model and code:
  specds build --corpus ./src --tokenizer MODEL --out src.specds
  specds generate --model MODEL --datastore src.specds "def main("
  specds chat --model MODEL --datastore src.specds --by-source
MODEL is a folder or a name on the hub, such as Qwen/Qwen2.5-Coder-1.5B-Instruct; or `demo`."""
