"""Faults and kills while datastores are written and read."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import writer
from reliability import faults
from specds import Datastore
from specds.indexing import compact


def test_reader_during_a_compaction_opens_the_old_or_new_datastore(tmp_path):
    writer.prepare("compact", tmp_path)
    path = tmp_path / "out"
    first = Datastore(path)
    context = writer.documents()[0][:2]
    expected = first.lookup(context).count
    stop = threading.Event()

    def read():
        opened = set()
        while not stop.is_set():
            store = Datastore(path)
            opened.add(store.num_shards)
            assert store.lookup(context).count == expected
        return opened

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        for limit in (5000, 2000, 1_000_000):
            compact(path, max_shard_tokens=limit)
        stop.set()
        assert len(reader.result()) > 1
    assert first.lookup(context).count == expected
    first.verify()


@pytest.mark.parametrize("job", [*faults.JOBS, "refresh"])
@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=[pytest.mark.slow] * (fault != "kill")) for fault in faults.FAULTS],
)
def test_fault_at_any_system_call_leaves_the_old_or_new_datastore(job, fault):
    """The repeated job ends as an undisturbed one."""
    swept = faults.sweep(job, fault, step=97)
    assert swept["tried"] > 2
    assert swept["problems"] == []
