"""Acceptance on the host: an exact distribution, with one call of each processor a token."""

import itertools
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import (
    EosTokenCriteria,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from exact_law import ToyModel, distance, law_of
from models import prompt
from specds._core import TokenTree
from specds.drafters.session import EMPTY_TREE
from specds.generation.acceptance import walk
from specds.transformers.accept.on_host import Emitter, Sampler

NUM_TOKENS = 3  # vocabulary of the enumeration
HORIZON = 3  # tokens per enumerated text


def all_trees(max_nodes):
    """Yield each token tree of at most `max_nodes` nodes over the small vocabulary."""
    for num_nodes in range(max_nodes + 1):
        for parents in itertools.product(*(range(-1, node) for node in range(num_nodes))):
            for token_ids in itertools.product(range(NUM_TOKENS), repeat=num_nodes):
                edges = set(zip(parents, token_ids, strict=True))
                if len(edges) == num_nodes:
                    yield TokenTree(token_ids, parents, [0.5] * num_nodes)


def distances(rule, trees, monkeypatch):
    """Yield the distance from the target of `rule` on each tree, followed by the baseline."""
    target, sampler = ToyModel(NUM_TOKENS, 5), Sampler(LogitsProcessorList(), do_sample=True)
    for tree in trees:

        def program(tree=tree):
            criteria = StoppingCriteriaList([MaxLengthCriteria(1 + HORIZON)])
            emitter = Emitter(torch.zeros(1, 1, dtype=torch.long), criteria)
            rule(target.run([0], tree), tree, emitter, sampler)
            while not emitter.finished:
                logits = target.run([0, *emitter.emitted], chain([]))
                walk(logits, EMPTY_TREE, emitter, sampler)
            return tuple(emitter.emitted)

        yield distance(law_of(program, monkeypatch)[0], target.law([0], HORIZON))


def redrawing_walk(logits, tree, emitter, choose):
    """REST's rule as in its code: a new draw after a token that the tree lacks."""
    path, node = [], -1
    while True:
        token = choose(emitter, logits[node + 1])
        children = np.flatnonzero((tree.parents == node) & (tree.token_ids == token))
        if len(children) == 0:
            emitter.emit(choose(emitter, logits[node + 1]))
            return path
        emitter.emit(token)
        node = int(children[0])
        path.append(node)
        if emitter.finished:
            return path


def test_distribution_of_the_text_is_the_targets_for_every_tree(monkeypatch):
    trees = list(all_trees(3))
    assert len(trees) == 1 + 3 + 15 + 105
    assert max(distances(walk, trees, monkeypatch)) <= 1e-6


def test_redrawing_after_a_mismatch_biases_the_distribution(monkeypatch):
    trees = [tree for tree in all_trees(2) if len(tree)]
    found = list(distances(redrawing_walk, trees, monkeypatch))
    assert max(found) > 0.1
    assert min(found) > 1e-3


def chain(tokens):
    return TokenTree(tokens, range(-1, len(tokens) - 1), [0.5] * len(tokens))


def emitter_for(criteria=()):
    return Emitter(prompt(4), StoppingCriteriaList(criteria))


@pytest.mark.parametrize("tie", [[3.0, 3.0], [3.0, 3.0 + 1e-12]], ids=["equal", "in float32"])
def test_ties_go_to_the_lowest_token(tie):
    logits = torch.tensor([[1.0, *tie, 2.0]], dtype=torch.float64)
    emitter = emitter_for()
    for kept in (False, True):
        sampler = Sampler(LogitsProcessorList(), do_sample=False, keep_scores=kept)
        walk(logits, EMPTY_TREE, emitter, sampler)
    assert emitter.emitted == [1, 1]


def test_criterion_that_warns_of_length_is_called(monkeypatch):
    call = Mock(return_value=torch.tensor([False]))
    monkeypatch.setattr(MaxLengthCriteria, "__call__", call)
    emitter_for([MaxLengthCriteria(20, max_position_embeddings=10)]).emit(1)
    assert call.call_count == 1


def test_end_token_may_be_a_tensor_of_one_number():
    emitter = emitter_for([EosTokenCriteria(torch.tensor(3))])
    emitter.emit(3)
    assert emitter.finished


def test_kept_scores_and_logits_are_copies():
    processors = LogitsProcessorList([MinLengthLogitsProcessor(9, 1, device="cpu")])
    for made in (processors, LogitsProcessorList()):
        sampler = Sampler(made, do_sample=False, keep_scores=True, keep_logits=True)
        assert not sampler.is_argmax
        logits = torch.tensor([0.0, 5.0, 1.0], dtype=torch.float64 if made else torch.float32)
        assert sampler(emitter_for(), logits) == (2 if made else 1)
        logits.zero_()
        assert sampler.logits[0].tolist() == [[0.0, 5.0, 1.0]]
        assert sampler.scores[0].tolist() == [[0.0, -float("inf") if made else 5.0, 1.0]]
        assert sampler.scores[0].dtype == torch.float32


class InPlace(LogitsProcessor):
    """A processor that writes to the scores that it was given."""

    def __call__(self, _, scores):
        scores[:, 3] = -torch.inf
        return scores


WARPERS = [TemperatureLogitsWarper(0.7), TopKLogitsWarper(40), TopPLogitsWarper(0.8)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("processors", [[], WARPERS[:1], WARPERS, [*WARPERS, InPlace()]])
def test_sample_equals_the_baseline_and_leaves_logits_unchanged(processors, dtype):
    logits = torch.randn(9, 500, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = logits.clone()
    sampler = Sampler(LogitsProcessorList(processors), do_sample=True)
    torch.manual_seed(1)
    sampled = [sampler(emitter_for(), row) for row in logits]
    torch.manual_seed(1)
    for row, token in zip(before.clone(), sampled, strict=True):
        scores = sampler.logits_processor(prompt(4), row[None].float())
        assert torch.multinomial(scores.softmax(dim=-1), num_samples=1).item() == token
    assert torch.equal(logits, before)
    assert len(set(sampled)) > 3


def test_returned_tokens_do_not_change_later():
    emitter = emitter_for()
    views = [emitter.token_ids]
    for token in range(30):
        emitter.emit(token)
        if token % 3:  # some are stored several at a time
            views.append(emitter.token_ids)
    whole = [*prompt(4)[0].tolist(), *range(30)]
    for view in views:
        assert view.dtype == torch.int64
        assert view.tolist() == [whole[: view.shape[1]]]
    assert views[-1].shape == (1, 34)
