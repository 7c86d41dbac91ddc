"""Building datastores of corpora: skipped documents, limits, resuming, appending."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from datastores import files
from specds import BuildOptions, Datastore, build_datastore
from specds.corpora import Corpus, CorpusError, Document, Skipped, open_corpus
from specds.indexing import local

TEXTS = [f"def f{index % 40}(x):\n    return x + {index % 40}\n" for index in range(50)]


@dataclass(frozen=True)
class Texts:
    """A part of a corpus in memory; it fails after this many items, and notes that it was read."""

    texts: tuple[str, ...]
    fails_after: int | None = None
    log: str = os.devnull
    name: str = ""

    @property
    def num_bytes(self):
        return sum(map(len, self.texts))

    @property
    def state(self):
        return str(self.texts)

    def __iter__(self):
        with Path(self.log).open("a") as log:
            log.write(self.name)
        for index, text in enumerate(self.texts):
            if index == self.fails_after:
                raise RuntimeError("the power is gone")
            yield Document(f"document {index}", text, len(text)) if text else Skipped("", "empty")


def corpus(texts=TEXTS):
    return Corpus("texts", (Texts(tuple(texts)),))


def test_report_counts_documents_read_indexed_and_left_out(tmp_path, demo_tokenizer):
    seen = []
    progress = lambda *told, **counts: seen.append((*told, counts))  # noqa: E731
    made = corpus([*TEXTS, "", ""])
    report = build_datastore(made, demo_tokenizer, tmp_path / "d", progress=progress)
    store = Datastore(tmp_path / "d")
    assert (report.num_documents, report.num_duplicates) == (40, 10)
    assert report.skipped == {"empty": 2}
    assert report.num_added_documents == report.num_documents == store.num_documents
    assert report.num_added_tokens == report.num_tokens == store.num_tokens
    assert report.num_bytes == sum(map(len, files(tmp_path / "d").values())) == store.num_bytes
    assert report.text_bytes == made.num_bytes
    assert report.share_read == 1
    assert store.corpus == ["texts"]
    assert {stage for stage, *_ in seen} == {"tokenize", "sort", "write", "sync"}
    done = [(done, total) for stage, done, total, _ in seen if stage == "tokenize"]
    assert done[-2:] == [(made.num_bytes, made.num_bytes), (1, 1)]
    assert seen[0][3] == {"documents": 40, "tokens": report.num_tokens}
    as_json = json.loads(json.dumps(report.to_dict()))
    assert as_json["skipped"] == {"empty": 2}
    assert as_json["tokens_per_s"] > 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interrupt_keeps_the_tokens_of_a_single_shard(tmp_path, demo_tokenizer, monkeypatch, error):
    given, encode = [], local.encode_batch
    monkeypatch.setattr(local, "_BATCH_BYTES", 100)
    noted = lambda tokenizer, texts: given.append(len(texts)) or encode(tokenizer, texts)  # noqa: E731
    monkeypatch.setattr(local, "encode_batch", noted)

    def stop(stage, done, total, documents=0, **_):
        if documents >= 20:
            raise error

    with pytest.raises(error):
        build_datastore(corpus(), demo_tokenizer, tmp_path / "d", progress=stop)
    is_kept = error is KeyboardInterrupt
    assert (tmp_path / ".d.build").exists() == is_kept
    given.clear()
    report = build_datastore(corpus(), demo_tokenizer, tmp_path / "d")
    assert (report.num_resumed >= 20) == is_kept
    assert sum(given) == len(TEXTS) - report.num_resumed
    build_datastore(corpus(), demo_tokenizer, tmp_path / "other")
    assert files(tmp_path / "d") == files(tmp_path / "other")


@pytest.mark.parametrize("cut", [0, 7])
def test_resumed_build_skips_parts_that_were_read(tmp_path, demo_tokenizer, monkeypatch, cut):
    monkeypatch.setattr(local, "_BATCH_BYTES", 100)
    log = tmp_path / "log"
    texts = [("", *TEXTS[i : i + 8]) for i in range(0, 40, 8)]

    def logged(fails_in):
        ends = [3 if name == fails_in else None for name in "abcde"]
        made = zip("abcde", texts, ends, strict=True)
        return Corpus("logged", tuple(Texts(text, end, str(log), name) for name, text, end in made))

    options = BuildOptions(max_shard_tokens=60)
    with pytest.raises(RuntimeError, match="the power is gone"):
        build_datastore(logged("d"), demo_tokenizer, tmp_path / "d", options)
    assert log.read_text() == "abcd"
    notes = tmp_path / ".d.build" / "parts.jsonl"
    notes.write_text(notes.read_text()[: len(notes.read_text()) - cut])
    log.write_text("")
    assert not (tmp_path / "d").exists()
    report = build_datastore(logged(None), demo_tokenizer, tmp_path / "d", options)
    assert report.num_resumed > 0
    assert log.read_text() in ("bcde", "cde", "de")
    other = build_datastore(logged(None), demo_tokenizer, tmp_path / "other", options)
    assert files(tmp_path / "d") == files(tmp_path / "other")
    assert (report.text_bytes, report.skipped) == (other.text_bytes, other.skipped)
    assert report.skipped == {"empty": 5}


def test_build_of_another_corpus_does_not_resume_a_failed_one(tmp_path, demo_tokenizer):
    options = BuildOptions(max_shard_tokens=60)
    broken = Corpus("broken", (Texts(tuple(TEXTS)), Texts(("x",), 0)))
    with pytest.raises(RuntimeError):
        build_datastore(broken, demo_tokenizer, tmp_path / "d", options)
    report = build_datastore(corpus(), demo_tokenizer, tmp_path / "d", options)
    assert report.num_resumed == 0


def of_files(folder):
    """A corpus of every kind of local part, each of one file."""
    parts = []
    for name in ("a.txt", "b.jsonl", "c"):
        path = folder / name
        if name == "c":
            path.mkdir()
            path /= "d.py"
        path.write_text(json.dumps({"text": name}))
        parts.extend(open_corpus(str(folder / name)).parts)
    return Corpus("files", (*parts, Texts(tuple(TEXTS), 30)))


@pytest.mark.parametrize("changed", ["a.txt", "b.jsonl", "c/d.py"])
def test_stopped_build_rejects_a_corpus_that_has_changed(
    tmp_path, demo_tokenizer, monkeypatch, changed
):
    monkeypatch.setattr(local, "_BATCH_BYTES", 100)
    options = BuildOptions(max_shard_tokens=60)
    made = of_files(tmp_path)
    for _ in range(2):  # the same corpus resumes
        with pytest.raises(RuntimeError, match="the power is gone"):
            build_datastore(made, demo_tokenizer, tmp_path / "d", options)
    path = tmp_path / changed
    kept, times = path.read_text(), path.stat()
    path.write_text(kept.replace("text", "xext"))
    with pytest.raises(CorpusError, match=r"has changed since .* or remove .*\.d\.build to begin"):
        build_datastore(made, demo_tokenizer, tmp_path / "d", options)
    path.write_text(kept)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(RuntimeError, match="the power is gone"):
        build_datastore(made, demo_tokenizer, tmp_path / "d", options)


PEAK = """
import sys, threading
import numpy as np
from specds._core import DatastoreBuilder

def private_bytes():
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10

vocab_size, max_memory = int(sys.argv[2]), int(sys.argv[3])
tokens = np.random.default_rng(0).integers(0, 1000, 4_000_000, dtype=np.uint32)
peak = before = private_bytes()
done = threading.Event()

def watch():
    global peak
    while not done.wait(0.001):
        peak = max(peak, private_bytes())

watcher = threading.Thread(target=watch)
watcher.start()
with DatastoreBuilder(
    sys.argv[1], vocab_size=vocab_size, separator=0, max_memory=max_memory
) as builder:
    for document in tokens.reshape(1000, 4000):
        builder.add_documents(document, [4000])
    datastore = builder.finish()
done.set()
watcher.join()
print(peak - before, datastore.num_shards)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="private memory is read from /proc")
@pytest.mark.parametrize("vocab_size", [60_000, 70_000])
def test_sorting_stays_within_its_memory(tmp_path, vocab_size):
    max_memory = 8 << 20
    arguments = [str(tmp_path / "d"), str(vocab_size), str(max_memory)]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True, check=True
    )
    peak, num_shards = map(int, done.stdout.split())
    assert num_shards > 2
    # Writing takes buffers and tables in addition to sorting.
    assert peak < max_memory + (3 << 20)


@pytest.mark.parametrize("same", [True, False])
def test_repeat_of_build_killed_after_publishing_reports_and_cleans_up(
    tmp_path, demo_tokenizer, same
):
    out, staging = tmp_path / "d", tmp_path / ".d.build"
    built = build_datastore(corpus(), demo_tokenizer, out)
    before = files(out)
    staging.mkdir()
    (staging / "specds.lock").write_text("")
    if not same:
        other = Corpus("others", corpus().parts)
        with pytest.raises(FileExistsError):
            build_datastore(other, demo_tokenizer, out)
        return
    report = build_datastore(corpus(), demo_tokenizer, out)
    assert report.num_tokens == built.num_tokens
    assert report.num_resumed == built.num_documents
    assert not staging.exists()
    assert files(out) == before
