"""Datastores that a test writes down, files that others write, and shared request caches."""

import json
import shutil
import time
from contextlib import suppress

import xxhash

from specds._core import EngineDrafter
from specds.indexing import DatastoreBuilder

EVERY = 0.02
"""Seconds between two exchanges of a request cache."""


def build(path, documents, *, vocab_size=4, separator=4, **options):
    with DatastoreBuilder(
        path, vocab_size=vocab_size, separator=separator, overwrite=True, **options
    ) as builder:
        flat = [token for document in documents for token in document]
        builder.add_documents(flat, [len(document) for document in documents])
        return builder.finish()


def files(folder):
    """All files below a folder, by their path from there."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def stored(path):
    """Return the content of all files in the folder of a request cache."""
    files = []
    for file in sorted(path.iterdir()) if path.exists() else []:
        with suppress(FileNotFoundError):  # another process has replaced it
            files.append(file.read_bytes())
    return b"".join(files)


def write_store(path, segment, *, vocab_size, tokenizer=""):
    """Write the folder of a request cache that has one segment, which may be damaged."""
    name = f"{xxhash.xxh3_128_hexdigest(segment)}-{0:016x}"
    listed = [{"name": name, "num_bytes": len(segment), "oldest": 0, "parts": []}]
    head = {"format": "specds memory", "format_version": 1, "vocab_size": vocab_size}
    head |= {"tokenizer": tokenizer, "written_at": 0, "tombstones": name, "segments": listed}
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    (path / name).write_bytes(segment)
    write_head(path / "head-000000000000", head)


def write_head(path, head):
    """Write a head, with a valid checksum."""

    def text(checksum):
        sealed = {**head, "checksum": checksum}
        return (json.dumps(sealed, indent=2, ensure_ascii=False) + "\n").encode()

    path.write_bytes(text(xxhash.xxh3_128_hexdigest(text(""))))


def segments(path):
    """Return the segments of a request cache, which are snapshots."""
    return [file for file in sorted(path.iterdir()) if not file.name.startswith("head-")]


def last_head(path):
    return max(path.glob("head-*"))


def until(holds):
    """Wait at most a minute until a condition holds, on which other threads work."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def texts(memory, tenant=""):
    return [text.tolist() for text in memory.texts(tenant)]


def engine(store, **config):
    """An engine's drafter that shares its request cache through a folder or a URL."""
    config = {"snapshot": str(store), "memory_scope": "shared", "sync_interval": EVERY, **config}
    return EngineDrafter(**config, vocab_size=1000)


def num_drafted(drafter, text, name):
    """Return how many tokens are drafted after a text of Ann, whose request then ends."""
    drafter.sync([text], names=[name], request_options=[{"tenant": "ann"}])
    _, numbers, _ = drafter.draft_chains(5)
    drafter.end([name])
    return numbers[0]
