"""Reference implementations of the Rust core: slow, short, and meant to be obviously right."""

import numpy as np


def path_to(tree, node):
    """The nodes of a tree from the root to one of them."""
    path = []
    while node >= 0:
        path.append(int(node))
        node = tree.parents[node]
    return path[::-1]


class TokenTree:
    """The interface of `specds._core.TokenTree`, node by node."""

    def __init__(self, token_ids, parents, probs):
        self.token_ids = np.array(token_ids, dtype=np.int64)
        self.parents = np.array(parents, dtype=np.int64)
        self.probs = np.array(probs, dtype=np.float32)

    def __len__(self):
        return len(self.token_ids)

    def depths(self):
        return np.array([len(path_to(self, node)) for node in range(len(self))], dtype=np.int64)

    def mask(self):
        mask = np.zeros((len(self), len(self)), dtype=np.bool_)
        for node in range(len(self)):
            mask[node, path_to(self, node)] = True
        return mask

    def paths(self):
        leaves = [node for node in range(len(self)) if node not in self.parents]
        return [np.array(path_to(self, leaf), dtype=np.int64) for leaf in leaves]

    def prefix(self, k):
        return TokenTree(self.token_ids[:k], self.parents[:k], self.probs[:k])

    def up_to_depth(self, max_depth):
        kept = [node for node in range(len(self)) if len(path_to(self, node)) <= max_depth]
        parents = [kept.index(parent) if parent >= 0 else -1 for parent in self.parents[kept]]
        return TokenTree(self.token_ids[kept], parents, self.probs[kept])


def paths(tree):
    """The probability of each node of a tree by its path, in single precision as in a tree."""
    nodes = range(len(tree))
    found = [tuple(tree.token_ids[path_to(tree, node)].tolist()) for node in nodes]
    return dict(zip(found, tree.probs.tolist(), strict=True))


def shown(tree):
    """All of a tree, to the bit."""
    return (
        tree.token_ids.tolist(),
        tree.parents.tolist(),
        tree.probs.tobytes(),
        tree.sources.tolist(),
    )
