"""What a datastore counts, held against scans of the documents in plain Python."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datastores import build

VOCAB = 3
TEXT = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=14)
CASES = settings(max_examples=40, deadline=None)


class Scan:
    """The answers by definition: each document is its tokens and the separator after them."""

    def __init__(self, documents, separator):
        self.documents = [(*document, separator) for document in documents]
        self.separator = separator

    def places(self, pattern):
        """The documents and places where a pattern without the separator begins."""
        size, pattern = len(pattern), tuple(pattern)
        return [
            (document, start)
            for document in self.documents
            for start in range(len(document))
            if document[start : start + size] == pattern and self.separator not in pattern
        ]

    def next(self, context):
        """What follows a context, its separator among it."""
        size = len(context)
        return Counter(document[start + size] for document, start in self.places(context))

    def contexts(self, text, place):
        """What stands before a token in its document, shortest first."""
        for start in range(place, -1, -1):
            if self.separator not in text[start:place]:
                yield text[start:place]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("queries")


@st.composite
def corpora(draw):
    """Documents of two or three tokens, the third of which may be the separator, in some shards."""
    separator = draw(st.sampled_from([VOCAB - 1, VOCAB]))
    documents = draw(st.lists(TEXT, min_size=1, max_size=6))
    documents = [[token % min(separator, VOCAB) for token in document] for document in documents]
    return documents, separator, draw(st.sampled_from([16, 64]))


@CASES
@given(corpora(), st.lists(TEXT.map(lambda text: text[:4]) | st.just([]), min_size=1, max_size=6))
def test_counts_are_those_of_a_scan(folder, corpus, patterns):
    documents, separator, size = corpus
    store = build(
        folder / "d", documents, vocab_size=VOCAB, separator=separator, max_shard_tokens=size
    )
    scan = Scan(documents, separator)
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
        ranked = sorted((-row[t], t) for t in range(VOCAB) if row[t])
        assert list(zip(counts.tolist(), tokens.tolist(), strict=True)) == [
            (-n, t) for n, t in ranked
        ]
        assert len(store.positions(pattern, 1000)) == len(scan.places(pattern))


@CASES
@given(corpora(), TEXT, st.integers(0, 4), st.floats(0.01, 100))
def test_probabilities_are_those_of_their_definitions(
    folder, corpus, text, max_match, concentration
):
    documents, separator, size = corpus
    store = build(
        folder / "d", documents, vocab_size=VOCAB, separator=separator, max_shard_tokens=size
    )
    scan, outcomes = Scan(documents, separator), max(VOCAB, separator + 1)
    probs, lengths = store.infinity_gram(text, max_match=max_match)
    scores = store.score(text, max_match=max_match, concentration=concentration)
    for place, token in enumerate(text):
        smooth, exact, length = 1 / outcomes, 0.0, 0
        for context in list(scan.contexts(text, place))[: max_match + 1]:
            follows = scan.next(context)
            if follows.total():
                exact, length = follows[token] / follows.total(), len(context)
                smooth = (follows[token] + concentration * smooth) / (
                    follows.total() + concentration
                )
        assert (probs[place], lengths[place]) == (pytest.approx(exact), length)
        assert scores[place] == pytest.approx(math.log(smooth))


@CASES
@given(corpora(), TEXT)
def test_smoothed_probabilities_of_all_outcomes_sum_to_one(folder, corpus, text):
    documents, separator, _ = corpus
    store = build(folder / "d", documents, vocab_size=VOCAB, separator=separator)
    last = [store.score([*text, token])[-1] for token in range(max(VOCAB, separator + 1))]
    assert np.exp(last).sum() == pytest.approx(1)


def test_a_datastore_is_its_documents(tmp_path):
    documents = [[0, 1], [2], [0, 2, 2]]
    store = build(tmp_path / "d", documents, max_shard_tokens=5)
    assert store.num_shards == 2
    assert [document.token_ids.tolist() for document in store] == documents
    assert [(document.index, document.start) for document in store] == [(0, 0), (1, 3), (2, 5)]
    assert store.document(2).token_ids.tolist() == documents[2]


def test_many_patterns_are_an_array_or_a_sequence(tmp_path):
    store = build(tmp_path / "d", [[0, 1, 0, 1, 2]])
    assert store.count_batch(np.array([[0, 1], [1, 2]], np.int32)).tolist() == [2, 1]
    assert store.count_batch([[0], (1, 2)]).tolist() == [2, 1]
    assert store.count_batch([]).tolist() == []
    assert store.count_next_batch([]).shape == (0, 4)
    thousands = np.tile([[0, 1], [2, 2]], (1000, 1))
    assert store.count_batch(thousands).tolist() == [2, 0] * 1000
