"""Extreme arguments at every call of the core: an answer or a typed error, never a panic."""

import json

import numpy as np
import pytest

from specds._core import (
    AdaptiveTrigrams,
    Datastore,
    DatastoreBuilder,
    EngineDrafter,
    Memory,
    TokenTree,
    Trigrams,
    aded_session,
    compact,
    draft_batch,
    likeliest,
    merge,
    n_grammys_session,
    prompt_lookup_session,
    refit,
    rest_session,
)
from specds.drafters import FusedDrafter

FLOATS = [float("nan"), float("inf"), float("-inf"), -1.0, 1e300, 5e-324, 0.0, 0.5]
INTEGERS = [0, 1, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1, 10**30]
REFUSALS = (ValueError, TypeError, OverflowError, OSError, MemoryError)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    made = tmp_path_factory.mktemp("extremes") / "d"
    tokens = np.random.default_rng(0).integers(0, 50, 6000)
    with DatastoreBuilder(made, vocab_size=50, separator=50, max_shard_tokens=2500) as builder:
        builder.add_documents(tokens, np.full(100, 60))
        builder.finish()
    return made


def build(folder, **options):
    options = {"vocab_size": 50, "separator": 50, "overwrite": True} | options
    with DatastoreBuilder(folder / "new", **options) as builder:
        builder.add_documents([1, 2, 3], [3])
        builder.finish()


def draft(session, **arguments):
    session.observe([1, 2, 3, 1, 2])
    session.draft(**{"max_nodes": 16} | arguments)
    session.observe([7])


def serve(**config):
    engine = EngineDrafter(json.dumps(config), vocab_size=50)
    engine.sync([[1, 2, 3, 1, 2], [4, 5, 4]])
    return engine


def adapted(s, **options):
    trigrams = AdaptiveTrigrams(Trigrams.build(s))
    draft(aded_session(trigrams, **options))


def remember(vocab_size=10, **options):
    Memory(vocab_size, **options).insert("ann", [1] * 100)


def sessions(store):
    yield rest_session(store)
    yield prompt_lookup_session()
    yield n_grammys_session(None, strategy="context")
    yield FusedDrafter(store).session([1, 2, 3])


CALLS = {
    "positions": lambda s, x, _: s.positions(s.lookup([1, 2]), x),
    "continuations": lambda s, x, _: s.continuations(s.lookup([1, 2]), x),
    "document": lambda s, x, _: s.document(x),
    "document_at": lambda s, x, _: s.document_at(x),
    "infinity_gram": lambda s, x, _: s.infinity_gram([1, 2], max_match=x),
    "score": lambda s, x, _: s.score([1, 2], max_match=x),
    "lookup": lambda s, x, _: s.lookup([x]),
    "count": lambda s, x, _: s.count([x]),
    "max_match": lambda s, x, _: s.lookup([1, 2], max_match=x),
    "min_match": lambda s, x, _: s.lookup([1, 2], max_match=2**63, min_match=x),
    "observe": lambda s, x, _: [session.observe([x]) for session in sessions(s)],
    "max_nodes": lambda s, x, _: [draft(session, max_nodes=x) for session in sessions(s)],
    "draft_after": lambda s, x, _: [session.draft_after([4, 5], x) for session in sessions(s)],
    "batch": lambda s, x, _: draft_batch(list(sessions(s)), x, num_threads=2),
    "num_threads": lambda s, x, _: draft_batch(list(sessions(s)), 4, num_threads=x),
    "prompt lookup": lambda _, x, __: draft(prompt_lookup_session(max_match=x, num_tokens=x)),
    "vocab_size": lambda _, x, __: remember(x),
    "max_bytes": lambda _, x, __: remember(max_bytes=x),
    "lengths": lambda s, x, f: DatastoreBuilder(
        f / "never", vocab_size=50, separator=50
    ).add_documents([1, 2], [x]),
    "compact": lambda s, x, _: compact(s.path, max_shard_tokens=x),
    "refit": lambda s, x, _: refit(s.path, prior_tokens=x),
    "merge": lambda s, x, f: merge([s.path], f / "merged", overwrite=True, prior_tokens=x),
    "order": lambda s, x, _: Trigrams.build(s, order=x),
    "tree": lambda _, x, __: TokenTree([x], [x]),
}
CALLS |= {
    "likeliest": lambda _, x, __: likeliest(np.zeros((2, 3), np.float32), x),
    "engine chains": lambda _, x, __: serve().draft_chains(x),
    "engine trees": lambda _, x, __: serve().draft_trees(x),
    "engine budgets": lambda _, x, __: serve().draft_trees(4, budgets=[x], max_depths=[x]),
    "engine starts": lambda _, x, __: serve().sync([[1, 2]], starts=[x]),
    "engine nodes": lambda _, x, __: serve().observe_predictions([[1]], x),
    "engine ranks": lambda _, x, __: EngineDrafter(num_ranks=x),
}
for name in ("memory_bytes", "max_context", "num_threads"):
    CALLS[f"engine {name}"] = lambda _, x, __, name=name: serve(**{name: x}).draft_chains(4)
for name in ("depth", "candidates", "seed"):
    CALLS[f"aded {name}"] = lambda s, x, _, name=name: adapted(s, **{name: x})
for name in ("max_match", "min_match", "continuation", "max_samples"):
    CALLS[f"rest {name}"] = lambda s, x, _, name=name: draft(rest_session(s, **{name: x}))
for name in ("k", "w", "q"):
    CALLS[f"n-grammys {name}"] = lambda _, x, __, name=name: draft(
        n_grammys_session(None, strategy="context", **{name: x})
    )
BUILT_WITH = ("vocab_size", "separator", "max_shard_tokens", "max_memory", "prior_tokens")
for name in (*BUILT_WITH, "max_documents", "max_tokens"):
    CALLS[f"build {name}"] = lambda _, x, f, name=name: build(f, **{name: x})


@pytest.mark.parametrize("name", CALLS)
def test_integers(tmp_path, path, name):
    answered = 0
    for number in INTEGERS:
        try:
            CALLS[name](Datastore.open(path), number, tmp_path)
            answered += 1
        except REFUSALS:
            pass
    assert answered < len(INTEGERS), "10**30 is no number of tokens"
    Datastore.open(path).verify()


NUMBERS = {
    "min_gain": lambda s, x: [draft(session, min_gain=x) for session in sessions(s)],
    "batch": lambda s, x: draft_batch(list(sessions(s)), 4, min_gain=x),
    "concentration": lambda s, x: s.score([1, 2], concentration=x),
    "step time": lambda s, x: [session.set_step_time(x) for session in sessions(s)],
    "probs": lambda _, x: TokenTree([1], [-1], [x]),
    "engine min_prob": lambda _, x: serve(min_prob=x),
    "engine costs": lambda _, x: serve(step_cost=[[1, x], [8, 2 * x]]),
}
for name in ("c1", "c2", "increment", "max_prob"):
    NUMBERS[f"aded {name}"] = lambda s, x, name=name: adapted(s, **{name: x})


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(path, name):
    refused = []
    for number in FLOATS:
        try:
            NUMBERS[name](Datastore.open(path), number)
        except ValueError:
            refused.append(number)
    assert set(map(str, refused)) >= {"nan", "-inf", "-1.0"}
