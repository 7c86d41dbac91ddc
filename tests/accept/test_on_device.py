"""Acceptance on the device, compared with acceptance on the host."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models import GREEDY, Session, prompt, random_drafter, random_tree, tiny_model, tree_generate
from passes import Accepting
from reference import path_to
from specds._core import read_outcomes
from specds.transformers.accept.on_device import (
    PassRequest,
    follow,
    likeliest,
    likeliest_on_host,
    report,
)
from specds.transformers.verify import packed
from specds.transformers.verify.inputs import Inputs
from specds.transformers.verify.packed import PackedRunner

SCORES = st.integers(-3, 40).map(float) | st.just(-np.inf)


def walked(token_ids, parents, choices):
    """Return the accepted nodes and the emitted tokens, node by node."""
    nodes, tokens, node = [], [], -1
    while True:
        tokens.append(choices[node + 1])
        children = [n for n, parent in enumerate(parents) if parent == node]
        node = next((n for n in children if token_ids[n] == tokens[-1]), None)
        if node is None:
            return nodes, tokens
        nodes.append(node)


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    padding=st.integers(0, 5),
)
def test_path_on_the_device_equals_the_path_on_the_host(seed, sizes, padding):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, size, vocab_size=4) for size in sizes]
    width = 1 + max(sizes) + padding
    inputs = Inputs.on_host(len(trees), width)
    inputs.fill([0] * len(trees), trees, [9] * len(trees))
    choices = torch.from_numpy(rng.integers(0, 4, (len(trees), width)))
    ranks = torch.from_numpy(rng.integers(0, 4, (len(trees), width, seed % 3)))
    counts, path = follow(
        inputs.token_ids, inputs.depths, inputs.parents, inputs.visible(), choices
    )
    outcomes = read_outcomes(report(counts, path, choices, ranks).numpy(), width)
    for row, (tree, (nodes, tokens, predictions)) in enumerate(zip(trees, outcomes, strict=True)):
        assert (nodes, tokens) == walked(tree.token_ids, tree.parents, choices[row].tolist())
        assert predictions.tolist() == ranks[row].tolist()
        # The places after the path are unchanged.
        end = 1 + len(nodes)
        assert path[row, end:].tolist() == list(range(end, width))


class Says:
    """A sampler that chooses the tokens of given texts, whatever the logits are."""

    is_argmax = False

    def __init__(self, texts):
        self.texts = texts

    def sample_all(self, logits, depths, noise):
        return self.texts.gather(1, depths)


@torch.no_grad()
@pytest.mark.parametrize("num_moved", [0, 2, 16])
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1), num_rows=st.integers(1, 3), stops=st.booleans())
def test_pass_moves_the_states_that_it_accepts(num_moved, seed, num_rows, stops):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, int(rng.integers(1, 13))) for _ in range(num_rows)]
    paths = [path_to(tree, int(rng.integers(len(tree)))) for tree in trees]
    texts = torch.zeros(num_rows, 14, dtype=torch.int64)
    for row, (tree, path) in enumerate(zip(trees, paths, strict=True)):
        texts[row, : len(path)] = torch.from_numpy(tree.token_ids[path])
    prompts = [prompt(9 + row, row) for row in range(num_rows)]
    sizes = {"prompt_length": 12, "max_length": 50, "max_nodes": 12, "num_rows": num_rows}
    caches, wanted = [], [path[: len(path) - stops] for path in paths]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(packed, "_MOVED", num_moved)
        for accepts in (True, False):
            runner = PackedRunner(tiny_model("qwen3"), **sizes)
            runner.prefill_rows(prompts)
            if accepts:
                wait = runner.launch([5] * num_rows, trees, PassRequest(Says(texts)))
                decided = zip(wait(), paths, strict=True)
                assert all(nodes[: len(path)] == path for (nodes, *_), path in decided)
            else:
                runner.verify_rows([5] * num_rows, trees)
            runner.commit_rows(wanted)
            caches.append(runner.cache)
    ours, theirs = caches
    assert ours.lengths == theirs.lengths
    for row in range(num_rows):
        pairs = zip(ours.committed(row).layers, theirs.committed(row).layers, strict=True)
        for one, other in pairs:
            assert torch.equal(one.keys, other.keys)
            assert torch.equal(one.values, other.values)


class Predictions(Session):
    """A session that records the target's predictions."""

    num_predictions = 5

    def __init__(self, received):
        super().__init__(random_drafter().grow, [])
        self.received = received

    def observe_predictions(self, tree, predictions):
        self.received.append((tree.token_ids.tolist(), np.asarray(predictions).tolist()))


def predictions_of(model, **settings):
    """Return the predictions that a session receives in each step."""
    drafter, received = random_drafter(), []
    drafter.session = lambda _: Predictions(received)
    output = tree_generate(model, drafter, num_tokens=24, max_nodes=7, **settings)
    assert len(received) == 1 + output.stats.num_drafts
    return received


@pytest.mark.parametrize("settings", [GREEDY, {"do_sample": True, "top_k": 1}])
def test_predictions_are_returned_with_the_accepted_path(settings):
    model = tiny_model("qwen3")
    on_host = predictions_of(model, **settings)
    on_device = predictions_of(model, verification=Accepting, **settings)
    assert on_device == on_host
    assert all(len(rows) == 1 + len(tokens) and len(rows[0]) == 5 for tokens, rows in on_device)


@settings(max_examples=50)
@given(
    scores=arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(1, 99)), elements=SCORES),
    k=st.integers(0, 9),
    known=st.integers(1, 99),
)
def test_likeliest_on_the_host_equal_those_of_torch(scores, k, known):
    expected = likeliest(torch.from_numpy(scores), k, known)
    found = likeliest_on_host(torch.from_numpy(scores), k, known)
    assert found.dtype == np.int64
    assert found.shape == tuple(expected.shape)
    # Either of two equal scores may come first.
    rows = np.arange(len(scores))[:, None]
    assert np.array_equal(scores[rows, found], scores[rows, expected.numpy()])
    assert all(len(set(row)) == len(row) for row in found.tolist())
