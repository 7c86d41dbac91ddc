"""Who indexes tokens, and how: run in a child of the interpreter that has the builder installed."""

from __future__ import annotations

import os
import signal
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from index.child import metered
from index.tokens import TokenCorpus

if TYPE_CHECKING:
    from collections.abc import Callable

    Builder = Callable[[TokenCorpus, Path], "Answers"]
    """Indexes a corpus into a folder."""


class Answers(NamedTuple):
    """What an index is asked: how often a pattern occurs, and what follows it how often."""

    count: Callable[[list[int]], int]
    follows: Callable[[list[int]], Any]


def build_specds(corpus: TokenCorpus, out: Path, **options: Any) -> Answers:
    from specds.build import DatastoreBuilder

    facts = corpus.facts
    with DatastoreBuilder(
        out / "corpus.specds",
        vocab_size=facts.vocab_size,
        separator=facts.separator,
        prior_tokens=0,  # the others fit none
        **options,
    ) as builder:
        for tokens, lengths in corpus.batches():
            builder.add_documents(tokens, lengths)
        datastore = builder.finish()
    return Answers(datastore.count, datastore.continuations)


LITTLE_MEMORY = "specds, little memory"


def build_in_little_memory(corpus: TokenCorpus, out: Path) -> Answers:
    """In shards of half the corpus: two bytes a token of it, and what libsais always takes."""
    return build_specds(corpus, out, max_memory=int(2.1 * corpus.num_tokens) + (2 << 20))


OWN: dict[str, Builder] = {"specds": build_specds, LITTLE_MEMORY: build_in_little_memory}
"""Our own ways to build."""

RIVALS = ("tokengrams", "infini-gram")
"""Rivals that index a corpus; each is the name of its package too."""


def build_rival(name: str, corpus: TokenCorpus, out: Path) -> Answers:
    """As the replay benchmark does."""
    facts = corpus.facts
    request = {
        "tokens": corpus.stream(),
        "folder": out,
        "token_bytes": corpus.tokens.itemsize,
        "vocab_size": facts.vocab_size,
        "separator": facts.separator,
    }
    engines = import_module("rival_engines")
    engine = engines.start(request | {"name": name})[0]
    return Answers(engine.count, engine.follows)


def build(
    name: str, corpus: str, out: str, patterns: list[list[int]], queries: str | None = None
) -> dict[str, Any]:
    """The job of a child: indexes, says what it took, then counts patterns and times queries."""
    is_rival = name in RIVALS
    package, builder = (name, partial(build_rival, name)) if is_rival else ("specds", OWN[name])
    opened, folder = TokenCorpus.open(Path(corpus)), Path(out)
    _import(name)
    with metered() as cost:
        answers = builder(opened, folder)
    return {
        "version": version(package),
        "cost": cost,
        "num_bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "counts": [answers.count(pattern) for pattern in patterns],
        "query_us": {} if queries is None else query_times(answers, Path(queries)),
    }


def build_or_die(
    corpus: str, out: str, max_memory: int, die_at: str | None = None
) -> dict[str, Any]:
    """The job of a child: builds as users do, or goes on with a build that was killed there.

    Args:
        die_at: `tokens` kills the process when half of the documents are given, another word when
            a part of that stage of the index is done.
    """
    from specds.build import DatastoreBuilder

    opened = TokenCorpus.open(Path(corpus))
    facts, num_documents = opened.facts, len(opened.lengths)

    def die(stage: str, done: int = 1, _: int = 1) -> None:
        if stage == die_at and done:
            os.kill(os.getpid(), signal.SIGKILL)

    with metered() as cost:
        builder = DatastoreBuilder(
            out,
            vocab_size=facts.vocab_size,
            separator=facts.separator,
            max_memory=max_memory,
            plan=facts.name,
        )
        num_kept = builder.num_given
        for tokens, lengths in opened.batches(skip=num_kept):
            builder.add_documents(tokens, lengths)
            if 2 * builder.num_given >= num_documents:
                die("tokens")
        datastore = builder.finish(die)
    return {
        "cost": cost,
        "kept_documents": num_kept,
        "num_tokens": datastore.num_tokens,
        "num_shards": datastore.num_shards,
        "num_bytes": datastore.num_bytes,
    }


def query_times(answers: Answers, queries: Path) -> dict[str, float]:
    """The median microseconds of a call, by what is asked; all of it was asked once before."""
    with np.load(queries) as arrays:
        patterns = np.split(arrays["tokens"], np.cumsum(arrays["lengths"])[:-1])
    medians = {}
    for name, ask in answers._asdict().items():
        elapsed = []
        for pattern in [*patterns, *patterns]:
            given = pattern.tolist()
            start = perf_counter_ns()
            ask(given)
            elapsed.append(perf_counter_ns() - start)
        medians[name] = median(elapsed[len(patterns) :]) / 1000
    return medians


def _import(name: str) -> None:
    """What importing takes is no part of a build."""
    module = import_module("rival_engines").ENGINES[name][0] if name in RIVALS else "specds"
    import_module(module)


def probe() -> dict[str, str | None]:
    """The job that says which version of each rival an interpreter has; None where it has none."""
    found: dict[str, str | None] = {}
    for name in RIVALS:
        try:
            _import(name)
            found[name] = version(name)
        except ImportError:
            found[name] = None
    return found
