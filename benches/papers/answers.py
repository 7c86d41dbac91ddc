"""Answers to draft for, recorded or the demo model's own, and how many tokens a forward gives."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from demo_setup import prompt_ids
from specds.bench.harness import open_datastores, tokenizer_of
from specds.bench.replay.measure import follow
from specds.bench.transcripts import Transcript, read_files
from specds.demo import prompts
from specds.loading import load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specds import Datastore
    from specds.drafters import Drafter

Row = dict[str, str]
"""A cell by its column; the first names the row."""


@dataclass(frozen=True)
class Answer(Transcript):
    """A transcript and the id of its row."""

    id: str = ""


@dataclass
class Setup:
    """What the parts are made of, each loaded when the first part asks for it."""

    transcripts: Sequence[Path] = ()
    datastore_paths: Sequence[Path] = ()
    tokenizer: str | None = None
    num_prompts: int = 24
    new_tokens: int = 128
    _written: dict[tuple[tuple[str, Any], ...], list[Answer]] = field(default_factory=dict)

    @cached_property
    def datastores(self) -> list[Datastore]:
        if not self.datastore_paths:
            raise SystemExit("this part needs --datastore: the whole corpus, or several sizes")
        return open_datastores(self.datastore_paths)

    @property
    def datastore(self) -> Datastore:
        """The largest."""
        return max(self.datastores, key=lambda datastore: datastore.num_tokens)

    @cached_property
    def recorded(self) -> list[Answer]:
        if not self.transcripts:
            raise SystemExit("this part needs --transcripts: files of recorded answers")
        stores = self.datastores if self.datastore_paths else []
        _, tokenizer = tokenizer_of(self.tokenizer, stores)
        answers = []
        for path in self.transcripts:
            ids = [str(json.loads(line)["id"]) for line in path.read_text().splitlines()]
            rows = zip(ids, read_files([path], tokenizer), strict=True)
            answers += [Answer(**vars(transcript), id=each) for each, transcript in rows]
        return answers

    @cached_property
    def demo(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        return load_model("demo", device="cpu")

    def written(self, **how: Any) -> list[Answer]:
        """What the demo's model writes to held-out prompts; greedy unless `how` says otherwise."""
        key = tuple(sorted(how.items()))
        if key not in self._written:
            self._written[key] = [*self._write(how or {"do_sample": False})]
        return self._written[key]

    def _write(self, how: Mapping[str, Any]) -> Iterator[Answer]:
        model, tokenizer = self.demo
        for number, ids in enumerate(prompt_ids(tokenizer, prompts(self.num_prompts))):
            torch.manual_seed(number)
            mask = torch.ones_like(ids)
            text = model.generate(ids, attention_mask=mask, max_new_tokens=self.new_tokens, **how)
            yield Answer("demo", ids[0].numpy(), text[0, ids.shape[1] :].numpy(), id=str(number))


def by_set(answer: Answer, _: int) -> str:
    return answer.source


def lengths(
    title: str,
    drafters: Mapping[str, Drafter],
    answers: Sequence[Answer],
    *,
    budget: int | None = None,
    column: Callable[[Answer, int], str] = by_set,
) -> Iterator[Row]:
    """Tokens per forward, a row a drafter.

    Args:
        title: Of the first column.
        drafters: By what names the row.
        answers: What is replayed, in this order.
        budget: The most nodes of a draft; by default the drafter's own number.
        column: Where a step counts, by its answer and the tokens written before.
    """
    for label, drafter in drafters.items():
        nodes = budget or getattr(drafter, "max_nodes", None) or 64
        num_tokens, forwards = Counter[str](), Counter[str]()
        for answer in answers:
            for replayed in follow(drafter.session(answer.prompt_ids), answer, nodes):
                name = column(answer, replayed.position)
                num_tokens[name] += len(replayed.step.token_ids)
                forwards[name] += 1
        figures = {name: f"{num_tokens[name] / count:.2f}" for name, count in forwards.items()}
        yield {title: label, **figures}


def shares(counts: Counter[int], keys: Sequence[int]) -> Row:
    """The share of each key in per cent."""
    total = max(sum(counts.values()), 1)
    return {str(key): f"{100 * counts[key] / total:.0f} %" for key in keys}


def markdown(rows: Sequence[Row]) -> str:
    """Rows as a table."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    lines += [[row.get(name, "") for name in columns] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
