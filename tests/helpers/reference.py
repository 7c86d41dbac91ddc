"""Naive twins of the Rust core in plain Python: slow, short, and meant to be obviously right."""

from __future__ import annotations

from collections import Counter

import numpy as np


class TokenTree:
    """The interface of `specds._core.TokenTree`, node by node."""

    def __init__(self, token_ids, parents, probs):
        self.token_ids = np.array(token_ids, dtype=np.int64)
        self.parents = np.array(parents, dtype=np.int64)
        self.probs = np.array(probs, dtype=np.float32)
        if not len(self.token_ids) == len(self.parents) == len(self.probs):
            raise ValueError("token_ids, parents and probs differ in length")
        edges = set()
        for node in range(len(self)):
            token, parent, prob = self.token_ids[node], self.parents[node], self.probs[node]
            if token < 0:
                raise ValueError(f"token_ids: node {node} has the negative token {token}")
            if not -1 <= parent < node:
                raise ValueError(f"parents: node {node} comes before its parent {parent}")
            if not 0 <= prob <= 1:
                raise ValueError(f"probs: node {node} has probability {prob}")
            if (int(parent), int(token)) in edges:
                raise ValueError(f"token_ids: node {node} repeats a sibling's token {token}")
            edges.add((int(parent), int(token)))

    def __len__(self):
        return len(self.token_ids)

    def path_to(self, node):
        path = []
        while node >= 0:
            path.append(int(node))
            node = self.parents[node]
        return path[::-1]

    def depths(self):
        return np.array([len(self.path_to(node)) for node in range(len(self))], dtype=np.int64)

    def mask(self):
        mask = np.zeros((len(self), len(self)), dtype=np.bool_)
        for node in range(len(self)):
            mask[node, self.path_to(node)] = True
        return mask

    def paths(self):
        leaves = [node for node in range(len(self)) if node not in self.parents]
        return [np.array(self.path_to(leaf), dtype=np.int64) for leaf in leaves]

    def prefix(self, k):
        return TokenTree(self.token_ids[:k], self.parents[:k], self.probs[:k])

    def up_to_depth(self, max_depth):
        kept = [node for node in range(len(self)) if len(self.path_to(node)) <= max_depth]
        parents = [kept.index(parent) if parent >= 0 else -1 for parent in self.parents[kept]]
        return TokenTree(self.token_ids[kept], parents, self.probs[kept])


class Datastore:
    """Every lookup by scanning every document: quadratic, and so simple that it is right.

    Args:
        documents: Lists of token ids.
        separator: Ends each document; equal to `vocab_size` where it is no token.
        vocab_size: Ids are smaller.
        max_shard_tokens: A document that does not fit begins a new shard.
    """

    def __init__(self, documents, separator, vocab_size, max_shard_tokens=1 << 30):
        self.texts = [[*document, separator] for document in documents if document]
        self.shards = []
        for text in self.texts:
            if not self.shards or sum(map(len, [*self.shards[-1], text])) > max_shard_tokens:
                self.shards.append([])
            self.shards[-1].append(text)
        self.separator = separator
        self.vocab_size = vocab_size

    def occurrences(self, tokens, length):
        """What follows each occurrence of `tokens`: up to `length` tokens, one shard after another.

        In each they are in suffix order. A continuation ends with the separator, which counts in
        the order by its id, and which is kept where it is a token.
        """
        found = []
        for shard in self.shards:
            in_shard = []
            for text in shard:
                for start in range(len(text) - len(tokens) + 1):
                    if text[start : start + len(tokens)] == tokens:
                        after = text[start + len(tokens) :]
                        in_shard.append(after[: after.index(self.separator) + 1][:length])
            found += sorted(in_shard)
        return [[token for token in after if token < self.vocab_size] for after in found]

    def lookup(self, context, max_match=16, min_match=1):
        """The longest suffix that occurs, never with a separator in it, and how often it occurs."""
        for length in range(min(max_match, len(context)), min_match - 1, -1):
            suffix = context[len(context) - length :]
            if self.separator not in suffix:
                count = len(self.occurrences(suffix, 1))
                if count:
                    return length, count
        return 0, 0

    def continuations(self, suffix, top_k):
        """The most frequent next tokens with their counts, count descending, then id ascending."""
        counts = Counter(o[0] for o in self.occurrences(suffix, 1) if o)
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:top_k]

    def positions(self, tokens):
        """Where `tokens` begins in the corpus, never with a separator in it."""
        corpus = [token for text in self.texts for token in text]
        starts = range(len(corpus) - len(tokens) + 1)
        if self.separator in tokens:
            return []
        return [start for start in starts if corpus[start : start + len(tokens)] == tokens]

    def document(self, position):
        """The document of a position: its number, where it starts, its tokens."""
        start = 0
        for index, text in enumerate(self.texts):
            if position < start + len(text):
                return index, start, text[:-1]
            start += len(text)
        raise ValueError("position")

    def rest(
        self,
        context,
        max_nodes,
        max_match=16,
        min_match=1,
        continuation=10,
        max_samples=256,
    ):
        """REST's draft (He et al. 2024, Algorithm 1): `(token_ids, parents, probs)`."""
        length, _ = self.lookup(context, max_match, min_match)
        if length == 0:
            return [], [], []
        found = self.occurrences(context[len(context) - length :], continuation)
        sample = even_sample(found, max_samples)
        counts = Counter(tuple(s[:n]) for s in sample for n in range(1, len(s) + 1))
        best = sorted(counts, key=lambda path: (-counts[path], len(path), path))
        shares = {path: count / len(sample) for path, count in counts.items()}
        return tree_of(best[:max_nodes], shares)


def prompt_lookup(context, max_match, continuation):
    """The longest suffix that came before, and what followed it the last time."""
    for length in range(min(max_match, len(context) - 1), 0, -1):
        suffix = context[len(context) - length :]
        for start in range(len(context) - length - 1, -1, -1):
            if context[start : start + length] == suffix:
                return length, context[start + length :][:continuation]
    return 0, []


def paths(token_ids, parents, probs):
    """The probability of each node of a tree by its path, in single precision as in a tree."""
    found = []
    for token, parent in zip(token_ids, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return dict(zip(found, np.array(probs, np.float32).tolist(), strict=True))


def tree_of(ranking, probs):
    """Paths, best first, as `(token_ids, parents, probs)`."""
    index = {path: i for i, path in enumerate(ranking)}
    parents = [index.get(path[:-1], -1) for path in ranking]
    return [path[-1] for path in ranking], parents, [probs[path] for path in ranking]


def even_sample(items, max_samples):
    """All items, or `max_samples` of them: the middle one of each of as many equal stretches."""
    n = len(items)
    if n <= max_samples:
        return items
    return [items[(2 * i + 1) * n // (2 * max_samples)] for i in range(max_samples)]
