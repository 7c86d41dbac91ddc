"""`specds demo`: the speed of a model with drafts and without, on requests of several kinds.

SmolLM2 answers chat requests that share a request cache; the built-in model completes held-out code
with a datastore of the standard library. Needs no torch.
"""

from __future__ import annotations

import json
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from inspect import getsource
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.table import Table

from specds import terminal
from specds.bench.demo import build_stdlib, prompts
from specds.bench.generation.target import (
    PLAIN,
    Batch,
    BenchTarget,
    CallResult,
    Way,
    baseline_way,
    drafter_way,
    llama_cpp_way,
)
from specds.bench.turns import in_turns
from specds.cli import display
from specds.cli.stream_output import Writer
from specds.drafters import FusedDrafter
from specds.drafters.step import Step
from specds.models.gguf_model import GgufModel
from specds.models.load import load_model
from specds.models.resolve import SMOLLM2, ModelRef
from specds.terminal.progress import loading

_EDIT = f"Add a comment to this function:\n\n{getsource(textwrap.indent)}"
_QUESTION = "Write a Python class for a stack with push and pop."
_REQUESTS = (
    ("edit", _EDIT),
    ("question", _QUESTION),
    ("like it", _QUESTION.replace("stack with push and pop", "queue with put and get")),
    ("again", _QUESTION),
)
_ARTICLE = (
    "Ada Lovelace was born in London in 1815. She worked with Charles Babbage, who designed the "
    "Analytical Engine, and published the first program for it in 1843. She died in 1852."
)
_FIELDS = {
    "name": "string", "born_in_city": "string", "born_in_year": "integer",
    "worked_with": "string", "machine": "string", "program_published_in_year": "integer",
    "died_in_year": "integer",
}  # fmt: skip
_SCHEMA = {
    "type": "object",
    "properties": {name: {"type": kind} for name, kind in _FIELDS.items()},
    "required": [*_FIELDS],
    "additionalProperties": False,
}
_BASELINE = "without drafts"
# A gain that a user notices.
_NOTICED = 1.1
# A further round begins only if it ends within these seconds.
_MAX_SECONDS = 30.0
# The first passes of a process read the weights from the file, and its first grammar (of the last
# request) the texts of all tokens.
_WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class TimedRequest:
    """A prompt as token ids, its title, what is shown of it, and its grammar."""

    title: str
    shown: str
    token_ids: list[int]
    grammar: Any = None


@dataclass
class Answers:
    """The answers of one way to one request.

    Attributes:
        seconds: The wall-clock seconds of all rounds.
        cpu_seconds: The CPU seconds of all rounds, of all threads.
        num_tokens: The tokens of all rounds.
        text: The tokens of the last round.
        steps: The steps of the last round; none in llama.cpp.
        passes: The forward passes of the last round after the prompt.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    num_tokens: int = 0
    text: Sequence[int] = ()
    steps: Sequence[Step] = ()
    passes: int = 0


@dataclass
class Comparison:
    """The answers of each way to each request, by the names of both, and the number of rounds."""

    ways: Sequence[Way]
    answers: dict[str, dict[str, Answers]] = field(default_factory=dict)
    _calls: dict[str, Callable[[Batch, dict[str, Any]], CallResult]] = field(default_factory=dict)
    num_rounds: int = 0

    def start_round(self) -> None:
        self._calls = {way.name: way.start() for way in self.ways}
        self.num_rounds += 1

    def answer(self, request: TimedRequest, max_new_tokens: int) -> dict[str, Answers]:
        """Answer a request in each way; every round begins with another one."""
        rows = self.answers.setdefault(request.title, {way.name: Answers() for way in self.ways})
        settings = {"max_new_tokens": max_new_tokens, "do_sample": False}
        steps: dict[str, list[Step]] = {way.name: [] for way in self.ways}
        calls = {}
        for way in self.ways:
            if way.is_ours:
                own = {"grammar": request.grammar, "on_step": steps[way.name].append}
            elif request.grammar is not None:
                continue  # its grammars are of another kind
            else:
                own = {}
            call = self._calls[way.name]
            calls[way.name] = partial(call, [request.token_ids], settings | own)
        for name, timed in in_turns(calls, self.num_rounds).items():
            row, [text] = rows[name], timed.result.token_ids
            row.text, row.steps = text, steps[name]
            row.passes = timed.result.stats.num_drafts if timed.result.stats else len(text)
            row.seconds += timed.seconds
            row.cpu_seconds += timed.cpu_seconds
            row.num_tokens += len(text)
        return rows


def run_demo(
    name: str, num_prompts: int, max_new_tokens: int, *, rounds: int = 2, as_json: bool = False
) -> None:
    """Answer the requests for `smollm2` or `demo`; print texts and a table, or JSON.

    Slow machines have one round, for a result within half a minute.
    """
    start = perf_counter()
    with loading(name) as progress:
        model, tokenizer = load_model(name, device="cpu", framework="numpy", progress=progress)
    with tempfile.TemporaryDirectory(prefix="specds-demo-") as folder:
        if name == SMOLLM2:
            requests = chat_requests(model, tokenizer)

            def make_drafter() -> FusedDrafter:
                return FusedDrafter(vocab_size=len(tokenizer.get_vocab()))

        else:
            requests = _code_requests(model, tokenizer, num_prompts)
            report = build_stdlib(tokenizer, Path(folder, "stdlib.specds"))
            if not as_json:
                display.show_build(report.to_dict(), as_json=False, verbose=False)

            def make_drafter() -> FusedDrafter:
                return FusedDrafter(report.path)

        requests = requests[:num_prompts]
        ways: list[Way] = []
        if name == SMOLLM2 and find_spec("llama_cpp"):
            eos = model.settings["eos_token_id"]
            ways.append(llama_cpp_way(ModelRef.resolve(name).path, model.num_threads, eos))
        for activations in ("float32", "int8"):
            of_type = GgufModel(model.weights, activations, model.settings, model.name_or_path)
            of_type.threads = model.threads
            target = BenchTarget(of_type)
            ways += [
                replace(baseline_way(PLAIN, target), name=f"{activations}, {_BASELINE}"),
                drafter_way(activations, target, make_drafter, "auto"),
            ]
        warm_up = Comparison(ways)
        warm_up.start_round()
        for request in (requests[0], requests[-1]):
            warm_up.answer(request, _WARM_UP_TOKENS)
        comparison = Comparison(ways)
        round_start = perf_counter()
        comparison.start_round()
        for request in requests:
            if not as_json:
                terminal.out.rule(request.title)
                terminal.out.print(request.shown, style="dim", soft_wrap=True)
            rows = comparison.answer(request, max_new_tokens)
            if not as_json:
                _show(rows, tokenizer)
        round_s = perf_counter() - round_start
        for number in range(1, rounds):
            if perf_counter() - start + round_s > _MAX_SECONDS:
                break
            comparison.start_round()
            with terminal.waiting(f"round {number + 1} of {rounds}, in another order"):
                for request in requests:
                    comparison.answer(request, max_new_tokens)
    if as_json:
        result = {"model": name, "rounds": comparison.num_rounds, "requests": _records(comparison)}
        terminal.print_json(result)
        return
    terminal.out.print(display.titled("tokens a second", _table(comparison)))
    for line in _summary(comparison):
        terminal.out.print(line, soft_wrap=True)
    terminal.out.print(_NEXT, soft_wrap=True)


def chat_requests(model: Any, tokenizer: Any) -> list[TimedRequest]:
    def request(title: str, message: str, grammar: Any = None) -> TimedRequest:
        messages, asked = [{"role": "user", "content": message}], {"add_generation_prompt": True}
        prompt = tokenizer.apply_chat_template(messages, return_dict=True, **asked)
        return TimedRequest(title, message, prompt["input_ids"], grammar)

    requests = [request(*each) for each in _REQUESTS]
    if find_spec("llguidance") is None:
        return requests
    from specds.constraints.of_llguidance import grammar_source, matcher_of

    source = grammar_source(json.dumps(_SCHEMA), None)
    assert source is not None
    grammar = matcher_of(source, tokenizer, model.vocab_size, model.settings["eos_token_id"])
    return [*requests, request("JSON", f"Write this as JSON:\n\n{_ARTICLE}", grammar)]


def _code_requests(model: Any, tokenizer: Any, number: int) -> list[TimedRequest]:
    return [
        TimedRequest(
            prompt.name,
            "\n".join(prompt.text.splitlines()[-3:]),
            tokenizer.encode(prompt.text),
        )
        for prompt in prompts(number)
    ]


def _show(rows: dict[str, Answers], tokenizer: Any) -> None:
    """Print the text of float32, drafted tokens in color, and whether drafts changed a text."""
    writer = Writer(tokenizer)
    for step in rows["float32"].steps:
        writer(step)
    writer.end()
    answer = rows["float32"]
    same = "the same text" if _is_identical(rows) else "ANOTHER TEXT"
    figures = (
        f"{answer.passes} forward passes for {len(answer.text)} tokens; without drafts: {same}"
    )
    terminal.out.print(figures, style="bold", soft_wrap=True)


def _is_identical(rows: dict[str, Answers]) -> bool:
    pairs = (("float32", f"float32, {_BASELINE}"), ("int8", f"int8, {_BASELINE}"))
    return all(rows[way].text == rows[baseline].text for way, baseline in pairs)


def _gain(rows: Sequence[dict[str, Answers]], way: str, clock: str = "seconds") -> float:
    """Return the time without drafts over the time with them, of some requests together."""
    baseline, drafts = (
        sum(float(getattr(row[name], clock)) for row in rows)
        for name in (f"{way}, {_BASELINE}", way)
    )
    return baseline / drafts


def _table(comparison: Comparison) -> Table:
    answers = comparison.answers
    table = Table("", *display.numbers(*answers, "all"))
    for way in comparison.ways:
        rows = [row[way.name] for row in answers.values()]
        speeds = [f"{row.num_tokens / row.seconds:.0f}" if row.seconds else "" for row in rows]
        is_whole = all(row.seconds for row in rows)
        total = sum(row.num_tokens for row in rows) / sum(row.seconds for row in rows)
        table.add_row(way.name, *speeds, f"{total:.0f}" if is_whole else "")
        if f"{way.name}, {_BASELINE}" in {each.name for each in comparison.ways}:
            gains = [_gain([row], way.name) for row in answers.values()]
            gains.append(_gain([*answers.values()], way.name))
            table.add_row("  gain of drafts", *(f"{gain:.2f}x" for gain in gains), style="bold")
            table.add_section()
    return table


def _summary(comparison: Comparison) -> list[str]:
    """Return what gains and what does not, as sentences."""
    answers = comparison.answers
    every = [*answers.values()]
    gains = {title: _gain([row], "int8") for title, row in answers.items()}
    noticed = [f"{title} ({gain:.1f}x)" for title, gain in gains.items() if gain >= _NOTICED]
    others = [title for title, gain in gains.items() if gain < _NOTICED]
    float32, int8 = (_gain(every, way, "cpu_seconds") for way in ("float32", "int8"))
    lines = [f"In CPU time, drafts gain {float32:.2f}x (float32) and {int8:.2f}x (int8)."]
    if noticed:
        lines.append(f"Drafts gain on text that repeats: {', '.join(noticed)}.")
    if others:
        lines.append(f"They gain little on new text: {', '.join(others)}.")
    if any(not _is_identical(row) for row in every):
        lines.append("DRAFTS CHANGED A TEXT: please report it.")
    else:
        lines.append("Drafts changed no text; int8 rounds activations, so its texts may differ.")
    return lines


def _records(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "request": title,
            "identical": _is_identical(rows),
            "ways": {
                name: {
                    "num_tokens": row.num_tokens,
                    "passes": row.passes,
                    "seconds": row.seconds,
                    "cpu_seconds": row.cpu_seconds,
                }
                for name, row in rows.items()
            },
        }
        for title, rows in comparison.answers.items()
    ]


_NEXT = """
Next, with your own model and text:
  specds chat --model FILE.gguf --memory mine.memory
  specds build --corpus ./src --tokenizer FILE.gguf --out src.specds
  specds generate --model FILE.gguf --datastore src.specds "def main("
A name on the hub, such as Qwen/Qwen2.5-Coder-1.5B-Instruct, will do, too."""
