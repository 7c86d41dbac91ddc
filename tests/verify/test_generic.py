"""Passes over trees, compared with passes over their paths, and commits to the cache."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from models import FAMILIES, VOCAB_SIZE, prompt, random_tree, tiny_model
from reference import path_to
from specds.transformers.verify.cache import TreeCache
from specds.transformers.verify.support import RUNNERS

# Largest difference of a logit; the logits reach 15. Norms are float32 in a float64 model too.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 3e-5}
CASES = [(family, torch.float32, "sdpa") for family in FAMILIES]
CASES += [(family, torch.float64, "sdpa") for family in ("llama", "gemma3", "gpt2")]
CASES += [(family, torch.float32, "eager") for family in ("llama", "mistral", "gemma3", "opt")]


@torch.no_grad()
def plain_rows(model, known, tree):
    """Return the expected logits: a whole pass for each node, without cache and mask."""
    paths = [[], *(path_to(tree, node) for node in range(len(tree)))]
    texts = (torch.tensor([[*known, *tree.token_ids[path]]]) for path in paths)
    return torch.stack([model(text, use_cache=False).logits[0, -1] for text in texts])


@torch.no_grad()
@pytest.mark.parametrize("verification", ["packed", "model"])
@pytest.mark.parametrize(("family", "dtype", "attention"), CASES)
def test_logits_over_trees_equal_those_of_paths(family, dtype, attention, verification):
    model = tiny_model(family, dtype, attention)
    rng = np.random.default_rng(1)
    runner = RUNNERS[verification](model, prompt_length=21, max_length=200, max_nodes=16)
    known = prompt()[0].tolist()
    first = runner.prefill_rows([torch.tensor([known])])
    assert first.shape == (1, VOCAB_SIZE)
    worst = float((first - model(torch.tensor([known])).logits[0, -1:]).abs().max())
    known.append(int(rng.integers(VOCAB_SIZE)))
    for num_nodes in (9, 0, 14, 1, 16):
        tree = random_tree(rng, num_nodes)
        rows = runner.verify_rows([known[-1]], [tree])[0]
        assert rows.shape == (num_nodes + 1, VOCAB_SIZE)
        worst = max(worst, float((rows - plain_rows(model, known, tree)).abs().max()))
        # Accept a path, whole or in part, whose nodes are rarely adjacent.
        path = path_to(tree, int(rng.integers(-1, num_nodes))) if num_nodes else []
        runner.commit_rows([path])
        known += [*tree.token_ids[path].tolist(), int(rng.integers(VOCAB_SIZE))]
        assert runner.cache.length == len(known) - 1
    assert worst < TOLERANCE[dtype]


def states(*values, dim=4):
    """Return keys of a pass, `(1, 2, len(values), dim)`, each slot filled with its value."""
    return torch.tensor(values, dtype=torch.float32)[None, None, :, None].expand(1, 2, -1, dim)


def write(cache, row, *values):
    """Write a pass over one row, whose values have another shape than its keys."""
    start = cache.lengths[row]
    cache.reserve(start + len(values))
    first = row * cache.capacity + start
    cache.place(torch.arange(first, first + len(values)), start + len(values), row)
    for layer in range(2):
        seen, _ = cache.update(states(*values), states(*values, dim=6), layer)
    cache.settle()
    return seen[0, 0, :, 0].tolist()


def slots(cache, row, layer):
    kept = cache.committed(row).layers[layer]
    assert torch.equal(kept.keys[0, :, :, 0], kept.values[0, :, :, 5])
    return kept.keys[0, 0, :, 0].tolist()


@settings(max_examples=40)
@given(st.data())
def test_cache_rows_grow_leave_and_are_copied(data):
    num_rows = data.draw(st.integers(1, 4))
    cache, expected = TreeCache(2, num_rows), [[] for _ in range(num_rows)]
    number = 0
    for _ in range(data.draw(st.integers(1, 8))):
        kept = []
        cache.reserve(max(cache.lengths) + 40)  # before a pass, not within
        for row, known in enumerate(expected):
            size = data.draw(st.integers(1, 40))
            new = [float(number + i) for i in range(size)]
            number += size
            assert write(cache, row, *new)[: len(known)] == known
            kept.append(sorted(data.draw(st.sets(st.integers(0, size - 1)))))
            known += [new[index] for index in kept[-1]]
        cache.commit(kept)
        if len(expected) > 1 and data.draw(st.booleans()):
            row = data.draw(st.integers(0, len(expected) - 1))
            cache.drop_row(row)
            expected[row] = expected[-1]
            expected.pop()
        elif len(expected) > 1:
            cache.copy_row(0, 1)
            expected[1] = [*expected[0]]
        for layer in range(2):
            assert [slots(cache, row, layer) for row in range(len(expected))] == expected


@pytest.mark.skipif(torch.__version__.startswith("2.7."), reason="it asks for a driver")
def test_states_are_on_the_devices_of_their_layers():
    with FakeTensorMode(), torch.no_grad():  # of devices that are not here
        cache = TreeCache(8)
        for width in (3, 2, 40):
            start = cache.length
            cache.reserve(start + width)
            end = start + width if start else 0
            cache.place(torch.arange(start, start + width, device="cuda:0"), end)
            for layer in range(2):
                states = torch.zeros(1, 2, width, 4, device=f"cuda:{layer}")
                for seen in cache.update(states, states, layer):
                    assert seen.shape == (1, 2, start + width, 4)
                    assert seen.device == states.device
            cache.settle()
            cache.commit([[0, *range(2, width)]])  # which moves
