"""Builds on a real Ray cluster of two workers on this machine, against local builds."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from specds import BuildOptions, build_datastore
from specds.corpora import Corpus, CorpusError, Document, Skipped

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")
pytest.importorskip("ray.data")

pytestmark = [
    # Ray leaves sockets and files of its own to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

# The prior is fitted and compared, to few tokens: how well it fits is told elsewhere.
SMALL = {"max_shard_tokens": 60_000, "prior_tokens": 4000}


class Characters:
    """A tokenizer of ASCII, one token a character; nothing to import for a worker."""

    is_fast = False
    name_or_path = "characters"
    eos_token_id = None

    def get_vocab(self):
        return {chr(index): index for index in range(128)}

    def encode(self, text, add_special_tokens):
        return list(text.encode())


@dataclass(frozen=True)
class Made:
    """A part that makes its documents up; some come again in other parts."""

    seed: int
    num_documents: int = 150

    @property
    def num_bytes(self):
        return None

    def __iter__(self):
        rng = random.Random(self.seed)
        for index in range(self.num_documents):
            name = f"{self.seed}:{index}"
            if rng.random() < 0.05:
                yield Skipped(name, rng.choice(["empty", "bad row"]), 7)
            elif rng.random() < 0.1:
                yield Document(name, f"again {rng.randrange(20)}", 10)
            else:
                text = "".join(rng.choices("abcd \0", k=rng.randrange(1, 1500)))
                yield Document(name, text, len(text))


@dataclass(frozen=True)
class Broken:
    """A part that cannot be read to its end."""

    error: type[Exception]
    arguments: tuple
    num_bytes = None

    def __iter__(self):
        yield Document("whole", "whole", 5)
        raise self.error(*self.arguments)


class UnpicklableError(OSError):
    """As those of some clients of the web: it cannot be made again of its message alone."""

    def __init__(self, status, url):
        super().__init__(f"{status} at {url}")


@dataclass(frozen=True)
class Held:
    """A part in whose middle a worker is held."""

    part: Made
    folder: Path
    num_bytes = None

    def __iter__(self):
        items = list(self.part)
        yield from items[:50]
        hold(self.folder)
        yield from items[50:]


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Workers have no tests to import.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    cluster = cluster_utils.Cluster()
    # The driver's node does no work, so that every other one can be killed, which is seen at once.
    cluster.add_node(
        num_cpus=0,
        object_store_memory=100 << 20,
        include_dashboard=False,
        _system_config={"health_check_period_ms": 200, "health_check_failure_threshold": 5},
    )
    for _ in range(2):
        add_worker(cluster)
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def add_worker(cluster):
    return cluster.add_node(num_cpus=1, object_store_memory=100 << 20, memory=1 << 30)


def made(*parts):
    return Corpus("made", parts or tuple(Made(seed) for seed in range(5)), None)


def build(path, corpus, engine="ray", progress=None, **options):
    options = BuildOptions(engine=engine, **SMALL, **options)
    return build_datastore(corpus, Characters(), path, options, progress=progress)


def read_all(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_same(ours, local):
    assert read_all(ours) == read_all(local)
    assert not ours.with_name(f".{ours.name}.build").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
def test_cluster_out_of_reach_is_an_error_of_one_line(tmp_path, monkeypatch, address):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(
        ConnectionError, match=f"cannot reach a Ray cluster at {address}: ."
    ) as raised:
        build(tmp_path / "d", made(), ray_address=address)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


COUNTS = (
    *("num_documents", "num_tokens", "num_shards", "num_bytes"),
    *("num_added_documents", "num_added_tokens", "num_duplicates"),
)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drop_duplicates": False},
        {"max_documents": 200},
        {"max_tokens": 150_000},
    ],
    ids=str,
)
def test_build_on_a_cluster_is_the_local_one(cluster, tmp_path, options):
    local = build(tmp_path / "local", made(), "local", **options)
    told = []
    ours = build(
        tmp_path / "ray", made(), progress=lambda *event, **_: told.append(event), **options
    )
    assert ray.data.DataContext.get_current().enable_progress_bars
    assert_same(tmp_path / "ray", tmp_path / "local")
    assert [getattr(ours, name) for name in COUNTS] == [getattr(local, name) for name in COUNTS]
    assert ours.num_shards > 2
    assert list((tmp_path / "ray").glob("prior-*.bin")), "the prior was compared as well"
    if "max_documents" not in options and "max_tokens" not in options:
        assert (ours.skipped, ours.text_bytes) == (local.skipped, local.text_bytes)
    assert ("tokenise", 1, 1) in told
    assert ("sort", ours.num_tokens, ours.num_tokens) in told


def test_documents_that_are_there_are_not_added_again(cluster, tmp_path):
    for engine in ("local", "ray"):
        build(tmp_path / engine, made(Made(1), Made(2)), "local")
        build(tmp_path / engine, made(Made(2), Made(3)), engine, append=True)
    assert_same(tmp_path / "ray", tmp_path / "local")


def test_build_with_the_fast_tokenizer(cluster, tmp_path, demo_tokenizer):
    for engine in ("local", "ray"):
        options = BuildOptions(engine=engine, **SMALL)
        build_datastore(made(), demo_tokenizer, tmp_path / engine, options)
    assert_same(tmp_path / "ray", tmp_path / "local")


@pytest.mark.parametrize(
    ("error", "arguments", "expected", "message"),
    [
        (CorpusError, ("a.jsonl:7: no text",), CorpusError, "a.jsonl:7: no text"),
        (FileNotFoundError, (2, "no such file"), FileNotFoundError, "no such file"),
        (ImportError, ("zstd is not installed",), ImportError, "zstd is not installed"),
        (UnpicklableError, (404, "a.org"), CorpusError, "UnpicklableError: 404 at a.org"),
    ],
)
def test_error_of_a_part_is_raised_as_it_was(
    cluster, tmp_path, error, arguments, expected, message
):
    with pytest.raises(expected, match=message) as raised:
        build(tmp_path / "d", made(Made(0), Broken(error, arguments), Made(1)))
    assert type(raised.value) is expected
    assert not list(tmp_path.iterdir())


def test_error_behind_a_limit_is_not_met(cluster, tmp_path):
    build(tmp_path / "local", made(Made(0)), "local", max_documents=9)
    build(tmp_path / "ray", made(Made(0), Broken(CorpusError, ("damaged",))), max_documents=9)
    assert_same(tmp_path / "ray", tmp_path / "local")


def test_empty_corpus_and_too_little_memory_are_refused(cluster, tmp_path):
    with pytest.raises(ValueError, match="the corpus is empty"):
        build(tmp_path / "d", Corpus("none", (), None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specds.build.ray._SORTING_BYTES_PER_TOKEN", 1 << 40)
        with pytest.raises(ValueError, match="no worker has more than 1073741824: set --max-mem"):
            build(tmp_path / "d", made(), max_memory=1 << 60)
    # Those that are left would end the process once it leaves the cluster.
    assert not [thread for thread in threading.enumerate() if thread.name == "iter_threaded"]


def test_build_goes_on_after_the_driver_was_killed(cluster, tmp_path):
    local = build(tmp_path / "local", made(), "local")
    program = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); import ray, test_ray;"
        "from pathlib import Path;"
        "ray.cloudpickle.register_pickle_by_value(test_ray);"
        "kill = lambda stage, *_, **__: stage == 'sort' and os.kill(os.getpid(), signal.SIGKILL);"
        "test_ray.build(Path(sys.argv[2]), test_ray.made(), progress=kill, ray_address=sys.argv[3])"
    )
    arguments = [str(Path(__file__).parent), str(tmp_path / "ray"), cluster.address]
    killed = subprocess.run([sys.executable, "-c", program, *arguments], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "ray").exists()
    report = build(tmp_path / "ray", made())
    assert report.num_taken_up > 0
    assert report.num_added_documents == local.num_documents
    assert (report.text_bytes, report.skipped) == (local.text_bytes, local.skipped)
    assert_same(tmp_path / "ray", tmp_path / "local")


@pytest.fixture
def killer(cluster, tmp_path):
    """Kills the worker that is held at its work, then lets all go on; tells whom it killed."""
    killed = []

    def kill():
        at = tmp_path / "at"
        try:
            while not at.exists() or not at.read_text():
                time.sleep(0.05)
            (victim,) = (node for node in cluster.worker_nodes if node.node_id == at.read_text())
            cluster.remove_node(victim, allow_graceful=False)
            killed.append(victim)
        finally:
            (tmp_path / "go on").touch()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    yield killed
    thread.join(timeout=10)
    add_worker(cluster)


def test_worker_killed_while_it_reads(killer, tmp_path):
    build(tmp_path / "local", made(), "local")
    held = Held(Made(2), tmp_path)
    build(tmp_path / "ray", made(Made(0), Made(1), held, Made(3), Made(4)))
    assert killer
    assert_same(tmp_path / "ray", tmp_path / "local")


def test_worker_killed_while_it_builds_a_shard(killer, tmp_path, monkeypatch):
    build(tmp_path / "local", made(), "local")
    monkeypatch.setattr("specds.build.ray._build", held_build)
    build(tmp_path / "ray", made())
    assert killer
    assert_same(tmp_path / "ray", tmp_path / "local")


def held_build(staging_folder, *arguments):
    from specds.build.ray import _build

    hold(staging_folder.parent)
    return _build(staging_folder, *arguments)


def hold(folder):
    (folder / "at").write_text(ray.get_runtime_context().get_node_id())
    while not (folder / "go on").exists():
        time.sleep(0.05)
