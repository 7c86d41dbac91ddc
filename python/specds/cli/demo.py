"""`specds demo`: build a datastore from real code, complete held-out prompts both ways, compare."""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table
from transformers import PreTrainedTokenizerBase

from specds import terminal
from specds.bench.demo import MODES, Prompt, build_stdlib, prompts
from specds.bench.generation.measure import (
    Plan,
    Run,
    Target,
    Way,
    baseline_way,
    batches_of,
    measure,
    own_calls,
)
from specds.cli import display
from specds.cli.stream_output import coloured
from specds.decoding.stats import GenerationStats
from specds.drafters import FusedDrafter
from specds.models.load import load_model, one_thread_for
from specds.terminal.progress import request_progress


def run_demo(
    num_prompts: int, max_new_tokens: int, *, verbose: bool = False, as_json: bool = False
) -> None:
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
        with request_progress("completing prompts,") as progress:
            cells = measure(plan, lambda mode: progress(mode, plan.num_rounds))
    pairs = [(cells[0].runs[0], cells[1].runs[0]), (cells[2].runs[0], cells[3].runs[0])]
    modes = [compared(mode, *pair) for mode, pair in zip(MODES, pairs, strict=True)]
    if as_json:
        terminal.print_json({"build": report.to_dict(), "modes": modes})
        return
    for mode, (_, ours), num_texts in zip(MODES, pairs, (2, 1), strict=True):
        terminal.out.rule(f"{mode}: drafted and accepted tokens are green")
        _show_texts(tokenizer, chosen, ours, num_texts)
    table = Table("", *display.numbers(*MODES))
    columns = [
        _column(mode, ours.stats, verbose) for mode, (_, ours) in zip(modes, pairs, strict=True)
    ]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    terminal.out.print(display.titled("specds against model.generate", table))
    terminal.out.print(_NEXT, soft_wrap=True)


_WINDOW = 8
_LOOPING = 0.1
_SHOWN = 48


def repetition(token_ids: Sequence[int]) -> float:
    """The share of a text's tokens that end 8 tokens which it has written before."""
    windows = [tuple(token_ids[end - _WINDOW : end]) for end in range(_WINDOW, len(token_ids) + 1)]
    return (len(windows) - len(set(windows))) / max(len(token_ids), 1)


def num_fresh(token_ids: Sequence[int]) -> int:
    """How many tokens to show: small models lose the thread soon, and then repeat themselves."""
    seen: set[tuple[int, ...]] = set()
    for end in range(_WINDOW, min(len(token_ids), _SHOWN) + 1):
        window = tuple(token_ids[end - _WINDOW : end])
        if window in seen:
            return end - _WINDOW
        seen.add(window)
    return min(len(token_ids), _SHOWN)


def compared(mode: str, plain: Run, ours: Run) -> dict[str, Any]:
    """The figures of specds beside those of `model.generate`, with the same settings.

    `fresh` are the texts that hardly repeat themselves; the speed-up of none is null.
    """
    num_tokens = sum(map(len, ours.texts))
    fresh = [n for n, text in enumerate(ours.texts) if repetition(text) < _LOOPING]
    theirs_s, ours_s = (sum(run.seconds[number] for number in fresh) for run in (plain, ours))
    return {
        "mode": mode,
        "identical": ours.texts == plain.texts,
        "speed_up": ours.tokens_per_s / plain.tokens_per_s,
        "repetition": sum(repetition(text) * len(text) for text in ours.texts) / num_tokens,
        "fresh_speed_up": theirs_s / ours_s if fresh else None,
        "num_prompts": len(ours.texts),
        "num_tokens": num_tokens,
        "num_fresh": len(fresh),
        "plain_tokens_per_s": plain.tokens_per_s,
        "specds_tokens_per_s": ours.tokens_per_s,
        "stats": ours.stats.to_dict(),
    }


def _show_texts(
    tokenizer: PreTrainedTokenizerBase, chosen: Sequence[Prompt], ours: Run, num_texts: int
) -> None:
    """Beginnings of completions, those that repeat themselves least first."""
    texts = zip(chosen, ours.texts, ours.results, strict=True)
    for prompt, text, result in sorted(texts, key=lambda each: repetition(each[1]))[:num_texts]:
        terminal.out.print(f"{prompt.name}", style="bold")
        terminal.out.print("\n".join(prompt.text.splitlines()[-3:]), style="dim")
        fresh = num_fresh(text)
        shown = coloured(tokenizer, text[:fresh], result.drafted[0][:fresh])
        terminal.out.print(shown.append(" ..." if fresh < len(text) else "", "dim"), soft_wrap=True)
        terminal.out.print()


def _column(mode: dict[str, Any], stats: GenerationStats, verbose: bool) -> dict[str, str]:
    fresh, drafting = mode["fresh_speed_up"], [*display.drafting_rows(stats).items()]
    return {
        "identical output": "yes" if mode["identical"] else "NO",
        "model.generate, tokens/s": f"{mode['plain_tokens_per_s']:.0f}",
        "specds, tokens/s": f"{mode['specds_tokens_per_s']:.0f}",
        "speed-up": f"{mode['speed_up']:.2f}x",
        "text that repeats itself": f"{mode['repetition']:.0%}",
        "speed-up of texts that do not": f"{fresh:.2f}x of {mode['num_fresh']}" if fresh else "",
        **dict(drafting[: None if verbose else 3]),
    }


_NEXT = """
Next, with your own model and code:
  specds build --corpus ./src --tokenizer MODEL --out src.specds
  specds generate --model MODEL --datastore src.specds "def main("
  specds chat --model MODEL --datastore src.specds --by-source
MODEL is a folder or a name on the hub, such as Qwen/Qwen2.5-Coder-1.5B-Instruct; or `demo`."""
