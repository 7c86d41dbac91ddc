"""What a step costs: measured, kept, and learned from steps."""

import json
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import tiny_model
from specds.budget import step_cost as cost
from specds.budget.step_cost import MOST_NODES, CostModel, StepCosts, measure

SIZES = (0, 1, 2, 4, 8, 16, 32, 63)


SECONDS = st.lists(st.floats(1e-3, 1.0), min_size=len(SIZES), max_size=len(SIZES))


@given(SECONDS, st.integers(0, MOST_NODES))
def test_costs_are_those_of_straight_lines_between_what_was_measured(seconds, most):
    measured = dict(zip(SIZES, seconds, strict=True))
    model = CostModel(measured)
    least = [min(seconds[place:]) for place in range(len(SIZES))]
    lines = np.interp(range(MOST_NODES + 1), SIZES, least)
    assert [model.seconds(size) for size in range(MOST_NODES + 1)] == pytest.approx(lines)
    assert model.relative(most) == pytest.approx(lines[: 1 + most] / lines[0])
    beyond_first = (lines[2:] - lines[1]) / np.arange(1, MOST_NODES) / lines[0]
    assert model.least_worth == pytest.approx(beyond_first.min(), abs=1e-12)


STEPS = (0, 7, 15, 31, 63)


@given(st.lists(st.floats(1e-3, 1.0), min_size=5, max_size=5), st.integers(0, MOST_NODES))
def test_costs_of_passes_of_few_sizes_are_a_staircase(seconds, num_nodes):
    model = CostModel(dict(zip(STEPS, seconds, strict=True)), STEPS)
    least = [min(seconds[place:]) for place in range(5)]
    stairs = [least[min(i for i, s in enumerate(STEPS) if s >= n)] for n in range(MOST_NODES + 1)]
    assert [model.seconds(size) for size in range(MOST_NODES + 1)] == pytest.approx(stairs)
    assert model.relative(num_nodes) == pytest.approx(
        [s / least[0] for s in stairs[: 1 + num_nodes]]
    )
    assert model.curve() == pytest.approx(dict(zip(STEPS, least, strict=True)))


def test_a_step_is_learned_by_its_stair_and_those_above():
    model = CostModel(dict.fromkeys(STEPS, 1.0), STEPS)
    for num_nodes in (8, 15):
        before = model._taken
        model.record(num_nodes, 2.0)
        moved = [after / old for after, old in zip(model._taken, before, strict=True)]
        assert moved == pytest.approx([moved[0]] * 2 + [moved[2]] * 3)
        assert 1.0 < moved[0] < moved[2]


def test_costs_never_fall_with_the_number_of_nodes():
    model = CostModel({0: 4.0, 1: 2.0, 8: 3.0, 63: 9.0})
    some = [model.seconds(size) for size in (0, 1, 8, 36, 63)]
    assert some == pytest.approx([2.0, 2.0, 3.0, 6.0, 9.0], rel=0.05)
    assert model.relative(63)[-1] == pytest.approx(4.5)
    for num_nodes in (63, 3, 0, 500):
        model.record(num_nodes, 1e-3)
        assert all(less <= more for less, more in pairwise(map(model.seconds, range(65))))
    before = model.curve()
    model.record(4, 0.0)
    assert model.curve() == before


def test_what_is_faster_than_a_plain_step_is_learned_by_its_own_size_alone():
    truth = {0: 10e-3, 1: 8e-3, 4: 12e-3, 8: 18e-3, 63: 90e-3}
    model = CostModel(truth)
    assert model.seconds(0) == model.seconds(1) == pytest.approx(8e-3)
    for step in range(3000):
        size = (0, 1, 1, 4)[step % 4]
        model.record(size, truth[size])
    learned = [model.seconds(size) for size in (0, 1, 4, 8, 63)]
    assert learned == pytest.approx([8e-3, 8e-3, 12e-3, 18e-3, 90e-3])


class Passes:
    """A target whose passes take a known time, the first one of a size 0.2 s more."""

    def __init__(self, seconds, per_node=0.0, holds=63):
        self.seconds, self.per_node, self.holds = seconds, per_node, holds
        self.now = 0.0
        self.sizes = []

    def clock(self):
        return self.now

    def __call__(self, num_nodes):
        if num_nodes > self.holds:
            raise torch.OutOfMemoryError
        self.now += self.seconds * (1 + num_nodes / 63) + self.per_node * num_nodes
        self.now += 0.2 * (num_nodes not in self.sizes)
        self.sizes.append(num_nodes)


def test_measuring_ignores_the_first_pass_of_a_size():
    passes = Passes(1e-3)
    measured = measure(passes, clock=passes.clock)
    # The time that these take is none of the measuring's.
    assert set(measured) == set(SIZES)
    assert min(map(passes.sizes.count, measured)) == 6
    for size, seconds in measured.items():
        assert seconds == pytest.approx(1e-3 * (1 + size / 63))


BOUNDED = {
    "a slow model: three passes": (Passes(30.0), {}, {0, 8, 63}, 63),
    "memory that holds 20 nodes": (Passes(1e-3, holds=20), {}, {0, 1, 2, 4, 8, 16, 63}, 16),
    "at most 5 nodes": (Passes(1e-3), {"most_nodes": 5}, {0, 1, 2, 4, 63}, 4),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_no_pass_is_larger_or_later_than_it_may_be(name):
    passes, settings, measured_sizes, largest = BOUNDED[name]
    measured = measure(passes, clock=passes.clock, **settings)
    assert set(measured) == measured_sizes
    assert measured[63] == measured[largest]
    assert max(passes.sizes) == largest
    assert passes.seconds < 1 or len(passes.sizes) == 3


def test_where_time_is_short_small_passes_are_measured_more_often():
    passes = Passes(0.01, per_node=0.0015)
    assert set(measure(passes, clock=passes.clock)) == set(SIZES)
    count = passes.sizes.count
    assert count(0) == count(1) == 6  # the first is not counted
    assert count(63) == 2


class Runner:
    """The length of a context, and passes that are counted."""

    def __init__(self, length, num_rows=1, steps=()):
        self.cache = SimpleNamespace(lengths=[length] * num_rows)
        self.node_steps, self.sizes = steps, set()
        self.num_passes = 0

    def verify_rows(self, token_ids, trees):
        self.num_passes += 1
        self.sizes.add(0 if trees[0] is None else len(trees[0]))
        return [np.zeros((1, 1)) for _ in zip(token_ids, trees, strict=True)]


@pytest.fixture
def costs_of(tmp_path, monkeypatch):
    """Costs for a context of a length, as in a new process; the number of passes measured."""

    def measured(length=100, verification="tree", num_rows=1, folder=tmp_path):
        monkeypatch.setattr(cost, "_models", {})
        runner = Runner(length, num_rows)
        model = StepCosts(tiny_model("llama"), runner, verification, folder).now()
        assert set(model.curve()) == set(SIZES)
        return runner.num_passes

    return measured


def test_costs_are_measured_once_for_a_model_and_a_range_of_lengths(costs_of):
    assert costs_of() > 0
    assert costs_of() == costs_of(1024) == 0
    assert costs_of(1025) > 0
    assert costs_of(2048) == 0
    assert costs_of(100, "fast") > 0
    assert costs_of(num_rows=3) > 0
    assert costs_of(num_rows=4) == 0


def test_of_passes_of_few_sizes_those_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "_models", {})
    runner = Runner(100, steps=STEPS)
    model = StepCosts(tiny_model("llama"), runner, "fast", tmp_path).now()
    assert runner.sizes == {*STEPS} == {*model.curve()}
    assert model.seconds(8) == model.seconds(15)


DAMAGED = [b"", b"{", b"[]", b"\xff", b"7", b'{"0": 1}', b'{"0": 1, "63": null}']
DAMAGED += [b'{"0": 1, "63": NaN}', b'{"0": 1, "63": -1}', b'{"0": 1, "63": 2, "64": 3}']
DAMAGED += [b'{"x": 1, "0": 1, "63": 2}', b'{"0": 1' + b"0" * 400 + b', "63": 1}', b"[" * 4000]
DAMAGED += [b'{"0": 1, "63": 2}' + b" " * 5000]


@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_file_of_costs_is_measured_again(costs_of, tmp_path, damaged):
    costs_of()
    (path,) = tmp_path.iterdir()
    kept = json.loads(path.read_text())
    assert set(map(int, kept)) == set(SIZES)
    path.write_bytes(damaged)
    assert costs_of() > 0
    assert costs_of() == 0


def test_a_cache_that_others_can_write_is_not_believed(costs_of, tmp_path):
    folder = tmp_path / "costs"
    costs_of(folder=folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert costs_of(folder=folder) == 0
    folder.chmod(0o770)
    assert costs_of(folder=folder) > 0


def test_costs_that_cannot_be_kept_are_used(tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "_models", {})
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    model = StepCosts(tiny_model("llama"), Runner(100), "tree", no_folder).now()
    assert model.seconds(0) > 0
