"""Invalid arguments of the core are rejected with an error that names them."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from datastores import build
from specds import EngineDrafter, FusedConfig
from specds.drafters import FusedDrafter, Memory, ModelTables, TokenTree, Trigrams, draft_batch
from specds.papers import (
    AdedConfig,
    AdedDrafter,
    NGrammysConfig,
    NGrammysDrafter,
    PromptLookupDrafter,
    RestConfig,
    RestDrafter,
)

NAN = float("nan")
TREES = [
    ("`parents`", [1, 2], [-1]),
    ("`parents`", [1], [-1, -1]),
    ("`probs`", [1, 2], [-1, -1], [1.0]),
    # A node that is its own parent or comes before it, and parents that are none.
    ("`parents`", [1], [0]),
    ("`parents`", [1, 2], [1, -1]),
    ("`parents`", [1], [-2]),
    ("`parents`", [1], [-(2**31)]),
    ("`token_ids`", [-1], [-1]),
    # Equal roots and equal siblings.
    ("`token_ids`", [1, 2, 1], [-1, -1, -1]),
    ("`token_ids`", [1, 2, 2], [-1, 0, 0]),
    *(("`probs`", [1], [-1], [prob]) for prob in (1.5, -0.5, NAN)),
]
SUGGESTIONS = [
    ("token 4", [4]),
    ("token_ids", [-1]),
    ("parents", [1, 2], [0]),
    ("parents", [1, 2], [1, -1]),
    ("1 comes twice", [1, 1], [-1, -1]),
    *(("probs", [1], None, probs) for probs in ([1.5], [NAN], [])),
    ("at most 1024", [1] * 1025),
]
TABLES = [
    ("`bigram` must have", np.zeros((0, 2), int), np.zeros((0, 2)), []),
    ("`bigram` must have", np.zeros((2, 0), int), np.zeros((2, 0)), [1, 0]),
    ("must have a row for each of 2 tokens", [[1, 0], [0, 1], [0, 1]], [[0.5] * 2] * 3, [1, 0]),
    ("must have a row for each of 2 tokens", [[1], [0]], [[0.5] * 2] * 2, [1, 0]),
    ("`bigram_probs` must lie in", [[1], [0]], [[0.5], [1.5]], [1, 0]),
    ("`bigram_probs` must lie in", [[1], [0]], [[0.5], [NAN]], [1, 0]),
    ("token 2 is outside", [[1], [0]], [[0.5], [0.5]], [1, 2]),
]
ADED = [
    *({"searches": n} for n in (0, 65_537)),
    *({"depth": n} for n in (0, 1025)),
    {"candidates": 0},
    *({"c1": c} for c in (-1.0, float("inf"))),
    *({"c2": c} for c in (0.0, NAN)),
    {"increment": 0.0},
    {"increment": 0.6, "max_prob": 0.5},
    *({"max_prob": prob} for prob in (1.5, NAN)),
    {"search": "beam"},
]
REST = [
    {"min_match": 0},
    {"max_match": 0},
    *({"continuation": n} for n in (0, 1025)),
    *({"max_samples": n} for n in (0, 65_537)),
]
NGRAMS = [
    *((f"`{name}` must lie in 1..=1024, not 0", {name: 0}) for name in "kwq"),
    ("`k` must lie in 1..=1024, not 1025", {"k": 1025, "strategy": "context"}),
    ("`w` must lie in 1..=1024, not 1025", {"w": 1025}),
    ("`k` must not exceed the 2 tokens that the tables know after each", {}),
    ("`strategy` is invalid: unknown variant `trigram`, expected", {"strategy": "trigram"}),
]
SHARED = {"memory_scope": "shared"}
ENGINES = [
    ("unknown field `datastor`, expected one of `datastore`, `snapshot`", {"datastor": "x"}),
    ("`datastore` is invalid: invalid type", {"datastore": 1}),
    ("`memory_scope` is invalid: unknown variant `all`", {"memory_scope": "all"}),
    ("`memory_scope` needs a vocabulary", SHARED),
    ("pass its folder as `snapshot`", {"sync_interval": 1, **SHARED}),
    ("pass its folder as `snapshot`", {"sync_interval": 1, "snapshot": "m"}),
    ("`effort` is invalid: unknown variant `high`, expected one of `auto`", {"effort": "high"}),
    ("`min_prob` must lie in 0..=1, not 1.5", {"min_prob": 1.5}),
    ("`max_context` must lie in 1", {"max_context": 0}),
    ("`num_threads` must lie in 1", {"num_threads": 0}),
    ("in `/no`, which is not a folder", {"sync_interval": 1, "snapshot": "/no/m", **SHARED}),
    ('points [tokens, seconds], not "fast"', {"step_cost": "fast"}),
    *(
        ("`step_cost` must be points", {"step_cost": points})
        for points in ([], [[1, 2], [1, 3]], [[1, 0]])
    ),
]
OTHERS = "must have the vocabulary of the other sources: 4, not"
CALLS = [
    ("token 4", lambda s: s.store.count([4])),
    ("`pattern` holds -1", lambda s: s.store.count([-1])),
    ("below the number of tokens: 5, not 5", lambda s: s.store.document_at(5)),
    ("below the number of documents: 2, not 2", lambda s: s.store.document(2)),
    ("below the number of documents: 2, not 2", lambda s: s.store.source(2)),
    ("token 4", lambda s: s.store.count_batch([[0], [4]])),
    ("`patterns` holds -1", lambda s: s.store.count_batch([[0], [-1]])),
    ("`patterns` must have one dimension", lambda s: s.store.count_batch([0, 1])),
    ("`patterns` must have two dimensions", lambda s: s.store.count_batch(np.ones((1, 1, 1), int))),
    ("context", lambda s: s.store.lookup([])),
    ("`min_match`", lambda s: s.store.lookup([1], max_match=4, min_match=0)),
    ("`max_match`", lambda s: s.store.lookup([1], max_match=0)),
    ("`max_match`", lambda s: s.store.lookup([1], max_match=2, min_match=3)),
    ("token 4 is outside the vocabulary of 4", lambda s: s.store.lookup([4])),
    ("`context` holds -1", lambda s: s.store.lookup([-1])),
    ("`context` holds 8589934592", lambda s: s.store.lookup([2**33])),
    ("`context` must have one dimension", lambda s: s.store.lookup([[1, 2]])),
    ("`context` must have one dimension", lambda s: s.store.lookup(3)),
    ("`context` holds", lambda s: s.store.lookup(np.array([2**63], np.uint64))),
    ("`sessions[1]` is passed twice", lambda s: draft_batch([s.session, s.session], 4)),
    ("`num_threads` must be at least 1", lambda s: draft_batch([s.session], 4, num_threads=0)),
    (
        "one entry for each of 1 sessions, not 2",
        lambda s: draft_batch([s.session], 8, max_depths=[1, 2]),
    ),
    ("token 4 is outside the vocabulary of 4", lambda s: s.memory.insert("ann", [1, 4])),
    ("`token_ids` holds -1", lambda s: s.memory.insert("ann", [-1])),
    ("must have one dimension", lambda s: s.memory.insert("ann", [[1]])),
    ("`tenant` must have at most 1024 bytes, not 1025", lambda s: s.memory.insert("n" * 1025, [1])),
    ("`vocab_size` must lie in 1", lambda _: Memory(0)),
    ("`max_bytes` must lie in 16384", lambda _: Memory(100, max_bytes=1000)),
    ("`max_bytes` must lie in 16384", lambda _: Memory.open("memory", 100, max_bytes=0)),
    ("`every` must lie in", lambda s: s.memory.share("memory", every=0)),
    ("`order` must lie in 2..=4, not 1", lambda s: Trigrams.build(s.store, order=1)),
    ("`order` must lie in 2..=4, not 5", lambda s: Trigrams.build(s.store, order=5)),
    ("`max_words` must lie in 1", lambda s: Trigrams.build(s.store, max_words=0)),
    *(("must lie in 1..=1024", lambda _, n=n: PromptLookupDrafter(n, 1)) for n in (0, 1025)),
    *(("must lie in 1..=1024", lambda _, n=n: PromptLookupDrafter(1, n)) for n in (0, 1025)),
    (f"`memory` {OTHERS} 9", lambda s: FusedDrafter(s.store, memory=Memory(9))),
    (f"`model_tables` {OTHERS} 2", lambda s: FusedDrafter(s.store, model_tables=s.tables)),
    ("max_nodes must not be negative, got -1", lambda _: FusedConfig(max_nodes=-1)),
    *(
        ("`max_nodes` must be at least 0, not -1", draft)
        for draft in (
            lambda s: s.session.draft(-1),
            lambda s: s.session.draft_after([1], -1),
            lambda s: draft_batch([s.session], -1),
        )
    ),
    ("expected one of `auto`, `low`", lambda _: FusedDrafter(config=FusedConfig(effort="Low"))),
    ("the prompt is empty", lambda s: s.drafter.session([])),
    ("the prompt is empty", lambda s: RestDrafter(s.store).session([])),
    ("the prompt is empty", lambda s: AdedDrafter(s.trigrams).session([])),
    ("the prompt is empty", lambda s: NGrammysDrafter(s.tables, NGrammysConfig(k=1)).session([])),
    ("the prompt is empty", lambda _: PromptLookupDrafter().session([])),
    ("token 4", lambda s: s.drafter.session([4])),
    ("token 4", lambda s: s.drafter.session([1], predicted_output=[4])),
    ("tenant", lambda s: s.drafter.session([1], tenant="n" * 2000)),
    ("surrogates not allowed", lambda s: s.drafter.session([1], "\ud800")),
    ("`group` must have 1 to 1024 bytes", lambda s: s.drafter.session([1], group="")),
    ("`group` must have 1 to 1024 bytes", lambda s: s.drafter.session([1], group="n" * 1025)),
    ("`token_ids`", lambda s: s.session.draft_after([-1], 4)),
    ("token 4 is outside the vocabulary of 4", lambda s: s.session.observe([2, 4])),
    ("must hold k = 1 tokens", lambda s: s.session.observe_predictions(EMPTY, [[1], [2]])),
    ("must have two dimensions", lambda s: s.session.observe_predictions(EMPTY, [1])),
    ("token 4", lambda s: s.session.observe_predictions(EMPTY, [[4]])),
    *((said, lambda _, t=tree: TokenTree(*t)) for said, *tree in TREES),
    *((said, lambda s, t=tree: s.session.suggest(*t)) for said, *tree in SUGGESTIONS),
    *((said, lambda _, t=arrays: ModelTables(*t)) for said, *arrays in TABLES),
    *((said, lambda s, c=c: NGrammysDrafter(s.tables, NGrammysConfig(**c))) for said, c in NGRAMS),
    *((said, lambda _, c=config: EngineDrafter(**c)) for said, config in ENGINES),
    *((f"`{next(iter(a))}` must ", lambda s, a=a: rest(s.store, RestConfig(**a))) for a in REST),
    *(
        (f"`{next(iter(a))}` ", lambda s, a=a: AdedDrafter(s.trigrams, AdedConfig(**a)))
        for a in ADED
    ),
]
EMPTY = TokenTree([], [])
OF_TYPE = [
    ("`context` must hold integers, its dtype is float64", lambda s: s.store.lookup([1.5])),
    ("dtype is bool", lambda s: s.store.lookup([True])),
    ("`context` must hold integers", lambda s: s.store.lookup(["a"])),
    ("must hold integers", lambda s: s.memory.insert("ann", [0.5])),
    ("not iterable", lambda s: s.store.count_batch(3)),
    ("DraftSession", lambda s: draft_batch([s.session, s.drafter], 4)),
    ("group", lambda s: s.drafter.session([1], group=7)),
]
OVERFLOWS = [
    ("negative", lambda s: s.store.document(-1)),
    ("negative", lambda s: s.store.positions(s.store.lookup([1]), -1)),
]


def rest(store, config):
    RestDrafter(store, config).session([1])


@pytest.fixture(scope="module")
def all_kinds(tmp_path_factory):
    """A datastore of four tokens, and one object of each kind that is made of it."""
    store = build(tmp_path_factory.mktemp("refusals") / "d", [[1, 2], [3]])
    memory = Memory(4)
    drafter = FusedDrafter(store, memory=Memory(4))
    session = drafter.session([3, 1])
    session.suggest([3, 2])
    tables = ModelTables([[1, 0], [0, 1]], [[0.5, 0.5]] * 2, [0, 1])
    return SimpleNamespace(
        store=store,
        memory=memory,
        drafter=drafter,
        session=session,
        tables=tables,
        trigrams=Trigrams.build(store),
    )


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (error, *row)
        for error, rows in ((ValueError, CALLS), (TypeError, OF_TYPE), (OverflowError, OVERFLOWS))
        for row in rows
    ],
)
def test_invalid_argument_is_named_and_changes_nothing(all_kinds, error, message, call):
    before = all_kinds.session.draft(4)
    assert before.token_ids[0] == 3
    with pytest.raises(error, match=re.escape(message)):
        call(all_kinds)
    after = all_kinds.session.draft(4)
    assert (after.token_ids.tolist(), after.parents.tolist(), after.probs.tolist()) == (
        before.token_ids.tolist(),
        before.parents.tolist(),
        before.probs.tolist(),
    )
    assert all_kinds.memory.num_tenants == 0


def test_vocabulary_too_large_for_the_matrix_is_rejected(tmp_path):
    large = (1 << 21) + 1
    datastore = build(tmp_path / "d", [[0]], vocab_size=large, separator=large)
    with pytest.raises(ValueError, match=r"`vocab_size` must lie in 1\.\.=2097152"):
        Trigrams.build(datastore)
