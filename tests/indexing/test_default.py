"""The default datastore: built once in the background, from texts that no user wrote."""

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from specds import FusedDrafter, Memory, default_datastore
from specds.corpora import Corpus, Document, machine
from specds.corpora.machine import TextFiles, machine_corpus
from specds.generation.default_source import with_datastore, with_default
from specds.indexing import default
from specds.indexing.local import open_builder
from specds.indexing.options import BuildOptions
from specds.models.load import load_model
from specds.models.tokenization import FastTokenizer, vocab_size


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the cache folder; the default datastore is on, its corpus two texts of a file."""
    monkeypatch.setenv("SPECDS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SPECDS_DEFAULT_DATASTORE", "1")
    text = tmp_path / "code.py"
    text.write_text("def add(a, b):\n    return a + b\n")
    corpus = Corpus("machine", (TextFiles((str(text),), 30), TextFiles((str(text),), 30)))
    monkeypatch.setattr(machine, "machine_corpus", lambda: corpus)
    monkeypatch.setattr(default, "_is_noted", False)
    return tmp_path / "cache" / "datastores"


class Started(list):
    """The paths of started builds, and the exit status of each: None while it runs."""

    ended = None


@pytest.fixture
def started(monkeypatch):
    """Return the paths that builds were started for; the test runs them."""
    paths = Started()

    def start(command, *, env, start_new_session, **_):
        assert command[:3] == [sys.executable, "-m", "specds.indexing.default"]
        assert start_new_session
        assert env["SPECDS_DEFAULT_DATASTORE"] == "0"
        paths.append(Path(command[3]))
        return SimpleNamespace(poll=lambda: paths.ended)

    monkeypatch.setattr(default.subprocess, "Popen", start)
    return paths


def test_process_that_was_killed_is_started_again(cache, started, demo_tokenizer):
    default_datastore(demo_tokenizer)
    started.ended = -9
    default_datastore(demo_tokenizer)
    assert len(started) == 2


def test_next_call_after_the_build_returns_the_datastore(cache, started, demo_tokenizer, caplog):
    with caplog.at_level(logging.WARNING, "specds"):
        assert default_datastore(demo_tokenizer) is None
        assert default_datastore(demo_tokenizer) is None
    [said] = caplog.messages
    assert "SPECDS_DEFAULT_DATASTORE=0 turns this off" in said
    default.build(started[0])
    found = default_datastore(demo_tokenizer)
    assert (found.num_documents, found.vocab_size) == (1, vocab_size(demo_tokenizer))
    assert len(started) == 1  # the second call found it running
    assert sorted(path.suffix for path in cache.iterdir()) == [".specds"]


@pytest.mark.parametrize("off", [{"SPECDS_DEFAULT_DATASTORE": "0"}, {"CI": "1"}, {}])
def test_build_is_off_by_the_switch_in_tests_and_where_ci_is_set(
    cache, started, demo_tokenizer, monkeypatch, off
):
    monkeypatch.delenv("SPECDS_DEFAULT_DATASTORE")
    if off == {"CI": "1"}:
        monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    for name, value in off.items():
        monkeypatch.setenv(name, value)
    assert default_datastore(demo_tokenizer) is None
    assert not started
    assert not cache.exists()


def test_killed_build_continues_and_a_second_process_leaves_it(
    cache, started, demo_tokenizer, monkeypatch
):
    default_datastore(demo_tokenizer)
    [out] = started
    corpus = machine.machine_corpus()
    tokenizer = demo_tokenizer
    with open_builder(corpus, tokenizer, out, BuildOptions()):  # another process builds it
        default.build(out)
    assert not out.exists()
    assert not out.with_suffix(".failed").exists()

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(TextFiles, "__iter__", killed)
        with pytest.raises(Killed):
            default.build(out)
    assert default_datastore(demo_tokenizer) is None
    default.build(out)
    assert default_datastore(demo_tokenizer).num_documents == 1


def test_failed_build_is_not_repeated_at_once(cache, started, demo_tokenizer, monkeypatch):
    default_datastore(demo_tokenizer)

    def fails(*_):
        raise OSError("disk")

    monkeypatch.setattr(TextFiles, "__iter__", fails)
    with pytest.raises(OSError, match="disk"):
        default.build(started[0])
    started.ended = 1
    assert default_datastore(demo_tokenizer) is None
    assert len(started) == 1


def test_untrusted_folder_and_damaged_datastore_are_not_used(cache, started, demo_tokenizer):
    default_datastore(demo_tokenizer)
    default.build(started[0])
    (started[0] / "manifest.json").write_text("{")
    assert default_datastore(demo_tokenizer) is None
    cache.chmod(0o777)
    assert default_datastore(demo_tokenizer) is None
    assert len(started) == 1


def test_requests_take_it_when_it_is_built(cache, started, demo_tokenizer):
    model, _ = load_model("demo", device="cpu")
    drafter = FusedDrafter(memory=Memory(vocab_size(demo_tokenizer)))
    assert with_default(drafter, model, demo_tokenizer) is drafter
    source = default.DefaultDatastore(model, demo_tokenizer)
    assert source.get() is None
    source._thread.join()
    default.build(started[0])
    source._next_look = 0.0
    source.get()
    source._thread.join()
    found = with_datastore(drafter, source.get())
    assert found.datastore.num_documents == 1
    assert found.memory is drafter.memory
    given = FusedDrafter(found.datastore)
    assert with_default(given, model, demo_tokenizer) is given


class NamedModel:
    """A model that has a name alone."""

    def __init__(self, path):
        self.name_or_path = str(path)

    def found(self, tokenizer=None):
        source = default.DefaultDatastore(self, tokenizer)
        source.get()
        source._thread.join()
        return source.get()


def test_tokenizer_of_a_known_file_is_not_read_again(
    cache, started, demo_tokenizer, tmp_path, monkeypatch
):
    demo = Path(__file__).parents[2] / "packages/demo/specds_demo/main"
    for name in ("tokenizer_config.json", "tokenizer.json"):
        copied = tmp_path / name
        copied.write_bytes((demo / name).read_bytes())
    read, known = [], cache / "tokenizers.json"

    def local_tokenizer(name):
        read.append(name)
        return FastTokenizer.read(tmp_path)

    monkeypatch.setattr(default, "local_tokenizer", local_tokenizer)
    assert NamedModel(tmp_path).found() is None
    assert not known.exists()
    default.build(started[0])
    found = [NamedModel(name).found() for name in (tmp_path, tmp_path, copied)]
    assert [each.num_documents for each in found] == [1, 1, 1]
    assert len(read) == 2  # before the build, and once after it
    with monkeypatch.context() as patch:
        patch.setattr(default, "default_datastore", lambda _: None)
        # A tokenizer of transformers may have other tokens than its file.
        assert NamedModel("").found(FastTokenizer.read(tmp_path)).num_documents == 1
        assert NamedModel(tmp_path).found(demo_tokenizer) is None
    # A file that changed, a damaged note, and a note of another tokenizer are not used.
    copied.write_bytes(copied.read_bytes() + b"\n")
    assert NamedModel(tmp_path).found().num_documents == 1
    assert len(read) == 3
    [of_path] = json.loads(known.read_text()).values()
    for damaged in ("[", "[]", "{}", json.dumps({str(copied): [*of_path[:2], of_path[2][::-1]]})):
        known.write_text(damaged)
        read.clear()
        assert NamedModel(tmp_path).found().num_documents == 1
        assert len(read) == 1


def test_corpus_leaves_out_what_a_user_may_have_written(tmp_path, monkeypatch):
    for name, url in (("theirs", None), ("own", {"url": "file:///home/me/own"})):
        about = tmp_path / f"{name}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        (about / "RECORD").write_text(f"{name}.py,,\n{name}.so,,\n")
        (tmp_path / f"{name}.py").write_text(f"{name} = 1\n")
        (tmp_path / f"{name}.so").write_bytes(b"\0")
        if url:
            (about / "direct_url.json").write_text(json.dumps(url))
    (tmp_path / "loose.py").write_text("loose = 1\n")
    monkeypatch.setattr(machine, "_DOCUMENTATION", ())
    monkeypatch.setattr(machine, "stdlib_parts", lambda _: iter(()))
    monkeypatch.setattr(machine.sysconfig, "get_path", lambda _: str(tmp_path))
    items = list(machine_corpus())
    assert [item.text for item in items if isinstance(item, Document)] == ["theirs = 1\n"]
    monkeypatch.setattr(machine, "_MOST_PACKAGES", 3)
    assert list(machine_corpus()) == []
