"""What REST's published program drafts, rewritten: its choice of nodes, and what it reads."""

import itertools
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datastores import build
from papers import published_rest

SEPARATOR = 7
SIZES = {"vocab_size": 8, "separator": SEPARATOR}

tokens = st.integers(0, 3)


@given(st.lists(st.lists(tokens, min_size=3, max_size=3), min_size=1, max_size=20))
def test_prefixes_are_counted_as_a_naive_count_does(rows):
    rows = np.array(sorted(rows))
    expected = Counter(tuple(row[:n].tolist()) for row in rows for n in range(1, 4))
    found = {
        tuple(rows[row, :length].tolist()): count
        for row, length, count in zip(*published_rest.count_prefixes(rows), strict=True)
    }
    assert found == expected


def test_continuations_are_all_that_follow_the_longest_suffix_in_order(tmp_path):
    texts = [[1, 2, 3, 0], [1, 2, 0], [2, 2, 1], [1, 2, 3, 3]]
    datastore = build(tmp_path / "a.specds", texts, **SIZES)
    array = published_rest.SuffixArray(datastore.path)
    rows = published_rest.retrieve(array, datastore, np.array([3, 1, 2]))
    stream = [*itertools.chain(*([*text, SEPARATOR] for text in texts))]
    starts = [i + 2 for i in range(len(stream)) if stream[i : i + 2] == [1, 2]]
    padded = [*stream, *[-1] * 10]
    assert rows.tolist() == sorted(padded[start : start + 10] for start in starts)
