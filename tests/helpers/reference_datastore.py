"""Reference answers of a datastore, by scans of its documents: slow, short, obviously right."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from datastores import build

SMALL = [(4, 3), (4, 4)]
VOCABULARIES = [*SMALL, (65_536, 65_535), (65_536, 65_536), (70_000, 0)]


@dataclass
class ReferenceCorpus:
    """Documents, and how a datastore of them is cut."""

    vocab_size: int
    separator: int
    documents: list[list[int]]
    max_shard_tokens: int

    def build(self, path, **options):
        sizes = {"vocab_size": self.vocab_size, "separator": self.separator}
        options = {"max_shard_tokens": self.max_shard_tokens, **options}
        return build(path, self.documents, **sizes, **options)

    def of(self, tokens):
        """Tokens below 4 as the corpus has them: all but 0 at the end of the vocabulary."""
        return [token and self.vocab_size - 4 + token for token in tokens]


@st.composite
def corpora(draw, most=300, vocabularies=VOCABULARIES):
    """Few tokens, of 16 and 24 bits, so that all collides, in one shard or many."""
    corpus = ReferenceCorpus(*draw(st.sampled_from(vocabularies)), [], 0)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths = random.integers(0, draw(st.sampled_from([13, most])), random.integers(1, 9))
    rows = [random.choice(4, length, p=[8 / 15, 4 / 15, 2 / 15, 1 / 15]) for length in lengths]
    corpus.documents = [*(corpus.of(row.tolist()) for row in rows), [0]]
    corpus.max_shard_tokens = max(draw(st.sampled_from([13, 20, 1000])), 1 + int(max(lengths)))
    return corpus


class Scan:
    """Documents as shards hold them, each with the separator after it."""

    def __init__(self, corpus):
        self.separator, self.vocab_size = corpus.separator, corpus.vocab_size
        self.shards, most = [[]], corpus.max_shard_tokens
        for document in filter(None, corpus.documents):
            text = (*document, self.separator)
            if self.shards[-1] and sum(map(len, self.shards[-1])) + len(text) > most:
                self.shards.append([])
            self.shards[-1].append(text)
        self.documents = [document for shard in self.shards for document in shard]

    def places(self, pattern):
        """The positions where a pattern without the separator begins."""
        pattern, text = tuple(pattern), sum(self.documents, ())
        starts = range(len(text)) if self.separator not in pattern else ()
        return [start for start in starts if text[start : start + len(pattern)] == pattern]

    def rests(self, pattern):
        """Return the rest of the document after each occurrence, by shard in suffix order."""
        size, pattern = len(pattern), tuple(pattern)
        return [
            rest
            for shard in self.shards
            for rest in sorted(
                document[start + size :]
                for document in shard
                for start in range(len(document) - size)
                if document[start : start + size] == pattern and self.separator not in pattern
            )
        ]

    def next(self, context):
        """Count the tokens that follow a context, the separator included."""
        return Counter(rest[0] for rest in self.rests(context))

    def longest(self, context, max_match, min_match):
        """Longest suffix of a context that occurs, or an empty one."""
        for size in range(min(max_match, len(context)), min_match - 1, -1):
            if self.rests(context[-size:]):
                return tuple(context[-size:])
        return ()

    def samples(self, pattern, length, max_samples):
        """An even sample of what follows."""
        rests = self.rests(pattern) if pattern else []
        number = min(len(rests), max_samples)
        places = [(2 * i + 1) * len(rests) // (2 * number) for i in range(number)]
        return [self.document(rests[place])[:length] for place in places]

    def document(self, rest):
        """Up to the first separator, and it too if it is a token."""
        return rest[: rest.index(self.separator) + (self.separator < self.vocab_size)]

    def rest_draft(self, pattern, max_nodes, continuation, max_samples):
        """The most frequent beginnings of what follows, the shorter ones first, with shares."""
        samples = self.samples(pattern, continuation, max_samples)
        counts = Counter(row[:n] for row in samples for n in range(1, len(row) + 1))
        best = sorted(counts, key=lambda path: (-counts[path], len(path), path))[:max_nodes]
        return [(path, float(np.float32(counts[path] / len(samples)))) for path in best]
