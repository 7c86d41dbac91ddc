"""REST and ADED over recorded answers: what follows the context in a corpus."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from demo_setup import demo
from papers.answers import Answer, Row, Setup, by_set, lengths
from papers.published_rest import PAST_END, PublishedDrafter, PublishedSession, retrieve, tree_of
from specds import Datastore, RestDrafter
from specds.drafters import (
    AdedConfig,
    AdedDrafter,
    NGrammysConfig,
    NGrammysDrafter,
    RestConfig,
    TokenTree,
    Trigrams,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np


TASKS = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
PARTS_OF_ANSWERS = (64, 128, 256, 512)


def rest_match(setup: Setup) -> Iterator[Row]:
    drafters = {
        str(length): RestDrafter(setup.datastore, RestConfig(max_match=length))
        for length in (1, 2, 3, 4, 6, 8, 12, 16)
    }
    return lengths("n_max", drafters, setup.recorded, budget=64)


class RandomDrafter(PublishedDrafter):
    """Eight random continuations of eight tokens, of those that the published program ranks."""

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> RandomSession:
        return RandomSession(self._datastore, self._array, self._random, prompt_ids)


class RandomSession(PublishedSession):
    def draft(self, *_: Any) -> TokenTree:
        rows = retrieve(self._array, self._datastore, self._context)[:, :8]
        nodes = set()
        for index in self._random.permutation(len(rows))[:8]:
            path = [token for token in rows[index].tolist() if token != PAST_END]
            nodes |= {tuple(path[:length]) for length in range(1, len(path) + 1)}
        return tree_of(nodes)


def rest_selection(setup: Setup) -> Iterator[Row]:
    drafters = {
        "random, 8 of 8 tokens": RandomDrafter(setup.datastore),
        "trie, as published": PublishedDrafter(setup.datastore),
        "trie, `rest`": RestDrafter(setup.datastore),
    }
    return lengths("selected", drafters, setup.recorded, budget=64)


def aded(
    datastore: Datastore, title: str, changes: dict[str, dict[str, Any]], *args: Any, **kwargs: Any
) -> Iterator[Row]:
    """ADED with each of these changes of its configuration."""
    source = Trigrams.build(datastore)
    drafters = {
        label: AdedDrafter(source, replace(AdedConfig(), **change))
        for label, change in changes.items()
    }
    return lengths(title, drafters, *args, **kwargs)


ADAPTIVE = {
    "adaptive": {},
    "not adaptive": {"adaptive": False},
    "adaptive across requests": {"across_requests": True},
}


def aded_adaptive(setup: Setup) -> Iterator[Row]:
    return aded(setup.datastore, "matrix", ADAPTIVE, setup.recorded)


def aded_by_position(setup: Setup) -> Iterator[Row]:
    def part(_: Answer, position: int) -> str:
        ends = [end for end in PARTS_OF_ANSWERS if position < end]
        return f"to {ends[0]}" if ends else "later"

    return aded(setup.datastore, "tokens written", ADAPTIVE, setup.recorded, column=part)


def aded_tasks(setup: Setup) -> Iterator[Row]:
    """By MT-Bench's categories, of ten questions each from number 81 on."""
    asked = [answer for answer in setup.recorded if answer.id.startswith("mtbench-")]

    def task(answer: Answer, _: int) -> str:
        return TASKS[(int(answer.id.split("-")[1]) - 81) // 10]

    return aded(setup.datastore, "task", {"`aded`": {}}, asked, column=task)


def aded_searches(setup: Setup) -> Iterator[Row]:
    changes = {str(number): {"searches": number} for number in (25, 50, 100, 150, 200, 300)}
    return aded(setup.datastore, "searches", changes, setup.recorded)


def aded_exploration(setup: Setup) -> Iterator[Row]:
    changes = {f"c1 = {c1:g}": {"c1": c1} for c1 in (0.5, 2.0, 8.0, 32.0, 128.0)}
    changes |= {f"c2 = {c2:g}": {"c2": c2} for c2 in (0.1, 1.0, 8.0, 64.0, 512.0)}
    return aded(setup.datastore, "", changes, setup.recorded)


def aded_corpus(setup: Setup) -> Iterator[Row]:
    drafters = {
        f"{datastore.num_tokens / 1e6:.0f} M tokens": AdedDrafter(datastore)
        for datastore in setup.datastores
    }
    return lengths("corpus", drafters, setup.recorded)


def aded_sampling(setup: Setup) -> Iterator[Row]:
    """Over the standard library, what the demo's model writes at temperatures and by top-p."""
    with demo(0) as own:
        source = AdedDrafter(own.datastore)
    ways = [("temperature", each) for each in (0.2, 0.4, 0.6, 0.8, 1.0)]
    ways += [("top_p", each) for each in (0.5, 0.7, 0.9)]
    for name, value in ways:
        answers = setup.written(do_sample=True, top_k=0, **{name: value})
        yield from lengths("sampled", {f"{name} = {value}": source}, answers, column=by_set)


def n_grammys_query(setup: Setup) -> Iterator[Row]:
    """Footnote 4, as far as recorded answers have it: the part from the context."""
    drafters = {
        str(q): NGrammysDrafter(None, NGrammysConfig(q=q, strategy="context")) for q in (1, 2, 3)
    }
    return lengths("q", drafters, setup.recorded)
