"""Counts, positions and REST drafts of a datastore, against scans of the documents in Python."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datastores import build
from reference import paths
from reference_datastore import SMALL, Scan, corpora
from specds.drafters import SOURCES
from specds.papers import RestConfig, RestDrafter

VOCAB = 4
TEXT = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=14)
FEW = corpora(most=14, vocabularies=SMALL)
CASES = settings(max_examples=40)


@CASES
@given(FEW, st.lists(TEXT.map(lambda text: text[:4]) | st.just([]), min_size=1, max_size=6))
def test_counts_equal_those_of_a_scan(folder, corpus, patterns):
    store, scan = corpus.build(folder / "d"), Scan(corpus)
    expected = [len(scan.places(pattern)) for pattern in patterns]
    assert [store.count(pattern) for pattern in patterns] == expected
    assert [store.find(pattern).count for pattern in patterns] == expected
    counts = store.count_batch([np.array(pattern, np.uint16) for pattern in patterns])
    assert (counts.dtype, counts.tolist()) == (np.int64, expected)
    rows = store.count_next_batch(patterns)
    assert rows.shape == (len(patterns), VOCAB)
    for pattern, row in zip(patterns, rows.tolist(), strict=True):
        follows = scan.next(pattern)
        assert row == store.count_next(pattern).tolist() == [follows[t] for t in range(VOCAB)]
        tokens, counts = store.continuations(pattern)
        assert tokens.dtype == counts.dtype == np.int64
        ranked = sorted((-row[t], t) for t in range(VOCAB) if row[t])
        assert list(zip((-counts).tolist(), tokens.tolist(), strict=True)) == ranked
        assert store.positions(pattern, 1000).tolist() == scan.places(pattern)


@CASES
@given(FEW, TEXT, st.integers(0, 4), st.floats(0.01, 100))
def test_probabilities_equal_their_definitions(folder, corpus, text, max_match, concentration):
    store, scan = corpus.build(folder / "d"), Scan(corpus)
    outcomes = max(VOCAB, corpus.separator + 1)
    probs, lengths = store.infinity_gram(text, max_match=max_match)
    scores = store.score(text, max_match=max_match, concentration=concentration)
    for place, token in enumerate(text):
        smooth, exact, length = 1 / outcomes, 0.0, 0
        for size in range(min(place, max_match) + 1):
            follows = scan.next(text[place - size : place])
            if total := follows.total():
                exact, length = follows[token] / total, size
                smooth = (follows[token] + concentration * smooth) / (total + concentration)
        assert (probs[place], lengths[place]) == (pytest.approx(exact), length)
        assert scores[place] == pytest.approx(math.log(smooth))


@CASES
@given(
    corpora(),
    st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=8),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 7),
    st.sampled_from([1, 2, 5, 100, 256]),
    st.integers(0, 80),
)
def test_lookups_and_rest_drafts_equal_those_of_a_scan(
    folder, corpus, pieces, max_match, min_match, continuation, max_samples, max_nodes
):
    store, scan = corpus.build(folder / "d"), Scan(corpus)
    store.verify()
    assert store.num_shards == len(scan.shards)
    limits = {"max_match": max(max_match, min_match), "min_match": min_match}
    sizes = {"continuation": continuation, "max_samples": max_samples}
    drafter, context = RestDrafter(store, RestConfig(**limits, **sizes)), [0]
    session = drafter.session(context)
    for piece in map(corpus.of, pieces):
        session.observe(piece)
        context += piece
        pattern = scan.longest(context, **limits)
        found = store.lookup(context, **limits)
        places = scan.places(pattern) if pattern else []
        assert (found.length, found.count) == (len(pattern), len(places))
        for number in (max_nodes, len(places)):
            assert store.positions(found, number).tolist() == places[:number]
        follows = scan.next(pattern) if pattern else {}
        ranked = sorted(t for t in follows if t < corpus.vocab_size)
        ranked.sort(key=lambda token: -follows[token])
        assert store.continuations(found, 3)[0].tolist() == ranked[:3]
        tree = session.draft(max_nodes)
        drafted = paths(tree)
        assert [*drafted.items()] == scan.rest_draft(pattern, max_nodes, **sizes)
        assert session.match_length == len(pattern)
        assert {SOURCES[source] for source in tree.sources} <= {"datastore"}
        # A new session drafts the same, and a larger draft begins with it.
        again = drafter.session(context).draft(max_nodes + 3).limited(max_nodes)
        assert [*paths(again).items()] == [*drafted.items()]


@CASES
@given(FEW)
def test_position_is_found_in_its_document(folder, corpus):
    store, position = corpus.build(folder / "d"), 0
    documents = [*filter(None, corpus.documents)]
    assert [document.token_ids.tolist() for document in store] == documents
    for index, tokens in enumerate(documents):
        assert store.document(index).token_ids.tolist() == tokens
        for at in range(position, position + len(tokens) + 1):
            document = store.document_at(at)
            assert (document.index, document.start) == (index, position)
            assert document.token_ids.tolist() == tokens
        position += len(tokens) + 1
    with pytest.raises(ValueError, match="position"):
        store.document_at(position)


def test_patterns_are_read_from_an_array_or_a_sequence(tmp_path):
    store = build(tmp_path / "d", [[0, 1, 0, 1, 2]])
    assert store.count_batch(np.array([[0, 1], [1, 2]], np.int32)).tolist() == [2, 1]
    assert store.count_batch([[0], (1, 2)]).tolist() == [2, 1]
    assert store.count_batch([]).tolist() == []
    assert store.count_next_batch([]).shape == (0, 4)
    thousands = np.tile([[0, 1], [2, 2]], (1000, 1))
    assert store.count_batch(thousands).tolist() == [2, 0] * 1000


PATTERNS = [[*map(int, f"{bits:b}"[1:])] for bits in range(2, 256)]
RANDOM = np.random.default_rng(1).integers(0, 2, 6000)
TEXTS = {
    "random": np.split(RANDOM, range(900, 6000, 900)),
    "rare": np.split(np.arange(6000) % 700 // 699, range(900, 6000, 900)),
    "regular": np.split(np.arange(6000) % 5 % 2, range(900, 6000, 900)),
    # The suffixes of one first token end at a key.
    "at a key": [np.array([0, 0])] * 256 + [np.array([0, 1])] * 256,
}


@pytest.mark.parametrize("name", TEXTS)
def test_short_patterns_are_counted_across_keys(tmp_path, name):
    """The texts have few different patterns: each occurs on both sides of a key of the index."""
    documents = [[*text.tolist(), 3] for text in TEXTS[name]]
    store = build(tmp_path / "d", [d[:-1] for d in documents], separator=3, max_shard_tokens=4000)
    store.verify()
    expected = {tuple(pattern): [0] * 4 for pattern in PATTERNS}
    for document in documents:
        for size in range(1, 8):
            for start in range(len(document) - size):
                expected[tuple(document[start : start + size])][document[start + size]] += 1
    for pattern, row in zip(PATTERNS, store.count_next_batch(PATTERNS).tolist(), strict=True):
        assert row == expected[tuple(pattern)]
        assert store.count(pattern) == sum(row)


def test_largest_configuration_of_rest_drafts(tmp_path):
    config = RestConfig(max_match=2**62, continuation=1024, max_samples=65_536)
    session = RestDrafter(build(tmp_path / "d", [[1] * 3000]), config).session([1] * 10)
    assert len(session.draft(2**62)) == 1024
    assert session.match_length == 10
