"""Acceptance of sampled drafts: exactly the target's distribution, at every level."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
)

from exact_law import ToyModel, distance, law_of
from specds._core import DraftStats
from specds.drafters import RequestRules, Session, TokenTree
from specds.drafters.session import Proposal
from specds.generation.acceptance import walk
from specds.generation.budget import AutoBudget, FixedBudget
from specds.generation.stats import LevelStats
from specds.transformers.accept import draws, on_host
from specds.transformers.accept.on_host import Emitter, Sampler
from specds.transformers.hierarchy import context as context_module
from specds.transformers.hierarchy.config import ABLATIONS, HierarchyConfig
from specds.transformers.hierarchy.draft import Draft, Drawn, Threshold
from specds.transformers.hierarchy.drafter import HierarchySession
from specds.transformers.hierarchy.levels import ModelLevel, RetrievalLevel

START = [0, 1]
WEIGHTS = st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any)


def normalised(weights):
    return torch.tensor(weights, dtype=torch.float32) / sum(weights)


@given(WEIGHTS, WEIGHTS)
def test_proposal_keeps_the_distribution_with_maximal_acceptance(p, q):
    p, q = normalised(p), normalised(q)

    def program():
        proposal = Proposal(draws.draw(q), q)
        token = draws.accept_or_redraw(p, proposal)
        return token, token == proposal.token_id

    with pytest.MonkeyPatch.context() as monkeypatch:
        law, _ = law_of(program, monkeypatch)
    of_token = dict.fromkeys(range(4), 0.0)
    for (token, _), weight in law.items():
        of_token[token] += weight
    assert distance(of_token, dict(enumerate(p.tolist()))) < 1e-6
    accepted = sum(weight for (_, is_same), weight in law.items() if is_same)
    assert accepted == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-6)


def test_rejection_without_a_residual_draws_from_the_target(monkeypatch):
    p = normalised([1, 3])
    monkeypatch.setattr(draws, "happens", lambda _: False)
    assert draws.accept_or_redraw(p, Proposal(1, p)) in (0, 1)


class ToyRetrieval(Session):
    """A session whose trees depend on the context alone, as those of a drafter do."""

    def __init__(self, num_tokens):
        self.tokens = list(START)
        self.num_tokens = num_tokens

    def draft(self, max_nodes, *_):
        first = (self.tokens[-1] + len(self.tokens)) % self.num_tokens
        second = (first + 1) % self.num_tokens
        tree = TokenTree([first, second, first, second, first], [-1, 0, 1, -1, 3])
        return tree.limited(max_nodes)

    def observe(self, token_ids, num_verified=None):
        self.tokens += token_ids


class ToyTrialRetrieval(ToyRetrieval):
    """A session that also drafts after tentative tokens."""

    def draft_after(self, token_ids, max_nodes):
        after = ToyTrialRetrieval(self.num_tokens)
        after.tokens = [*self.tokens, *token_ids]
        return after.draft(max_nodes)


def rules(length, processors=()):
    everything = len(START) + length
    return RequestRules(None, LogitsProcessorList(processors), True, everything, frozenset())


def hierarchy(models, config, retrieval=None, threshold=0.0):
    levels = []
    if retrieval is not None:
        levels.append(RetrievalLevel("retrieval", retrieval, len(START), 1 << 16, 5, 5))
    for number, model in enumerate(models):
        level = ModelLevel(f"model {number}", model)
        level.threshold.value = threshold
        levels.append(level)
    return HierarchySession(START, levels, config)


def generated(target, session, length, processors, budget):
    """Run the decoding loop, without the parts that only a real model needs."""
    session.begin(rules(length, processors))
    processors = LogitsProcessorList(processors)
    stop = StoppingCriteriaList([MaxLengthCriteria(len(START) + length)])
    emitter = Emitter(torch.tensor([START]), stop)
    sampler = Sampler(processors, do_sample=True)
    while not emitter.finished:
        num_before = len(emitter.emitted)
        (tree,) = budget.draft([session], [length - num_before - 1])
        session.num_verified = len(tree)
        logits = target.run([*START, *emitter.emitted], tree)
        walk(logits, tree, emitter, sampler, session.proposals)
        session.observe(emitter.emitted[num_before:], session.num_verified)
        budget.record([emitter.emitted[num_before:]], 1.0)
    return tuple(emitter.emitted)


ALONE, TWO, JOINED = HierarchyConfig(), HierarchyConfig(window=2), HierarchyConfig(joined=True)
TWO_JOINED = HierarchyConfig(window=2, joined=True)
CASES = {
    **{
        f"{name}, {threshold}": (2, HierarchyConfig.ablation(name), None, threshold)
        for name in ABLATIONS
        for threshold in (0.0, 0.5)
    },
    "retrieval beneath one model": (1, ALONE, ToyRetrieval, 0.5),
    "retrieval beneath two models": (2, TWO, ToyRetrieval, 0.4),
    "beneath and joined": (1, JOINED, ToyRetrieval, 0.5),
    "beneath two and joined": (2, TWO_JOINED, ToyRetrieval, 0.4),
    "retrieval alone": (0, ALONE, ToyRetrieval, 0.0),
    "beneath one model, on trial": (1, ALONE, ToyTrialRetrieval, 0.5),
    "beneath two and joined, on trial": (2, TWO_JOINED, ToyTrialRetrieval, 0.4),
    "a chain of three": (3, TWO, None, 0.3),
}


def fixed():
    return FixedBudget(8, 9)


def law_of_case(name, monkeypatch, num_tokens=2, length=4, temperature=1.0, budget=fixed):
    """Return the distance of the distribution of a case's texts from the target's."""
    num_models, config, retrieves, threshold = CASES[name]
    config = replace(config, window=min(config.window, 2))
    target = ToyModel(num_tokens, 1)
    models = [ToyModel(num_tokens, 10 + number) for number in range(num_models)]

    def program():
        retrieval = None if retrieves is None else retrieves(num_tokens)
        session = hierarchy(models, config, retrieval, threshold)
        return generated(target, session, length, processors, budget())

    processors = [TemperatureLogitsWarper(temperature)]
    law, num_runs = law_of(program, monkeypatch)
    assert sum(law.values()) == pytest.approx(1, abs=1e-5)
    assert num_runs > num_tokens**length or name == "retrieval alone"
    return distance(law, target.law(START, length, temperature))


@pytest.mark.parametrize(("num_tokens", "length"), [(2, 4), (3, 3)])
@pytest.mark.parametrize("name", CASES)
def test_output_distribution_is_exactly_the_targets(name, num_tokens, length, monkeypatch):
    assert law_of_case(name, monkeypatch, num_tokens, length) < 1e-5


@pytest.mark.parametrize("max_nodes", [1, 2])
@pytest.mark.parametrize("name", ["full, 0.5", "beneath two and joined"])
def test_distribution_is_the_targets_under_any_budget(name, max_nodes, monkeypatch):
    assert law_of_case(name, monkeypatch, budget=lambda: FixedBudget(max_nodes, 9)) < 1e-5


def auto():
    """Return an automatic budget whose steps always take the same time."""
    costs = [1 + 0.3 * size for size in range(64)]
    return AutoBudget(costs, DraftStats(), 9, clock=lambda: 0.0)


@pytest.mark.parametrize(
    "name", ["full, 0.5", "beneath and joined", "beneath two and joined, on trial"]
)
def test_distribution_is_the_targets_under_an_automatic_budget(name, monkeypatch):
    assert law_of_case(name, monkeypatch, budget=auto) < 1e-5


def test_dropping_sampled_tokens_by_value_biases_the_distribution(monkeypatch):
    """A sampled token that is dropped because of its value is not an unbiased sample."""

    def proposals(session):
        one_by_one = session._draft.proposals.items()
        return {node: one for node, one in one_by_one if node + 1 < session.num_verified}

    monkeypatch.setattr(HierarchySession, "proposals", property(proposals))
    assert law_of_case("full, 0.5", monkeypatch, budget=auto) > 0.001


def redrawn_from_the_target(probs, proposal):
    token = proposal.token_id
    ratio = float(probs[token] / proposal.probs[token])
    return token if draws.happens(min(1.0, ratio)) else draws.draw(probs)


def always_accepted(probs, proposal):
    return proposal.token_id


@pytest.mark.parametrize("wrong", [redrawn_from_the_target, always_accepted])
# The rule of the target, and the rule of a middle model that pre-verifies: the target relies on
# the probabilities of that one, so its tokens must be its own samples.
@pytest.mark.parametrize(("module", "name"), [(on_host, "full, 0.5"), (context_module, "pre, 0.5")])
def test_biased_rule_is_detected(module, name, wrong, monkeypatch):
    monkeypatch.setattr(module, "accept_or_redraw", wrong)
    assert law_of_case(name, monkeypatch) > (0.01 if module is on_host else 0.001)


def test_retrieved_branch_taken_for_a_sample_is_detected(monkeypatch):
    """The control of joined trees: retrieved tokens were put there, not sampled."""

    def proposals(draft):
        return {} if not draft.chosen else {-1: Proposal(0, draft.chosen[0].probs)}

    monkeypatch.setattr(Draft, "proposals", property(proposals))
    assert law_of_case("beneath and joined", monkeypatch) > 0.01


def drawn(token, *weights):
    return Drawn.of(token, normalised(weights))


def test_threshold_learns_from_rejected_tokens_only():
    chosen, stats, threshold = [drawn(0, 1, 0), drawn(1, 1, 1)], LevelStats(), Threshold()
    draft = Draft.of_chain(chosen, True, threshold, stats)
    draft.settle([0])
    assert (threshold.value, stats.num_accepted) == (0, 1)
    draft.settle([0, 0, 1])
    assert threshold.value == pytest.approx(0.6931, abs=1e-3)
    assert stats.num_accepted == 2


def test_joining_keeps_sampled_tokens_first_and_merges_equal_paths():
    chain = Draft.of_chain([drawn(0, 1, 1), drawn(1, 1, 1)], True, Threshold(), LevelStats())
    branches = TokenTree([1, 0, 0, 2, 1, 3], [-1, -1, 0, 1, 1, 4])
    joined = chain.joined_with(branches, 5)
    assert joined.tree.token_ids.tolist() == [0, 1, 1, 0, 2]
    assert joined.tree.parents.tolist() == [-1, 0, -1, 2, 0]
    assert joined.proposals.keys() == {-1, 0}
    # A full budget still allows a path through existing nodes.
    assert len(chain.joined_with(branches, 2).tree) == 2
    deeper = chain.joined_with(branches, 7).tree
    assert (deeper.token_ids[-1], deeper.parents[-1]) == (3, 1)


def test_levels_use_the_targets_stateless_processors(monkeypatch):
    assert law_of_case("pre, 0.5", monkeypatch, temperature=2.0) < 1e-5
    context = context_module.LevelContext([1], rules(3, [TemperatureLogitsWarper(2.0), Stateful()]))
    logits = torch.tensor([1.0, 3.0])
    assert torch.allclose(context.probs(logits), torch.softmax(logits / 2, -1))


class Stateful:
    def __call__(self, token_ids, scores):
        raise AssertionError("asked about a token that the target never saw")


@pytest.mark.parametrize("are_of_uniforms", [True, False])
@given(st.integers(0, 2**32), WEIGHTS | st.just([2.0**-i for i in range(3000)]), st.booleans())
def test_draw_equals_multinomial_and_uses_the_same_random_numbers(
    are_of_uniforms, seed, weights, is_row
):
    probs = torch.tensor(weights, dtype=torch.float32)
    probs = probs[None] if is_row else probs
    torch.manual_seed(seed)
    expected = [torch.multinomial(probs, num_samples=1).item() for _ in range(5)]
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patched:
        if not are_of_uniforms:  # as in builds of torch that draw other numbers
            patched.setattr(draws, "_are_of_uniforms", lambda: False)
        with torch.inference_mode():  # tensors made in it are used outside of it
            found = [draws.draw(probs)]
        found += [draws.draw(probs) for _ in range(4)]
    assert found == expected
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, 0.0])
def test_draw_from_an_invalid_distribution_raises(wrong):
    with pytest.raises(RuntimeError, match="prob"):
        draws.draw(torch.tensor([0.0, wrong, 0.0]))
