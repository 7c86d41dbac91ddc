"""Calls in turns: their order, their results and their times."""

import re
from functools import partial

import pytest

from pages import ROOT
from specds.bench import turns


@pytest.fixture
def calls(monkeypatch):
    """Calls `a`, `b` and `c` of 1, 2 and 3 seconds, half of them CPU time, and their order."""
    order, now = [], [0.0]

    def call(name, seconds):
        order.append(name)
        now[0] += seconds
        return name.upper()

    monkeypatch.setattr(turns, "perf_counter", lambda: now[0])
    monkeypatch.setattr(turns, "process_time", lambda: now[0] / 2)
    return {name: partial(call, name, n) for n, name in enumerate("abc", 1)}, order, now


def test_each_turn_begins_with_another_call(calls):
    calls, order, _ = calls
    for turn in range(4):
        found = turns.in_turns(calls, turn)
        assert [each.result for each in found.values()] == ["A", "B", "C"]
        assert [each.seconds for each in found.values()] == [1, 2, 3]
        assert [each.cpu_seconds for each in found.values()] == [0.5, 1, 1.5]
    assert "".join(order) == "abcbcacababc"
    assert turns.in_turns({}, 1) == {}


def test_time_of_a_device_counts_for_the_call_that_started_it(calls):
    calls, _, now = calls
    pending = [5.0]  # of work before the turn

    def synchronize():
        now[0] += pending.pop() if pending else 0.0

    calls["a"] = lambda: pending.append(7.0)
    found = turns.in_turns(calls, 0, synchronize)
    assert [each.seconds for each in found.values()] == [7, 2, 3]


def test_medians_are_without_the_first_turn(calls):
    calls, order, now = calls
    seconds = [100, 4, 9, 5]
    calls = {"d": lambda: now.__setitem__(0, now[0] + seconds.pop(0))}
    assert turns.medians(calls, 3) == {"d": 5}
    seconds[:] = [100, 4, 9, 5]
    assert turns.medians(calls, 3, clock="cpu_seconds") == {"d": 2.5}
    assert not order


def test_benchmarks_replace_no_clock_of_the_package():
    files = [*(ROOT / "benches").rglob("*.py"), *(ROOT / "python").rglob("*.py")]
    assert len(files) > 100
    assert [of for of in files if re.search(r"^ *time\.\w+ = ", of.read_text(), re.M)] == []
