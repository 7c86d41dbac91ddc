"""`specds demo`: requests completed with drafts and without, compared; without torch.

SmolLM2 answers chat requests that share a memory; the built-in model completes held-out code with a
datastore of the standard library. Times are those that a user waits.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from specds import terminal
from specds.bench.demo import build_stdlib, prompts
from specds.cli import display
from specds.cli.stream_output import Writer
from specds.drafters import FusedDrafter
from specds.generation import generate
from specds.generation.chat import prompt_of
from specds.models.load import load_model
from specds.models.resolve import SMOLLM2

# SmolLM2-135M does these without mistakes.
_EDIT = (
    "Change the name Anna to Maria in this text:\n\nAnna lives in Paris. Anna works in a library, "
    "and Anna reads a book every week."
)
_QUESTION = "Write a Python function that adds two numbers."
_SCENES = (
    ("an edit", _EDIT),
    ("a question", _QUESTION),
    ("one like it", _QUESTION.replace("adds", "multiplies")),
    ("the first again", _QUESTION),
)


@dataclass(frozen=True)
class Scene:
    title: str
    prompt: str
    token_ids: Any


def run_demo(name: str, num_prompts: int, max_new_tokens: int, *, as_json: bool = False) -> None:
    """Run the scenes of `smollm2` or `demo`, and print texts and a table, or JSON."""
    is_smollm2 = name == SMOLLM2
    with terminal.waiting(f"loading {name}"):
        model, tokenizer = load_model(name, device="cpu", framework="numpy")
    with tempfile.TemporaryDirectory(prefix="specds-demo-") as folder:
        if is_smollm2:
            scenes = _chat_scenes(model, tokenizer)[:num_prompts]
            memory = Path(folder, "answers.memory")

            def make_drafter() -> FusedDrafter:
                return FusedDrafter.resume(memory, tokenizer=tokenizer)

        else:
            scenes = _code_scenes(model, tokenizer, num_prompts)
            report = build_stdlib(tokenizer, Path(folder, "stdlib.specds"))
            if not as_json:
                display.show_build(report.to_dict(), as_json=False, verbose=False)
            of_datastore = FusedDrafter(report.path)

            def make_drafter() -> FusedDrafter:
                return of_datastore

        rows = []
        for scene in scenes:
            drafter = make_drafter()
            rows.append(_compare(model, tokenizer, scene, drafter, max_new_tokens, as_json))
            if is_smollm2:
                drafter.save(memory)
    if as_json:
        terminal.print_json({"model": name, "scenes": rows})
        return
    terminal.out.print(display.titled("with drafts and without", _table(rows)))
    terminal.out.print(_NEXT, soft_wrap=True)


def _chat_scenes(model: Any, tokenizer: Any) -> list[Scene]:
    def ids(request: str) -> Any:
        messages, asked = [{"role": "user", "content": request}], {"add_generation_prompt": True}
        prompt = tokenizer.apply_chat_template(messages, return_dict=True, **asked)
        return prompt_of(model, prompt["input_ids"])

    return [Scene(title, request, ids(request)) for title, request in _SCENES]


def _code_scenes(model: Any, tokenizer: Any, num_prompts: int) -> list[Scene]:
    return [
        Scene(
            prompt.name,
            "\n".join(prompt.text.splitlines()[-3:]),
            prompt_of(model, tokenizer.encode(prompt.text)),
        )
        for prompt in prompts(num_prompts)
    ]


def _compare(
    model: Any,
    tokenizer: Any,
    scene: Scene,
    drafter: FusedDrafter,
    max_new_tokens: int,
    is_silent: bool,
) -> dict[str, Any]:
    """Complete a scene with drafts, shown as it is written, and without."""
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False}
    ids = scene.token_ids
    if not is_silent:
        terminal.out.rule(scene.title)
        terminal.out.print(scene.prompt, style="dim")
    writer = Writer(tokenizer, is_silent=is_silent)
    start = time.perf_counter()
    output = generate(model, ids, drafter, on_step=writer, **settings)
    specds_s = time.perf_counter() - start
    if not is_silent:
        writer.end()
    start = time.perf_counter()
    baseline = generate(model, ids, None, max_nodes=0, **settings)
    row = {
        "scene": scene.title,
        "identical": output.sequences.tolist() == baseline.sequences.tolist(),
        "baseline_s": time.perf_counter() - start,
        "specds_s": specds_s,
        "stats": output.stats.to_dict(),
    }
    if not is_silent:
        same = "the same text" if row["identical"] else "ANOTHER TEXT"
        figures = (
            f"{specds_s:.1f} s, {output.stats.num_drafts} forward passes for "
            f"{output.stats.num_emitted_tokens} tokens; without drafts: {row['baseline_s']:.1f} s, "
            f"{same}: {_speedup(row)}"
        )
        terminal.out.print(figures, style="bold", soft_wrap=True)
    return row


def _speedup(row: dict[str, Any]) -> str:
    return f"{row['baseline_s'] / row['specds_s']:.2f}x"


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    names = ("tokens", "passes", "identical", "without", "with drafts", "speedup")
    table = Table("", *display.numbers(*names))
    totals = [sum(row[name] for row in rows) for name in ("baseline_s", "specds_s")]
    for row in rows:
        table.add_row(
            row["scene"],
            f"{row['stats']['num_emitted_tokens']}",
            f"{row['stats']['num_drafts']}",
            "yes" if row["identical"] else "NO",
            f"{row['baseline_s']:.1f} s",
            f"{row['specds_s']:.1f} s",
            _speedup(row),
        )
    sums = (f"{total:.1f} s" for total in totals)
    table.add_row("all", "", "", "", *sums, f"{totals[0] / totals[1]:.2f}x")
    return table


_NEXT = """
Next, with your own model and code:
  specds build --corpus ./src --tokenizer MODEL --out src.specds
  specds generate --model MODEL --datastore src.specds "def main("
  specds chat --model MODEL --memory mine.memory --by-source
MODEL is a folder or a name on the hub, such as Qwen/Qwen2.5-Coder-1.5B-Instruct, or `demo`."""
