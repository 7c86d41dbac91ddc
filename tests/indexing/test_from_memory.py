"""A memory's texts become documents of a datastore: what goes, what stays, and what is refused."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from datastores import build, files, segments, stored, texts, write_store
from specds import Datastore, FormatError
from specds.drafters import FusedDrafter, Memory
from specds.indexing import add_from_memory


def remember(path, tokenizer="", **texts):
    memory = Memory(100, tokenizer=tokenizer)
    for tenant, given in texts.items():
        for text in given:
            memory.insert(tenant, text)
    memory.save(path)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "memory"


@pytest.fixture
def store(tmp_path):
    """The folder of a datastore of one document."""
    return build(tmp_path / "d", [[1]], vocab_size=100, separator=99).path


def test_texts_of_a_tenant_move_from_the_memory_to_the_datastore(tmp_path, log):
    build(tmp_path / "d", [[1, 2, 3, 4]], vocab_size=100, separator=99)
    before = Datastore(tmp_path / "d")
    of_bob = [[11, 12], [3, 4, 99, 1, 2], [3, 4, 99, 50]]
    remember(log, ann=[[5, 6, 7, 99], [8, 9, 99, 10], [2, 3]], bob=of_bob)
    report = add_from_memory(tmp_path / "d", log, "ann")
    assert (report.num_texts, report.num_added_documents) == (3, 4)
    now = Datastore(tmp_path / "d")
    for document in ([5, 6, 7], [8, 9], [10]):
        assert now.count(document) == 1
        assert before.count(document) == 0
    assert (now.num_documents, now.num_tokens) == (5, report.num_tokens)
    assert texts(Memory.open(log, 100), "ann") == []
    # Texts of the datastore leave the memory of all tenants.
    assert texts(Memory.open(log, 100), "bob") == [of_bob[0], of_bob[2]]
    again = add_from_memory(tmp_path / "d", log, "ann")
    assert (again.num_texts, again.num_added_documents, again.num_tokens) == (0, 0, now.num_tokens)


def test_repeated_call_after_kill_adds_nothing_twice(store, log):
    remember(log, ann=[[1]])
    report = add_from_memory(store, log, "ann")
    assert (report.num_texts, report.num_added_documents, report.num_shards) == (1, 0, 1)
    assert texts(Memory.open(log, 100), "ann") == []


def test_concurrent_writes_of_a_server_are_kept(store, log):
    remember(log, ann=[[5, 6]])
    other = Memory(100)
    other.insert("ann", [7, 8])
    add_from_memory(store, log, "ann", progress=lambda *_: other.save(log))
    assert texts(Memory.open(log, 100), "ann") == [[7, 8]]


def test_failure_before_publish_keeps_the_memory(store, log):
    remember(log, ann=[[5, 6]])
    kept, before = stored(log), files(store)

    def fail(*_):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        add_from_memory(store, log, "ann", progress=fail)
    assert (stored(log), files(store)) == (kept, before)
    assert {*log.parent.iterdir()} == {Path(store), log}


def test_tenant_deleted_meanwhile_is_not_added(store, log):
    remember(log, ann=[[5, 6]], bob=[[7, 8]])
    before = files(store)
    with pytest.raises(ValueError, match="was deleted meanwhile"):
        add_from_memory(store, log, "ann", progress=lambda *_: Memory.forget_in(log, ["ann"]))
    assert files(store) == before
    assert texts(Memory.open(log, 100), "bob") == [[7, 8]]
    assert {*log.parent.iterdir()} == {Path(store), log}


def test_a_killed_call_leaves_nothing_of_a_deleted_tenant(store, log):
    remember(log, ann=[[5, 6]])
    child = os.fork()
    if child == 0:
        add_from_memory(store, log, "ann", progress=lambda *_: os._exit(0))
    os.waitpid(child, 0)
    assert len([*log.parent.iterdir()]) == 4, "what it was building, and a note of that"
    assert Memory.forget_in(log, ["ann"]) == [1]
    assert {*log.parent.iterdir()} == {Path(store), log}


def test_mismatched_input_is_rejected_without_changes(tmp_path, store, log):
    with pytest.raises(FileNotFoundError):
        add_from_memory(store, log)
    remember(log, tokenizer="words", ann=[[5, 6]])
    before = files(store)
    [segment] = segments(log)
    kept = segment.read_bytes()
    with pytest.raises(ValueError, match="of another tokenizer: `words`, not ``"):
        add_from_memory(store, log, "ann")
    with pytest.raises(ValueError, match=r"no datastore at .* yet: name its tokenizer"):
        add_from_memory(tmp_path / "none", log, "ann")
    newer = bytearray(kept)
    newer[8] = 99
    for content, message in ((kept[:-1], "bytes where"), (bytes(newer), "format version 99")):
        write_store(log, content, vocab_size=Datastore(store).vocab_size)
        with pytest.raises(FormatError, match=message):
            add_from_memory(store, log, "ann")
        assert segments(log)[0].read_bytes() == content
    assert files(store) == before


def test_command_makes_a_datastore_of_the_memory_of_a_server(run, tmp_path, log, demo_tokenizer):
    path = tmp_path / "log.specds"
    drafter = FusedDrafter.resume(log, tokenizer=demo_tokenizer)
    ids = np.array(demo_tokenizer("def add(a, b):\n    return a + b\n")["input_ids"])
    session = drafter.session(ids[:5], "ann")
    session.observe(ids[5:])
    session.finish()
    drafter.save(log)
    arguments = ("add", path, "--from-memory", log, "--tenant", "ann", "--json")
    code, out, _ = run(*arguments, "--tokenizer", "demo")
    assert (code, json.loads(out)["num_texts"], json.loads(out)["num_left"]) == (0, 1, 0)
    store = Datastore(path)
    assert store.tokenizer_name == "demo"
    assert store.count(ids) == 1
    code, out, _ = run("add", path, "--from-memory", log)
    assert code == 0
    assert "left" in out
