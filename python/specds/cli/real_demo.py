"""`specds demo --real`: a real model edits a text, answers, and remembers what it answered."""

import tempfile
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from specds import terminal
from specds.cli import display
from specds.cli.stream_output import Writer
from specds.drafters import FusedDrafter
from specds.generation import generate
from specds.models.load import load_model
from specds.models.resolve import SMOLLM2

_EDIT = (
    "Correct the spelling and grammar. Answer with the corrected text alone.\n\nYesterday me and "
    "my brother goes to the market for buy some fruits. The apples was very expensive, so we has "
    "bought only two of them."
)
_QUESTION = "Write a Python function that returns the largest number of a list."
# What each shows, and what is asked; all of one memory, which each takes up from its file.
_SCENES = (
    ("an edit", _EDIT),
    ("a question", _QUESTION),
    ("one like it", _QUESTION.replace("largest", "smallest")),
    ("the first, again", _QUESTION),
)


def run_real_demo(max_new_tokens: int, *, as_json: bool = False) -> None:
    with terminal.waiting("reading SmolLM2-135M-Instruct"):
        model, tokenizer = load_model(SMOLLM2, device="cpu")
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False}
    own: Any = model.generate
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="specds-demo-") as folder:
        memory = Path(folder, "answers.memory")
        for title, asked in _SCENES:
            said = [{"role": "user", "content": asked}]
            prompt: Any = tokenizer.apply_chat_template(
                said, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            ids = prompt["input_ids"]
            drafter = FusedDrafter.resume(memory, tokenizer=tokenizer)
            if not as_json:
                terminal.out.rule(title)
                terminal.out.print(asked, style="dim")
            writer = Writer(tokenizer, hidden=tokenizer.all_special_ids, is_silent=as_json)
            output = generate(model, ids, drafter, on_step=writer, **settings)
            drafter.save(memory)
            start = time.perf_counter()
            plain = own(ids, attention_mask=ids.new_ones(ids.shape), **settings)
            rows.append(
                {
                    "scene": title,
                    "identical": output.sequences.tolist() == plain.tolist(),
                    "plain_s": time.perf_counter() - start,
                    "specds_s": output.stats.total_s - output.stats.measure_s,
                    "stats": output.stats.to_dict(),
                }
            )
            if not as_json:
                writer.end()
    if as_json:
        terminal.print_json({"scenes": rows})
        return
    terminal.out.print(display.titled("specds against model.generate", _table(rows)))
    terminal.out.print(
        "Talk to it: specds chat --model smollm2 --memory mine.memory", soft_wrap=True
    )


def _table(rows: list[dict[str, Any]]) -> Table:
    names = ("tokens", "passes", "identical", "generate", "specds", "speed-up")
    table = Table("", *display.numbers(*names))
    for row in rows:
        stats = row["stats"]
        table.add_row(
            row["scene"],
            f"{stats['num_emitted_tokens']}",
            f"{1 + stats['num_drafts']}",
            "yes" if row["identical"] else "NO",
            f"{row['plain_s']:.1f} s",
            f"{row['specds_s']:.1f} s",
            f"{row['plain_s'] / row['specds_s']:.2f}x",
        )
    return table
