"""Snapshots of a memory: round trips, damage and forgery."""

import os
import resource
import struct
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from datastores import files, segments, stored, texts, write_store
from specds import FormatError
from specds.drafters import Memory

LEAST_BYTES = 1 << 14
GOLDEN = Path(__file__).parent.parent / "data" / "memory-8.bin"
FACTS = {"vocab_size": 100, "tokenizer": "naïve"}
NAMES = ["ann", "bob", "", "ünï"]


def memory_of(max_bytes=1 << 20, **changes):
    return Memory(**{**FACTS, **changes}, max_bytes=max_bytes)


def opened(path, max_bytes=1 << 20, **changes):
    return Memory.open(path, **{**FACTS, **changes}, max_bytes=max_bytes)


def text(seed, length):
    """Return a text that differs from those of other seeds."""
    return np.random.default_rng(seed).integers(0, 100, length).tolist()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path, memory = tmp_path_factory.mktemp("snapshot") / "memory", memory_of()
    for tenant, tokens in (("ann", [1, 2, 3]), ("bob", [4]), ("ann", [5, 6])):
        memory.insert(tenant, tokens)
    for name in ("cat", "dog"):
        memory.forget(name)
    memory.save(path)
    [segment] = segments(path)
    return segment.read_bytes()


def sealed(content):
    """Return the content with a valid length and checksum."""
    head = content[:16] + struct.pack("<Q", len(content))
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(content[32:] + head)) + content[32:]


def reason(path, content):
    write_store(path, content, **FACTS)
    with pytest.raises(FormatError) as refusal:
        opened(path)
    return str(refusal.value)


INSERTS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 2**32), st.integers(0, 150)), max_size=60
)


@settings(max_examples=40)
@given(INSERTS, st.sampled_from([100, 65_536, 65_537, 1 << 20]))
def test_saved_memory_equals_the_opened_one(tmp_path_factory, inserts, vocab_size):
    folder = tmp_path_factory.mktemp("saved")
    memory = memory_of(LEAST_BYTES, vocab_size=vocab_size)
    for tenant, seed, length in inserts:
        memory.insert(tenant, [token + vocab_size - 100 for token in text(seed, length)])
    memory.save(folder / "memory")
    # The default size leaves room for tables that grew in other steps.
    again = opened(folder / "memory", vocab_size=vocab_size)
    for tenant in NAMES:
        assert texts(again, tenant) == texts(memory, tenant)
    assert (again.num_tokens, again.num_tenants) == (memory.num_tokens, memory.num_tenants)
    again.save(folder / "again")
    [first], [second] = segments(folder / "memory"), segments(folder / "again")
    assert first.read_bytes() == second.read_bytes()


# Offset of the tombstones after the tokenizer: the pruned version, their number, the pairs.
TOMBSTONES = 32 + 8 + len(FACTS["tokenizer"].encode())


def test_golden_snapshot_opens_and_is_rewritten_byte_for_byte(small, path):
    golden = GOLDEN.read_bytes()
    write_store(path, golden, **FACTS)
    memory = opened(path)
    assert (texts(memory, "ann"), texts(memory, "bob")) == ([[1, 2, 3], [5, 6]], [[4]])
    memory.save(path.with_name("again"))
    assert segments(path.with_name("again"))[0].read_bytes() == golden
    # Origins are random, and versions and times depend on the clock.
    for place in (TOMBSTONES + 30, TOMBSTONES + 54):
        small = small[:place] + golden[place : place + 10] + small[place + 10 :]
    for place in (173, 203, 274):
        small = small[:place] + golden[place : place + 4] + small[place + 4 :]
    assert sealed(small) == golden
    late = memory_of()
    for name in ("ann", "cat"):
        late.insert(name, [7])
    late.save(path)
    assert (texts(late, "cat"), texts(late, "ann")) == ([], [[7], [1, 2, 3], [5, 6]])


UNFIT = "its parts do not fit together"


def test_snapshot_cut_or_changed_at_any_byte_is_rejected(path, small):
    for length in range(len(small)):
        reason(path, small[:length])
        if length >= 32:
            assert UNFIT in reason(path, sealed(small[:length]))
        for change in (1, 0x80, 0xFF):
            reason(path, small[:length] + bytes([small[length] ^ change]) + small[length + 1 :])
    assert "where" in reason(path, small + b"\0")
    assert UNFIT in reason(path, sealed(small + b"\0"))
    write_store(path, small, **FACTS)
    opened(path)


def test_forged_snapshot_is_rejected(path, small):
    token, name = small.index(bytes([5, 0, 6, 0])), small.index(b"bob")
    length = name + 3 + 48
    assert sealed(small) == small, "control"
    for place, lie, said in (
        (token, b"\x64", "it holds tokens outside its vocabulary"),
        (name, b"ann", "its tenants are not in the order of their names"),
        (name, b"\xff", UNFIT),
        (name + 3 + 7, b"\x40", UNFIT),
        *((length, lie, UNFIT) for lie in (b"\0", b"\2", b"\xc8", b"\xff" * 8)),
        (32, b"\xff" * 8, UNFIT),
        (TOMBSTONES, small[TOMBSTONES + 32 : TOMBSTONES + 40], UNFIT),
        *((TOMBSTONES + 8, lie, UNFIT) for lie in (b"\0", b"\1", b"\3", b"\xff" * 8)),
        *((TOMBSTONES + place, b"\xff" * 16, UNFIT) for place in (16, 32, 56)),
        *((TOMBSTONES + place, b"\0" * 8, UNFIT) for place in (32, 56)),
        *((TOMBSTONES + place + 7, b"\x40", UNFIT) for place in (0, 32, 56)),
        (8, b"\x05", "it has format version 5, this version of specds reads 8"),
    ):
        assert said in reason(path, sealed(small[:place] + lie + small[place + len(lie) :]))
    assert "not those of a snapshot" in reason(
        path, b"a text file, longer than the header of any snapshot"
    )


def test_accepted_tokens_of_texts_are_kept_and_forged_ones_rejected(path, small):
    place = small.index(b"bob") + 3 + 16

    def with_uses(number, hashed=(4,)):
        uses = struct.pack("<QQf", 1, xxhash.xxh3_64_intdigest(struct.pack("<I", *hashed)), number)
        return sealed(small[:place] + uses + small[place + 8 :])

    write_store(path, with_uses(2.5), **FACTS)
    opened(path).save(path.with_name("again"))
    assert segments(path.with_name("again"))[0].read_bytes() == with_uses(2.5)
    write_store(path, with_uses(2.5, [5]), **FACTS)
    opened(path).save(path.with_name("other"))
    assert segments(path.with_name("other"))[0].read_bytes() == small, "of no text"
    for number in (-1.0, 2e9, float("inf"), float("nan")):
        assert UNFIT in reason(path, with_uses(number))


def test_snapshot_of_another_tokenizer_is_rejected_with_the_remedy(path, small):
    with pytest.raises(FileNotFoundError):
        opened(path)
    write_store(path, small, **FACTS)
    with pytest.raises(ValueError, match="of another tokenizer: its vocabulary has 100 tokens"):
        opened(path, vocab_size=101)
    with pytest.raises(ValueError, match="of another tokenizer: `naïve`, not `bytes`"):
        opened(path, tokenizer="bytes")
    assert "copy it again or begin with an empty one" in reason(path, small[:-1])


def test_smaller_memory_opens_the_latest_texts(path):
    large = memory_of()
    for seed in range(200):
        large.insert("ann", text(seed, 100))
    large.save(path)
    memory = opened(path, 1 << 16)
    assert memory.num_bytes <= 1 << 16
    kept = texts(memory, "ann")
    assert 15 <= len(kept) < 50
    assert kept == [text(seed, 100) for seed in range(200 - len(kept), 200)]
    memory.insert("ann", text(0, 50))
    assert texts(memory, "ann")[-2:] == [text(199, 100), text(0, 50)], "the newest is last"


def test_evicted_texts_are_not_in_a_new_store(tmp_path):
    memory = memory_of(LEAST_BYTES)

    def holds(tokens):
        path = tmp_path / str(len([*tmp_path.iterdir()]))
        memory.save(path)
        return np.array(tokens, "<u2").tobytes() in stored(path)

    memory.insert("bob", text(2, 50))
    for seed in range(3, 50):
        memory.insert("ann", text(seed, 100))
    assert not holds(text(3, 100))
    assert holds(text(49, 100))
    assert holds(text(2, 50)), "below his share"


def test_failed_save_changes_no_file(path, tmp_path):
    memory = memory_of()
    memory.insert("ann", [1])
    path.touch()
    for wrong, error in (("..", ValueError), (tmp_path / "no" / "m", OSError), (path, FormatError)):
        with pytest.raises(error):
            memory.save(wrong)
    assert [*tmp_path.rglob("*")] == [path]
    assert path.read_bytes() == b""


def test_save_over_an_unreadable_segment_changes_nothing(path, small):
    """There may be tombstones in it."""
    ours = memory_of()
    for content in (b"somebody's", small[:-1], small[:8] + b"\x05" + small[9:]):
        write_store(path, content, **FACTS)
        before = files(path)
        with pytest.raises(FormatError, match="cannot be opened as a memory"):
            ours.save(path)
        assert files(path) == before
    write_store(path, small, **FACTS)
    ours.insert("cat", [1])
    with no_descriptor(), pytest.raises(OSError, match="Too many open files"):
        ours.save(path)
    assert segments(path)[0].read_bytes() == small
    ours.save(path)
    assert texts(opened(path), "cat") == [], "its tombstone was read"
    assert texts(opened(path), "bob") == [[4]]


@contextmanager
def no_descriptor():
    """This process can open nothing."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)
