"""`specds demo`: build a datastore from real code, complete held-out prompts both ways, compare."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specds import terminal
from specds.bench.generation.measure import Plan, batches_of, measure
from specds.bench.generation.ways import Target, Way, baseline_way, own_calls
from specds.cli import display
from specds.cli.writing import coloured
from specds.demo.held_out import MODES, build_stdlib, prompts
from specds.drafters import FusedDrafter
from specds.loading import load_model, one_thread_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table
    from transformers import PreTrainedTokenizerBase

    from specds.bench.generation.measure import Run
    from specds.demo.held_out import Prompt


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
    target, length = Target(model), {"max_new_tokens": max_new_tokens}
    calls = batches_of([tokenizer(prompt.text)["input_ids"] for prompt in chosen], 1)
    with tempfile.TemporaryDirectory(prefix="specds-demo-") as folder:
        report = build_stdlib(tokenizer, Path(folder, "stdlib.specds"))
        if not as_json:
            terminal.out.print(display.facts_table("Datastore", report.to_dict()))
        start = partial(own_calls, target, partial(FusedDrafter, report.path), "auto")
        plan = Plan(
            target,
            [baseline_way("generate", target), Way("fused", start, is_ours=True)],
            {mode: settings | length for mode, settings in MODES.items()},
            {1: calls},
            runs=1,
            seed=1,
            warm_up={"max_new_tokens": 8},
        )
        with terminal.request_progress("completing prompts,") as progress:
            cells = measure(plan, lambda mode: progress(mode, plan.num_rounds))
    runs = [cell.runs[0] for cell in cells]
    modes = [
        Comparison(mode, chosen, *pair)
        for mode, pair in zip(MODES, zip(runs[::2], runs[1::2], strict=True), strict=True)
    ]
    if as_json:
        facts = [mode.to_dict() for mode in modes]
        terminal.print_json({"build": report.to_dict(), "modes": facts})
        return
    for mode, num_texts in zip(modes, (2, 1), strict=True):
        _show_texts(tokenizer, mode, num_texts)
    terminal.out.print(_table(modes, verbose=verbose))
    terminal.out.print(_NEXT, soft_wrap=True)


_WINDOW = 8
_LOOPING = 0.1


def repetition(token_ids: Sequence[int]) -> float:
    """The share of a text's tokens that end 8 tokens which it has written before."""
    windows = [tuple(token_ids[end - _WINDOW : end]) for end in range(_WINDOW, len(token_ids) + 1)]
    return (len(windows) - len(set(windows))) / max(len(token_ids), 1)


@dataclass(frozen=True)
class Comparison:
    """`model.generate` against specds over some prompts, with the same settings."""

    mode: str
    prompts: Sequence[Prompt]
    plain: Run
    ours: Run

    @property
    def identical(self) -> bool:
        """Whether every completion was the same, token for token."""
        return self.ours.texts == self.plain.texts

    @property
    def speed_up(self) -> float:
        """How many times faster specds was, whole run against whole run."""
        return self.ours.tokens_per_s / self.plain.tokens_per_s

    @property
    def repetition(self) -> float:
        """The share of all tokens that repeat what their text says already, as in a loop."""
        texts = self.ours.texts
        return sum(repetition(text) * len(text) for text in texts) / max(sum(map(len, texts)), 1)

    @property
    def fresh(self) -> list[int]:
        """The completions that hardly repeat themselves, by their numbers."""
        return [n for n, text in enumerate(self.ours.texts) if repetition(text) < _LOOPING]

    @property
    def fresh_speed_up(self) -> float | None:
        """The speed-up over these completions; None where there are none."""
        ours = sum(self.ours.seconds[number] for number in self.fresh)
        return sum(self.plain.seconds[number] for number in self.fresh) / ours if ours else None

    def to_dict(self) -> dict[str, Any]:
        """Everything measured, as plain values."""
        names = ("mode", "identical", "speed_up", "repetition", "fresh_speed_up")
        texts = self.ours.texts
        return {
            **{name: getattr(self, name) for name in names},
            "num_prompts": len(texts),
            "num_tokens": sum(map(len, texts)),
            "num_fresh": len(self.fresh),
            "plain_tokens_per_s": self.plain.tokens_per_s,
            "specds_tokens_per_s": self.ours.tokens_per_s,
            "stats": self.ours.stats.to_dict(),
            "prompts": [
                {
                    "name": prompt.name,
                    "identical": texts[number] == self.plain.texts[number],
                    "num_tokens": len(texts[number]),
                    "speed_up": self.plain.seconds[number] / self.ours.seconds[number],
                }
                for number, prompt in enumerate(self.prompts)
            ],
        }


def _show_texts(tokenizer: PreTrainedTokenizerBase, mode: Comparison, num_texts: int) -> None:
    """Some completions, those that repeat themselves least first, as a loop is easy to predict."""
    terminal.out.rule(f"{mode.mode}: drafted and accepted tokens are green")
    texts = zip(mode.prompts, mode.ours.texts, mode.ours.results, strict=True)
    for prompt, text, result in sorted(texts, key=lambda each: repetition(each[1]))[:num_texts]:
        terminal.out.print(f"{prompt.name}", style="bold")
        terminal.out.print("\n".join(prompt.text.splitlines()[-3:]), style="dim")
        terminal.out.print(coloured(tokenizer, text, result.drafted[0]), soft_wrap=True)
        terminal.out.print()


def _table(comparisons: Sequence[Comparison], *, verbose: bool) -> Table:
    """`model.generate` against specds, one column for each way of choosing tokens."""
    table = display.TitledTable(title="specds against model.generate")
    table.add_column("")
    for comparison in comparisons:
        table.add_column(comparison.mode, justify="right")
    columns = [_comparison_rows(comparison, verbose) for comparison in comparisons]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _comparison_rows(comparison: Comparison, verbose: bool) -> dict[str, str]:
    fresh, num_fresh = comparison.fresh_speed_up, len(comparison.fresh)
    drafting = [*display.drafting_rows(comparison.ours.stats).items()]
    return {
        "identical output": "yes" if comparison.identical else "NO",
        "model.generate, tokens/s": f"{comparison.plain.tokens_per_s:.0f}",
        "specds, tokens/s": f"{comparison.ours.tokens_per_s:.0f}",
        "speed-up": f"{comparison.speed_up:.2f}x",
        "text that repeats itself": f"{comparison.repetition:.0%}",
        "speed-up of texts that do not": "" if fresh is None else f"{fresh:.2f}x of {num_fresh}",
        **dict(drafting[: None if verbose else 3]),
    }


_NEXT = """
Next, with your own model and code:
  specds build --corpus ./src --tokenizer MODEL --out src.specds
  specds generate --model MODEL --datastore src.specds "def main("
  specds chat --model MODEL --datastore src.specds --by-source
MODEL is a folder or a name on the hub, such as Qwen/Qwen2.5-Coder-1.5B-Instruct; or `demo`."""
