"""A memory shared by processes through a folder: exchanges, deletions and kills."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from stat import S_IMODE

import numpy as np
import pytest
from typer.testing import CliRunner

from datastores import (
    EVERY,
    build,
    engine,
    last_head,
    names,
    num_drafted,
    segments,
    stored,
    texts,
    until,
    write_head,
)
from specds import Datastore, FormatError
from specds.cli import app
from specds.drafters import FusedDrafter, Memory
from specds.indexing import add_from_memory

SECRET = [901, 902, 903, 904, 905, 906, 907, 908]


def forget_in(path, *tenants):
    """Delete tenants by the command line."""
    result = CliRunner().invoke(app, ["memory", "forget", str(path), *tenants])
    assert result.exit_code == 0, result.output


def is_in_file(path, tokens=SECRET):
    return np.array(tokens, "<u2").tobytes() in stored(path)


def both_of(path):
    """Two drafters that share a file and have Ann's secret."""
    one, two = (FusedDrafter(memory=Memory(1000)) for _ in range(2))
    one.memory.insert("ann", SECRET)
    for each in (one, two, one):
        each.save(path)
    for each in (one, two):
        assert len(each.session(SECRET[:3], tenant="ann").draft(8)) >= 3, "control"
    return one, two


def test_restoring_an_old_folder_does_not_restore_deleted_tenants(path):
    one, two = both_of(path)
    two.memory.insert("bob", [21, 22])
    two.save(path)
    shutil.copytree(path, path.with_name("copy"))
    forget_in(path, "ann")
    one.save(path)
    shutil.rmtree(path)
    path.with_name("copy").rename(path)
    two.save(path)
    assert is_in_file(path), "two has not read the tombstone"
    for each in (one, two):
        each.save(path)
        assert not is_in_file(path)
        assert (texts(each.memory, "ann"), texts(each.memory, "bob")) == ([], [[21, 22]])


def test_deletion_is_published_by_the_first_save_that_succeeds(path, tmp_path):
    one, _ = both_of(path)
    one.memory.forget("ann")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="a folder with other files"):
        one.memory.save(tmp_path)
    one.save(path)
    assert not is_in_file(path)
    late = Memory.open(path, 1000)
    late.insert("ann", SECRET)
    late.save(path)
    one.memory.save(path)
    assert texts(one.memory, "ann") == [SECRET], "added after the deletion"


def test_deletion_of_an_unknown_name_fails_and_reaches_unwritten_texts(path):
    one, two = both_of(path)
    two.memory.insert("bob", [21, 22])
    result = CliRunner().invoke(app, ["memory", "forget", str(path), "ann", "bob", "ann "])
    assert result.exit_code == 1
    assert f"{path} has nothing of 'bob', 'ann '" in str(result.exception) + result.output
    assert not is_in_file(path), "those that are there are deleted"
    two.save(path)
    assert texts(two.memory, "bob") == []
    one.save(path)


def test_shared_folder_is_resolved_once(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(path.name)
    memory = Memory(1000)
    memory.insert("ann", SECRET)
    memory.share("link", every=EVERY)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    forget_in(path, "ann")
    until(lambda: texts(memory, "ann") == [])
    assert link.is_symlink()
    assert not any((tmp_path / "elsewhere").iterdir())


NOBODY, GROUP = 65534, 65533
AS_NOBODY = """
import os, sys
from specds.drafters import Memory
os.setgid(65534)
os.setuid(65534)
Memory.forget_in(sys.argv[1], ["ann"])
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_folder_keeps_its_owner_and_group_or_does_not_change():
    with tempfile.TemporaryDirectory() as folder:  # which others can enter
        Path(folder).chmod(0o777)
        path = Path(folder, "memory")
        both_of(path)
        os.chown(path, NOBODY, GROUP)
        path.chmod(0o750)
        forget_in(path, "ann")
        for file, mode in ((path, 0o750), (last_head(path), 0o640), (segments(path)[-1], 0o640)):
            found = file.stat()
            assert (found.st_uid, found.st_gid, S_IMODE(found.st_mode)) == (NOBODY, GROUP, mode)
        os.chown(path, 0, NOBODY)
        path.chmod(0o770)
        for file in path.iterdir():
            file.chmod(0o644)
        before = stored(path)
        command = [sys.executable, "-c", AS_NOBODY, str(path)]
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "PermissionError" in refused.stderr, refused.stderr
        assert "it belongs to user 0 and group 65534: run this as that user" in refused.stderr
        assert stored(path) == before
        assert [*Path(folder).iterdir()] == [path]


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755, 0o777])
def test_folder_keeps_its_permissions(path, mode):
    both_of(path)
    path.chmod(mode)
    forget_in(path, "ann")
    assert S_IMODE(path.stat().st_mode) == mode
    assert S_IMODE(last_head(path).stat().st_mode) == mode & 0o666
    assert not is_in_file(path)


def test_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="no request cache"):
        Memory.open(tmp_path, 1000)
    for call in (Memory(1000).save, Memory(1000).share):
        with pytest.raises(OSError, match="it is a folder with other files"):
            call(tmp_path)
    assert names(tmp_path) == ["file"]


def test_forked_processes_give_their_segments_other_names(path, tmp_path):
    memory = Memory(1000)
    memory.insert("ann", SECRET)
    memory.save(path)  # draws the seed, which both children have
    written = []
    for name in ("one", "two"):
        if (child := os.fork()) == 0:
            memory.save(tmp_path / name)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        written += segments(tmp_path / name)
    one, two = (segment.name.split("-") for segment in written)
    assert one[1] != two[1]


def test_names_with_one_weak_hash_have_different_tombstones(path):
    memory, other = Memory(1000), Memory(1000)
    memory.insert("user121", SECRET)
    memory.save(path)
    other.forget("\nf5iɈHD")
    other.save(path)
    assert is_in_file(path)


def test_engines_share_texts_and_deletions_by_their_configuration(path):
    first, second = engine(path, memory_scope="tenant"), engine(path, memory_scope="tenant")

    num_drafted(first, SECRET, "a")
    until(lambda: num_drafted(second, SECRET[:3], "b") > 0)
    forget_in(path, "ann")
    # A write of the old state may have been in progress.
    for drafter in (first, second):
        until(lambda drafter=drafter: num_drafted(drafter, SECRET[:3], "c") == 0)
    assert not is_in_file(path)
    num_drafted(first, [21, 22, 23, 24], "d")
    until(lambda: is_in_file(path, [21, 22, 23, 24]))
    assert not is_in_file(path)
    assert first.warnings == second.warnings == []


def test_idle_engine_writes_its_texts_at_once(path):
    """An engine that is killed a moment after SIGTERM has no time to write them then."""
    idle = engine(path, sync_interval=3600)
    for number, name in enumerate("ab"):
        idle.sync([[*SECRET, number]], [name])
        until(lambda number=number: is_in_file(path, [*SECRET, number]))
        written = path.stat().st_mtime_ns
        time.sleep(0.5)
        assert path.stat().st_mtime_ns == written, "it does not write again and again"
    assert texts(Memory.open(path, 1000)) == [[*SECRET, 0], [*SECRET, 1]]


def test_working_engine_does_not_write_before_its_interval(path):
    working = engine(path, sync_interval=3600)
    text = list(SECRET)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        text.append(7)
        working.sync([text], ["a"])
        time.sleep(0.001)
    assert not is_in_file(path)


def test_engine_continues_with_the_datastore_that_replaced_its_own(path):
    store = path.with_name("d")
    build(store, [[50, 51]], vocab_size=1000, separator=999)
    served = engine(path, datastore=str(store))
    served.sync([[1, 2, 3, 4, 5, 6, 7, 8]], ["a"])
    served.end_all()
    until(lambda: texts(Memory.open(path, 1000)) != [])
    report = add_from_memory(store, path, "")
    assert (report.num_added_documents, report.num_left) == (1, 0)
    assert Datastore(store).count([1, 2, 3, 4, 5, 6, 7, 8]) == 1
    until(lambda: texts(Memory.open(path, 1000)) == [])
    del served
    assert texts(Memory.open(path, 1000)) == [], "a text of the datastore does not return"


def test_unusable_folder_is_rejected_and_does_not_change(path):
    def rejected(error, match, *writes):
        kept = stored(path)
        for write in writes:
            with pytest.raises(error, match=match):
                write()
            assert stored(path) == kept

    memory = Memory(1000, tokenizer="words")
    memory.insert("ann", [1])
    memory.save(path)
    other = Memory(1000)
    writes = (lambda: other.share(path), lambda: other.save(path), lambda: engine(path))
    rejected(ValueError, "of another tokenizer: `words`, not ``", *writes)
    rejected(ValueError, "its vocabulary has 1000", lambda: Memory(7).save(path))
    words = Memory(1000, tokenizer="words")
    writes = (lambda: words.share(path), lambda: words.save(path), lambda: engine(path))
    [segment], head = segments(path), last_head(path)
    content, listed = segment.read_bytes(), head.read_bytes()
    segment.write_bytes(content[:-1])
    rejected(FormatError, "has changed since it was written", *writes[:2])
    segment.unlink()
    rejected(FormatError, "is missing", *writes[:2])
    segment.write_bytes(content)
    for lie in (listed[:-1], listed.replace(b"words", b"verbs"), b"not a head", b""):
        head.write_bytes(lie)
        rejected(FormatError, "its head", *writes)
    head.write_bytes(listed)
    writes[1]()
    assert texts(words, "ann") == [[1]]


def test_names_in_a_forged_head_lead_to_no_other_file(path):
    memory = Memory(1000)
    memory.insert("ann", [1])
    memory.save(path)
    head = last_head(path)
    name = segments(path)[0].name
    forged = json.loads(head.read_text())
    for lie in ("../other", "/etc/passwd", name[:-1], name + "0"):
        write_head(head, json.loads(json.dumps(forged).replace(name, lie)))
        with pytest.raises(FormatError, match="the names of its segments do not fit"):
            Memory.open(path, 1000)


def test_folder_damaged_while_shared_is_reported_and_does_not_change(path):
    memory = Memory(1000)
    memory.share(path, every=EVERY)
    memory.insert("ann", [1])
    until(lambda: path.exists() and texts(Memory.open(path, 1000), "ann") == [[1]])

    def fails_on_damage():
        # A last write of the memory may replace the head, so it is damaged again.
        last_head(path).write_bytes(b"damaged")
        return memory.failure is not None

    until(fails_on_damage)
    assert "memory" in memory.failure
    assert last_head(path).read_bytes() == b"damaged"
    shutil.rmtree(path)
    until(lambda: memory.failure is None)
    assert texts(Memory.open(path, 1000), "ann") == [[1]], "nothing was lost"


def test_many_exchanges_leave_few_files(path):
    memory, reader = Memory(1000), Memory(1000)
    for number in range(100):
        memory.insert(f"tenant {number % 5}", [number, *range(50)])
        memory.save(path)
        if number % 3 == 0:
            reader.save(path)
    assert len(segments(path)) <= 10
    assert len(names(path)) <= 10 + 18
    reader.save(path)
    for each in (reader, Memory.open(path, 1000)):
        assert (each.num_tenants, each.num_tokens) == (5, 100 * 51)


def test_folder_holds_little_more_than_the_texts_of_a_memory(path):
    small, rng = Memory(1000, max_bytes=1 << 18), np.random.default_rng(0)
    small.insert("bob", SECRET)
    for _ in range(300):
        small.insert("ann", rng.integers(0, 1000, 400))
        small.save(path)
    assert sum(file.stat().st_size for file in segments(path)) < 1 << 18
    assert texts(Memory.open(path, 1000), "bob") == [SECRET], "below his share"
    assert len(texts(Memory.open(path, 1000), "ann")) < 300


SAVER = """
import sys
from specds.drafters import Memory
memory = Memory(100_000)
for number in range(30):
    memory.insert(f"{sys.argv[2]}-{number % 3}", [number, *range(number, 100 + number)])
    memory.insert("both", [int(sys.argv[2]), number])
    memory.save(sys.argv[1])
"""


def test_concurrent_saves_lose_no_text(path):
    command = [sys.executable, "-c", SAVER, str(path)]
    processes = [subprocess.Popen([*command, str(number)]) for number in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    memory = Memory.open(path, 100_000)
    assert memory.num_tenants == 4 * 3 + 1
    assert memory.num_tokens == 4 * 30 * (101 + 2)
    assert names(path.parent) == ["memory"]


WORKER = """
import os, sys, time
from specds.drafters import Memory
parent = os.getppid()
path, seed = sys.argv[1], int(sys.argv[2])
memory = Memory(1000)
memory.share(path, every=0.002)
number = 0
while os.getppid() == parent:  # ends with the test, also if that is killed
    number += 1
    for tenant in range(4):
        memory.insert(f"tenant {tenant}", [seed, tenant + 500, number % 1000, *range(40)])
    if number % 50 == 0:
        memory.forget(f"tenant {number // 50 % 3}")
    if number == 100:
        print("runs", flush=True)
    time.sleep(0.0005)
"""


def test_kills_of_processes_do_not_restore_deleted_tenants(path):
    """Workers write tenants 0 to 3 and sometimes delete 0 to 2, until they are killed."""
    moments, num_kept = random.Random(1), 100
    Memory(1000).save(path)
    for round_number in range(4):
        commands = [[sys.executable, "-c", WORKER, str(path), str(seed)] for seed in range(3)]
        workers = [subprocess.Popen(one, stdout=subprocess.PIPE) for one in commands]
        for worker in workers:
            worker.stdout.readline()
        survivor = Memory(1000)
        survivor.share(path, every=0.002)
        survivor.insert("victim", SECRET)
        # A segment alone is not enough: a head must list it.
        until(lambda: texts(Memory.open(path, 1000), "victim") != [])
        time.sleep(0.05)  # all workers have read it by then
        forget_in(path, "victim")
        for worker in workers:
            time.sleep(moments.uniform(0, 0.03))
            worker.kill()
            worker.wait()
            worker.stdout.close()
        assert Memory.forget_in(path, ["victim"]) == [None], "it removes what a killed process left"
        until(lambda survivor=survivor: texts(survivor, "victim") == [])
        del survivor
        assert not is_in_file(path), round_number
        kept = Memory.open(path, 1000)
        assert texts(kept, "victim") == []
        assert len(texts(kept, "tenant 3")) >= num_kept, "other tenants are complete"
        num_kept = len(texts(kept, "tenant 3"))
        kept.save(path)
        assert names(path.parent) == ["memory"], "no partial file is left"


FORKS = """
import os, signal, sys, threading, time
from specds import Memory
shared, own = Memory(100), Memory(100)
for number in range(20_000):
    shared.insert(f"tenant {number}", [1, 2])
shared.share(sys.argv[1], every=0.001)
text = [1] * 100_000
insert = lambda: [own.insert("thread", text) for _ in iter(int, 1)]
threading.Thread(target=insert, daemon=True).start()
for number in range(20):
    time.sleep(number / 1000)
    if (child := os.fork()) == 0:
        signal.alarm(4)
        for memory in (shared, own):
            memory.insert("child", [1, 2, 3])
        del memory, shared
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, number
    shared.insert("parent", [number] * 50)
del shared
assert len(Memory.open(sys.argv[1], 100).texts("parent")) == 20
"""


def test_forked_process_uses_memories_of_other_threads(tmp_path):
    """The thread of `share` and one that inserts hold locks most of the time."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path / "m")]
    subprocess.run(command, check=True, timeout=60)
