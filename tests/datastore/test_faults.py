"""Faults and kills while datastores are written and read."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import writer
from datastores import names
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


WITHOUT_DESCRIPTORS = """
import resource, sys
from specds import build_from_token_ids
build_from_token_ids([[1, 2]], sys.argv[1] + "/warm", vocab_size=9)  # imports what it needs
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(open("/dev/null"))
except OSError:
    del held[len(held) - int(sys.argv[2]):]
try:
    build_from_token_ids([[1, 2, 3]] * 300, sys.argv[1] + "/new", vocab_size=9)
except OSError as error:
    sys.exit(f"raised {error.errno}")
"""


def test_build_without_descriptors_leaves_nothing(tmp_path):
    ended = []
    for number in range(16):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = [sys.executable, "-c", WITHOUT_DESCRIPTORS, str(folder), str(number)]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        failed = "raised 24" in run.stderr
        assert failed or run.returncode == 0, run.stderr
        ended.append(run.returncode)
        assert names(folder) == ["new"] * (not failed) + ["warm"]
    assert 1 in ended, "control: some builds lack descriptors"
    assert 0 in ended, "control: some have enough"
