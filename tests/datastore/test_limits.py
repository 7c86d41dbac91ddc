"""Limits of a request cache by tenant and by age, in a process and in a store."""

import time

import pytest

from datastores import texts
from specds._core import EngineDrafter
from specds.drafters import Memory

LEAST_BYTES = 1 << 14


def text(number, length=20):
    return [number, *range(100, 100 + length)]


def test_oldest_texts_of_a_tenant_make_room_within_its_limit():
    limited, free = Memory(1000, max_tenant_bytes=2 * LEAST_BYTES), Memory(1000)
    for memory in (limited, free):
        for number in range(100):
            memory.insert("ann", text(number))
            if number < 3:
                memory.insert("bob", text(number))
    assert len(texts(free, "ann")) == 100, "control"
    kept = texts(limited, "ann")
    assert 5 < len(kept) < 90
    assert kept == [text(number) for number in range(100 - len(kept), 100)]
    assert len(texts(limited, "bob")) == 3
    assert limited.num_bytes < 3 * LEAST_BYTES + 4096
    limited.insert("bob", list(range(1000)) * 10)
    assert 0 < len(texts(limited, "bob")[-1]) < 1000, "the end of a text that is longer"


def test_tenant_limit_holds_in_joined_segments(tmp_path):
    for number in range(12):
        memory = Memory(1000, max_tenant_bytes=LEAST_BYTES)
        memory.save(tmp_path / "m")
        for tenant in ("ann", "bob"):
            memory.insert(tenant, text(number, 300 if tenant == "ann" else 5))
        memory.save(tmp_path / "m")
    everything = Memory.open(tmp_path / "m", 1000)
    assert 0 < len(texts(everything, "ann")) < 12
    assert text(11, 300) in texts(everything, "ann")
    assert len(texts(everything, "bob")) > len(texts(everything, "ann"))


@pytest.mark.parametrize("place", ["m", "m/{tenant}"])
def test_old_texts_leave_the_process_and_the_store(tmp_path, place):
    path, old, new = tmp_path / place, text(1), text(2)
    limited, free = Memory(1000, max_age=1.0), Memory(1000)
    limited.insert("ann", old)
    for memory in (limited, free):
        memory.insert("bob", old)
        memory.save(path)
    time.sleep(2.1)
    assert texts(limited, "ann") == [old], "until the next exchange"
    limited.insert("ann", new)
    limited.save(path)
    assert [texts(limited, name) for name in ("ann", "bob")] == [[new], []]
    everything = Memory.open(path, 1000)
    assert [texts(everything, name) for name in ("ann", "bob")] == [[new], []]
    assert texts(free, "bob") == [old], "control: it has no limit"
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    limited.save(path)
    assert before == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}


def test_ages_survive_a_restart(tmp_path):
    memory = Memory(1000)
    memory.insert("ann", text(1))
    memory.save(tmp_path / "m")
    time.sleep(2.1)
    for max_age, kept in ((1000.0, [text(1)]), (1.0, [])):
        again = Memory(1000, max_age=max_age)
        again.save(tmp_path / "m")
        assert texts(again, "ann") == texts(Memory.open(tmp_path / "m", 1000), "ann") == kept


@pytest.mark.parametrize("age", [0.0, -1.0, float("nan"), float("inf"), 1e12])
def test_limits_out_of_range_are_errors(age):
    with pytest.raises(ValueError, match="max_age"):
        Memory(1000, max_age=age)
    shared = {"memory_scope": "shared", "vocab_size": 1000}
    with pytest.raises(ValueError, match="memory_max_age"):
        EngineDrafter(memory_max_age=age, **shared)
    with pytest.raises(ValueError, match="max_tenant_bytes"):
        Memory(1000, max_tenant_bytes=1)
    with pytest.raises(ValueError, match="tenant_bytes"):
        EngineDrafter(memory_tenant_bytes=1, **shared)
    EngineDrafter(memory_max_age=3600.0, memory_tenant_bytes=1 << 20, **shared)
