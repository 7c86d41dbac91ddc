"""What goes wrong while datastores are written and read, and that nothing is lost by it."""

import random
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import writer
from datastores import files
from reliability import faults
from specds import Datastore
from specds.build import DatastoreBuilder, compact

JOBS = ["build", "add", "merge", "compact", "refresh"]


def start(job, folder):
    return subprocess.Popen([sys.executable, writer.__file__, job, str(folder)])


@pytest.mark.parametrize("job", JOBS)
def test_a_job_killed_at_random_moments_and_done_again_equals_an_undisturbed_one(tmp_path, job):
    before, undisturbed, killed = (tmp_path / name for name in ("before", "whole", "killed"))
    before.mkdir()
    writer.prepare(job, before)
    shutil.copytree(before, undisturbed)
    started = time.perf_counter()
    assert start(job, undisturbed).wait() == 0
    elapsed = time.perf_counter() - started
    expected = files(undisturbed)
    shutil.copytree(before, killed)
    moments = random.Random(job)
    num_killed = 0
    for _ in range(10):
        process, started = start(job, killed), time.perf_counter()
        try:
            process.wait(moments.uniform(0.3, 1.0) * elapsed)
        except subprocess.TimeoutExpired:
            process.kill()
        else:  # other work had made the first one slow
            elapsed = min(elapsed, time.perf_counter() - started)
        num_killed += process.wait() != 0
        if (killed / "out").exists():
            Datastore.open(killed / "out")
    assert start(job, killed).wait() == 0
    assert files(killed) == expected
    assert {path.name for path in killed.iterdir()} == {path.name for path in undisturbed.iterdir()}
    Datastore.open(killed / "out").verify()
    assert num_killed > 0


def test_a_full_disk_is_an_error_and_the_build_goes_on_once_there_is_room(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "specds-test", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        random_tokens = np.random.default_rng(1).integers(0, 100, 250_000)
        lengths = np.full(1000, 250)
        options = {"vocab_size": 100, "separator": 100, "max_shard_tokens": 50_000, "plan": "it"}
        with (
            pytest.raises(OSError, match="No space left"),
            DatastoreBuilder(disk / "out", **options) as builder,
        ):
            builder.add_documents(random_tokens, lengths)
            builder.finish()
        assert not (disk / "out").exists()
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        with DatastoreBuilder(disk / "out", **options) as builder:
            num_given = builder.num_given
            assert num_given > 0
            builder.add_documents(random_tokens[num_given * 250 :], lengths[num_given:])
            builder.finish().verify()
        with DatastoreBuilder(tmp_path / "other", **options) as builder:
            builder.add_documents(random_tokens, lengths)
            builder.finish()
        assert files(disk / "out") == files(tmp_path / "other")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_readers_that_open_during_a_compaction_find_the_old_or_the_new(tmp_path):
    writer.prepare("compact", tmp_path)
    path = tmp_path / "out"
    first = Datastore.open(path)
    context = writer.documents()[0][:2]
    expected = first.lookup(context).count
    stop = threading.Event()

    def read():
        opened = set()
        while not stop.is_set():
            store = Datastore.open(path)
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


@pytest.mark.slow
@pytest.mark.parametrize("job", [*JOBS, "save"])
def test_a_call_that_fails_or_a_kill_at_it_leaves_the_old_or_the_new(job):
    for fault in faults.FAULTS:
        swept = faults.sweep(job, fault, step=97)
        assert swept["tried"] > 2
        assert not swept["problems"], fault
