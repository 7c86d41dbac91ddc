"""What a step costs, as it was measured."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper

from models import tiny_model
from specds.accept.on_device import PassRequest
from specds.accept.on_host import Sampler
from specds.decoding import step_cost as cost
from specds.decoding.step_cost import MOST_NODES, CostModel, measure, step_costs

SIZES = (0, 1, 2, 3, 4, 8, 16, 32, 63)
STEPS = (0, 7, 15, 31, 63)


def seconds_of(number):
    return st.lists(st.floats(1e-3, 1.0), min_size=number, max_size=number)


@given(seconds_of(len(SIZES)))
def test_costs_are_those_of_straight_lines_between_what_was_measured(seconds):
    measured = dict(zip(SIZES, seconds, strict=True))
    model = CostModel(measured)
    least = [min(seconds[place:]) for place in range(len(SIZES))]
    lines = np.interp(range(MOST_NODES + 1), SIZES, least)
    assert model.seconds == pytest.approx(lines)
    # What was not measured is as steep as what was.
    beyond = CostModel({size: measured[size] for size in (0, 1, 8)}).seconds
    least = [min(measured[s] for s in (0, 1, 8) if s >= size) for size in (1, 8)]
    assert beyond[63] == pytest.approx(least[1] + 55 / 7 * (least[1] - least[0]))


@given(seconds_of(len(STEPS)))
def test_costs_of_passes_of_few_sizes_are_a_staircase(seconds):
    model = CostModel(dict(zip(STEPS, seconds, strict=True)), STEPS)
    least = [min(seconds[place:]) for place in range(5)]
    stairs = [least[min(i for i, s in enumerate(STEPS) if s >= n)] for n in range(MOST_NODES + 1)]
    assert model.seconds == pytest.approx(stairs)


class Passes:
    """A target whose passes take a known time, the first one of a size 0.2 s more."""

    def __init__(self, seconds, per_node=0.0, holds=63):
        self.seconds, self.per_node, self.holds = seconds, per_node, holds
        self.now, self.sizes = 0.0, []

    def measured(self, **settings):
        return measure(self, clock=lambda: self.now, **settings)

    def __call__(self, num_nodes):
        if num_nodes > self.holds:
            raise torch.OutOfMemoryError
        self.now += self.seconds * (1 + num_nodes / 63) + self.per_node * num_nodes
        self.now += 0.2 * (num_nodes not in self.sizes)
        self.sizes.append(num_nodes)


def test_measuring_ignores_the_first_pass_of_a_size():
    passes = Passes(1e-3)
    measured = passes.measured()
    # The time that these take is none of the measuring's.
    assert set(measured) == set(SIZES)
    assert min(map(passes.sizes.count, measured)) == 6
    for size, seconds in measured.items():
        assert seconds == pytest.approx(1e-3 * (1 + size / 63))


BOUNDED = {
    "a slow model: four passes": (Passes(30.0), {}, {0, 1, 3, 8}, 8),
    "eight passes of half a second": (Passes(0.5), {}, {0, 1, 3, 8}, 8),
    "memory that holds 20 nodes": (Passes(1e-3, holds=20), {}, {0, 1, 2, 3, 4, 8, 16}, 16),
    "at most 5 nodes": (Passes(1e-3), {"most_nodes": 5}, {0, 1, 2, 3, 4}, 4),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_no_pass_is_larger_or_later_than_it_may_be(name):
    passes, settings, measured_sizes, largest = BOUNDED[name]
    assert set(passes.measured(**settings)) == measured_sizes
    assert max(passes.sizes) == largest
    # What a user waits for is a second, or this.
    assert passes.seconds < 0.1 or len(passes.sizes) == (4 if passes.seconds > 1 else 8)


def test_where_time_is_short_small_passes_are_measured_more_often():
    passes = Passes(0.01, per_node=0.0015)
    assert set(passes.measured()) == set(SIZES)
    count = passes.sizes.count
    assert count(0) == count(1) == 6  # the first is not counted
    assert count(63) == 2


@pytest.fixture(autouse=True)
def _nothing_is_measured_yet(monkeypatch):
    monkeypatch.setattr(cost, "_models", {})


class Runner:
    """The length of a context, and passes that are counted."""

    def __init__(self, length, num_rows=1, steps=()):
        self.cache = SimpleNamespace(lengths=[length] * num_rows)
        self.node_steps, self.sizes, self.setting = steps, set(), ()
        self.num_passes = 0

    def verify_rows(self, token_ids, trees):
        self.num_passes += 1
        self.sizes.add(0 if trees[0] is None else len(trees[0]))
        return [np.zeros((1, 1)) for _ in zip(token_ids, trees, strict=True)]


def costs_of(model, length, num_rows=1, steps=()):
    """Costs for rows of a length, and the runner by which they were measured, or not."""
    runner = Runner(length, num_rows, steps)
    return step_costs(model, runner), runner


def test_costs_are_measured_once_for_a_model_and_a_range_of_rows_and_lengths():
    model = tiny_model("llama")
    cases = [(100, 1, True), (1024, 1, False), (1025, 1, True), (2048, 1, False)]
    cases += [(100, 3, True), (100, 4, False)]
    for length, num_rows, is_measured in cases:
        _, runner = costs_of(model, length, num_rows)
        assert (runner.num_passes > 0) == is_measured
    assert costs_of(tiny_model("qwen2"), 100)[1].num_passes > 0


def test_costs_are_those_of_a_kind_of_acceptance():
    model, runner = tiny_model("llama"), Runner(100)
    asked = []
    runner.launch = lambda last, trees, request: lambda: asked.append(request)
    greedy = PassRequest(Sampler([], do_sample=False), 8)
    warm, cold = (
        PassRequest(Sampler([TemperatureLogitsWarper(of)], do_sample=True), 8, 0, torch.ones(1))
        for of in (0.5, 0.7)
    )
    for request, is_measured in ((greedy, True), (warm, True), (cold, False), (greedy, False)):
        asked.clear()
        step_costs(model, runner, request)
        assert (len(asked) > 0) == is_measured
        assert {id(each) for each in asked} <= {id(request)}
    assert runner.num_passes == 0
    step_costs(model, runner)
    assert runner.num_passes > 0


def test_of_passes_of_few_sizes_those_are_measured():
    costs, runner = costs_of(tiny_model("llama"), 100, steps=STEPS)
    assert runner.sizes == {*STEPS}
    assert costs.seconds[8] == costs.seconds[15]
