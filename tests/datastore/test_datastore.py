"""Token trees, integer dtypes, and batches in a forked process."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from datastores import build
from specds.drafters import TokenTree


@given(st.lists(st.integers(0, 99), max_size=24), st.randoms(), st.integers(0, 30))
def test_views_of_a_tree_equal_those_of_the_reference(draws, random, cut):
    """All nodes have different tokens, so siblings do too."""
    parents = [draw % (node + 1) - 1 for node, draw in enumerate(draws)]
    arrays = (random.sample(range(99), len(parents)), parents, [0.5] * len(parents))
    tree, expected = TokenTree(*arrays), reference.TokenTree(*arrays)
    num_known = [*(token >= cut for token in arrays[0]), True].index(True)
    for mine, other in (
        (tree, expected),
        (tree.limited(cut), expected.prefix(cut)),
        (tree.limited(max_depth=cut // 4), expected.up_to_depth(cut // 4)),
        (tree.limited(cut, cut // 4), expected.up_to_depth(cut // 4).prefix(cut)),
        (tree.known(cut), expected.prefix(num_known)),
    ):
        assert len(mine) == len(other)
        arrays = ("token_ids", "parents", "probs")
        pairs = [(getattr(mine, name), getattr(other, name)) for name in arrays]
        pairs += [(mine.depths(), other.depths()), (mine.mask(), other.mask())]
        for ours, theirs in pairs:
            assert (ours.dtype, ours.tolist()) == (theirs.dtype, theirs.tolist())
        assert [path.tolist() for path in mine.paths()] == [path.tolist() for path in other.paths()]


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2)), max_size=12))
def test_best_chain_is_the_likeliest_path_and_the_longest_of_equal_ones(nodes):
    parents = [draw % (node + 1) - 1 for node, (draw, _) in enumerate(nodes)]
    # Sums of eighths are exact in floats.
    tree = TokenTree(range(len(nodes)), parents, [eighths / 8 for _, eighths in nodes])
    chain = tree.best_chain().token_ids.tolist()
    assert chain == (reference.path_to(tree, chain[-1]) if chain else [])

    def score(path):
        return sum(tree.probs[path]), len(path)

    assert all(score(chain) >= score(path.tolist()) for path in tree.paths())


def test_integers_of_any_dtype_are_read(tmp_path):
    store = build(tmp_path / "d", [[1, 2, 3]])
    for dtype in "bBhiIqQ":
        assert store.lookup(np.array([1, 2], dtype)).length == 2
        assert store.lookup(np.array([1, 0, 2, 0], dtype)[::2]).length == 2
    assert store.lookup(torch.tensor([1, 2])).length == 2


@pytest.mark.parametrize("first", ["draft", "multiply"])
def test_batches_and_products_end_in_a_forked_process(tmp_path, first):
    script = """
import os, sys
import numpy as np
from specds import Datastore
from specds.papers import RestDrafter
from specds._core import linear_product
from specds.indexing import DatastoreBuilder
from specds.drafters import draft_batch
with DatastoreBuilder(sys.argv[1], vocab_size=4, separator=3) as builder:
    builder.add_documents([0, 1, 2, 0, 1], [5])
    store = builder.finish()
def draft():
    trees = draft_batch([RestDrafter(store).session([0]) for _ in range(64)], 8)
    return [tree.token_ids.tolist() for tree in trees]
def multiply():
    linear_product(np.ones((1024, 1024), np.float32), np.ones((2, 1024), np.float32), 2)
globals()[sys.argv[2]]()  # each has threads of its own
child = os.fork()
if child == 0:
    multiply()
    os._exit(0 if draft() == 64 * [[1, 2, 3, 0, 1, 3]] else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "d"), first]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
