"""Who is forgotten in one process, or in the file, is forgotten by all that share it."""

import random
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from datastores import texts, until
from specds._core import EngineDrafter
from specds.cli import app
from specds.drafters import FusedDrafter, Memory

EVERY = 0.02
SECRET = [901, 902, 903, 904, 905, 906, 907, 908]


def forget_in(path, *tenants):
    """By the command line."""
    result = CliRunner().invoke(app, ["memory", "forget", str(path), *tenants])
    assert result.exit_code == 0, result.output


def is_in_file(path, tokens=SECRET):
    return np.array(tokens, "<u2").tobytes() in path.read_bytes()


def drafter():
    return FusedDrafter(memory=Memory(1000))


def writes(one, tenant, tokens):
    session = one.session(tokens[:2], tenant=tenant)
    session.observe(tokens[2:])
    session.finish()


def both_of(path):
    """Two that share a file, each with the secret."""
    one, two = drafter(), drafter()
    writes(one, "ann", SECRET)
    for each in (one, two, one):
        each.save(path)
    for each in (one, two):
        assert len(each.session(SECRET[:3], tenant="ann").draft(8)) >= 3, "the control"
    return one, two


def test_a_copy_of_the_file_that_is_put_back_loses_whom_a_process_has_heard_of(path):
    one, two = both_of(path)
    writes(two, "bob", [21, 22])
    two.save(path)
    copy = path.read_bytes()
    forget_in(path, "ann")
    one.save(path)
    path.write_bytes(copy)
    two.save(path)
    assert is_in_file(path), "nobody there has heard of it"
    for each in (one, two):
        each.save(path)
        assert not is_in_file(path)
        assert (texts(each.memory, "ann"), texts(each.memory, "bob")) == ([], [[21, 22]])


def test_a_save_that_fails_forgets_at_the_next(path, tmp_path):
    one, _ = both_of(path)
    one.memory.forget("ann")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        one.memory.save(tmp_path / "folder")
    one.save(path)
    assert not is_in_file(path)
    late = Memory.open(path, 1000)
    late.insert("ann", SECRET)
    late.save(path, merge=True)
    one.memory.save(path, merge=True)
    assert texts(one.memory, "ann") == [SECRET], "she came after it"


def test_an_engine_forgets_whom_its_operator_has_forgotten_in_the_file(path):
    config = {"memory_scope": "tenant", "snapshot": str(path), "sync_interval": EVERY}
    engine = EngineDrafter(**config, vocab_size=1000)

    def asks(text, name):
        engine.sync([text], names=[name], request_options=[{"tenant": "ann"}])
        _, numbers, _ = engine.draft_chains(5)
        engine.end([name])
        return numbers[0]

    asks(SECRET, "first")
    until(lambda: is_in_file(path))
    assert asks(SECRET[:3], "second") > 0
    forget_in(path, "ann")
    # Its last write may have been under way.
    until(lambda: asks(SECRET[:3], "third") == 0)
    assert not is_in_file(path)
    asks([21, 22, 23, 24], "fourth")
    until(lambda: is_in_file(path, [21, 22, 23, 24]))
    assert not is_in_file(path)


def test_no_name_is_forgotten_for_another(path):
    """These two had the same mark once, which everybody can compute."""
    one, two = drafter(), drafter()
    writes(one, "user121", SECRET)
    for each in (two, one):
        each.save(path)
    two.memory.forget("\nf5iɈHD")
    two.save(path)
    assert is_in_file(path)


WORKER = """
import os, sys, time
from specds.drafters import Memory
parent = os.getppid()
path, seed = sys.argv[1], int(sys.argv[2])
memory = Memory(1000)
memory.share(path, every=0.002)
number = 0
while os.getppid() == parent:  # a test that is killed leaves none behind
    number += 1
    for tenant in range(4):
        memory.insert(f"tenant {tenant}", [seed, tenant + 500, number % 1000, *range(40)])
    if number % 50 == 0:
        memory.forget(f"tenant {number // 50 % 3}")
    if number == 100:
        print("runs", flush=True)
    time.sleep(0.0005)
"""


def test_processes_that_are_killed_at_any_moment_bring_nobody_back(path):
    """Those that live on remember tenants 0 to 3, and forget 0 to 2 now and then."""
    moments, num_kept = random.Random(1), 100
    Memory(1000).save(path)
    for round_number in range(4):
        commands = [[sys.executable, "-c", WORKER, str(path), str(seed)] for seed in range(3)]
        workers = [subprocess.Popen(one, stdout=subprocess.PIPE) for one in commands]
        for worker in workers:
            worker.stdout.readline()
        writes_on = Memory(1000)
        writes_on.share(path, every=0.002)
        writes_on.insert("victim", SECRET)
        until(lambda: is_in_file(path))
        # All have it by then.
        time.sleep(0.05)
        forget_in(path, "victim")
        for worker in workers:
            time.sleep(moments.uniform(0, 0.03))
            worker.kill()
            worker.wait()
            worker.stdout.close()
        until(lambda writes_on=writes_on: texts(writes_on, "victim") == [])
        del writes_on
        assert not is_in_file(path), round_number
        kept = Memory.open(path, 1000)
        assert texts(kept, "victim") == []
        assert len(texts(kept, "tenant 3")) >= num_kept, "nobody else is gone"
        num_kept = len(texts(kept, "tenant 3"))
        kept.save(path, merge=True)
        assert not path.with_name(".memory.new").exists(), "what a killed one was writing"
