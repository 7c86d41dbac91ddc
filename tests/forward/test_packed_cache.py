"""The cache of packed weights: what is reused, what is packed again, and what fills no disk."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gguf_models import write_model
from specds._core import ForwardCache, ForwardModel, GgufFile

UNLIMITED = 1 << 40


def write(path, seed=1, age_s=3600, **options):
    write_model(path, "llama", ("Q4_1", "Q8_0"), seed=seed, **options)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def load(path, folder, max_bytes=UNLIMITED, **options):
    return ForwardModel(GgufFile(path), cache=(folder, max_bytes), **options)


def logits(model):
    return model.forward(ForwardCache(model), [(0, [5, 6, 7], None, 3)])


def files(folder):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture
def cache(tmp_path):
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path):
    return write(tmp_path / "model.gguf")


@pytest.mark.parametrize("instructions", ["auto", "portable"])
def test_second_load_maps_what_the_first_one_has_packed(model, cache, instructions):
    expected = logits(ForwardModel(GgufFile(model), instructions=instructions))
    for _ in range(3):
        loaded = load(model, cache, instructions=instructions, num_threads=2)
        assert loaded.is_cached
        np.testing.assert_array_equal(logits(loaded), expected)
        (file,) = cache.iterdir()
        times = file.stat().st_ino, file.read_bytes()[:8]
    assert times == ((cache / file.name).stat().st_ino, b"SPCDSPKD")
    # The next load reads the file, not the source: a negative control.
    content = bytearray(file.read_bytes())
    content[4096 : 4096 + 1000] = bytes(1000)
    file.write_bytes(content)
    assert not np.array_equal(logits(load(model, cache, instructions=instructions)), expected)


def test_instructions_of_other_lanes_have_files_of_their_own(model, cache):
    names = [load(model, cache, instructions=of).instructions for of in ("auto", "portable")]
    assert len(files(cache)) == (2 if names[0] == "avx512" else 1)


def damages():
    def put(place, content):
        def damage(file):
            whole = bytearray(file.read_bytes())
            whole[place : place + len(content)] = content
            file.write_bytes(whole)

        return damage

    return {
        "truncated": lambda file: os.truncate(file, file.stat().st_size - 1),
        "longer": lambda file: file.write_bytes(file.read_bytes() + b"0"),
        "of its header alone": lambda file: os.truncate(file, 4096),
        "empty": lambda file: os.truncate(file, 0),
        "foreign": lambda file: file.write_bytes(b"x" * file.stat().st_size),
        "of another version": put(8, b"\2"),
        "of another start, damaged": lambda file: (put(56, b"?")(file), put(5000, b"??")(file)),
    }


@pytest.mark.parametrize("damage", damages())
def test_damaged_file_is_written_again(model, cache, damage):
    expected = logits(load(model, cache))
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    damages()[damage](file)
    loaded = load(model, cache)
    assert loaded.is_cached
    np.testing.assert_array_equal(logits(loaded), expected)
    assert file.read_bytes() == whole


def test_file_of_another_start_of_the_system_is_compared_and_kept(model, cache):
    load(model, cache)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:56] + b"?" + whole[57:])
    inode = file.stat().st_ino
    assert load(model, cache).is_cached
    assert (file.read_bytes(), file.stat().st_ino) == (whole, inode)


@pytest.mark.parametrize("change", ["time", "weights"])
def test_changed_source_is_packed_again(model, cache, change):
    load(model, cache)
    (file,) = cache.iterdir()
    inode = file.stat().st_ino
    if change == "weights":
        write(model, seed=2, age_s=1800)
    else:
        os.utime(model, (time.time() - 60,) * 2)
    loaded = load(model, cache)
    assert loaded.is_cached
    assert [path.stat().st_ino for path in cache.iterdir()] != [inode]
    np.testing.assert_array_equal(logits(loaded), logits(ForwardModel(GgufFile(model))))


def test_source_that_has_just_been_written_is_not_cached(tmp_path, cache):
    path = write(tmp_path / "new.gguf", age_s=0)
    assert not load(path, cache).is_cached
    assert files(cache) == []


def test_least_recently_used_files_are_removed_at_the_limit(tmp_path, cache):
    paths = [write(tmp_path / f"{name}.gguf", seed) for seed, name in enumerate("abc")]
    load(paths[0], cache)
    (first,) = cache.iterdir()
    size = first.stat().st_size
    load(paths[1], cache)
    (second,) = {*cache.iterdir()} - {first}
    for age, file in ((20, first), (10, second)):
        os.utime(file, (time.time() - age,) * 2)
    load(paths[0], cache)  # uses the older one
    assert load(paths[2], cache, 2 * size).is_cached
    assert first.exists()
    assert not second.exists()
    assert not load(paths[1], cache, size - 1).is_cached
    assert len(files(cache)) == 2


def test_folder_that_cannot_be_written_is_not_used(model, tmp_path):
    for folder in (tmp_path / "missing", model, Path("/proc")):
        loaded = load(model, folder)
        assert not loaded.is_cached
        np.testing.assert_array_equal(logits(loaded), logits(ForwardModel(GgufFile(model))))


LOAD = """
import sys
from specds._core import ForwardModel, GgufFile
path, folder = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
model = ForwardModel(GgufFile(path), cache=(folder, 1 << 40))
print(model.is_cached, flush=True)
"""


def start(path, folder):
    process = subprocess.Popen(
        [sys.executable, "-c", LOAD, str(path), str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()
    return process


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def large(tmp_path):
    return write(tmp_path / "large.gguf", hidden=1024, wide=8192)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")
def test_killed_load_leaves_nothing_to_the_next_one(large, cache):
    process = start(large, cache)
    until(lambda: any(name.endswith(".tmp") for name in files(cache)))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(files(cache)) == 1
    loaded = load(large, cache)
    assert loaded.is_cached
    assert [Path(name).suffix for name in files(cache)] == [".packed"]


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")
def test_process_waits_for_another_one_that_packs_the_same_file(large, cache):
    processes = [start(large, cache) for _ in range(3)]
    assert [process.communicate()[0] for process in processes] == ["True\n"] * 3
    assert [Path(name).suffix for name in files(cache)] == [".packed"]


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")
def test_stopped_load_removes_its_file(large, cache):
    def stop(_done, _total):
        raise KeyboardInterrupt

    try:
        load(large, cache, progress=stop)
    except KeyboardInterrupt:  # a fast machine may be done before the first report
        assert files(cache) == []
