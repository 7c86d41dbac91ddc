"""Builds on a real Ray cluster of two workers on this machine: the documents of local builds."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from specds import BuildOptions, Datastore, build_datastore
from specds.corpora import Corpus, CorpusError, Document, Skipped, open_corpus
from specds.drafters import Memory
from specds.models.tokenization import fingerprint, vocab_size

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = [
    # Ray leaves sockets and files of its own to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SMALL = {"max_shard_tokens": 60_000}


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
class Seeded:
    """A part that makes its documents up; some come again in other parts."""

    seed: int
    num_documents: int = 150
    midway: Callable[[], None] = lambda: None
    num_bytes = 0

    @property
    def state(self):
        return str(self.seed)

    def __iter__(self):
        rng = random.Random(self.seed)
        for index in range(self.num_documents):
            name = f"{self.seed}:{index}"
            if index == 50:
                self.midway()
            if rng.random() < 0.05:
                yield Skipped(name, rng.choice(["empty", "bad row"]), 7)
            elif rng.random() < 0.1:
                yield Document(name, f"again {rng.randrange(20)}", 10)
            else:
                text = "".join(rng.choices("abcd \0", k=rng.randrange(1, 1500)))
                yield Document(name, text, len(text))


class UnpicklableError(OSError):
    """An error, like those of some web clients, that cannot be recreated from its message."""

    def __init__(self, status, url):
        super().__init__(f"{status} at {url}")


def fail(error, arguments):
    raise error(*arguments)


def hold(folder):
    """Hold a worker until the test continues, and report its process."""
    (folder / "at").write_text(ray.get_runtime_context().get_node_id())
    while not (folder / "go on").exists():
        time.sleep(0.05)


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
    return Corpus("made", parts or tuple(Seeded(seed) for seed in range(5)))


def build(path, corpus, engine="ray", progress=None, **options):
    options = BuildOptions(engine=engine, **SMALL, **options)
    return build_datastore(corpus, Characters(), path, options, progress=progress)


def documents(path):
    """Count the copies of each document in a datastore."""
    store = Datastore(path)
    store.verify()
    return Counter(document.token_ids.tobytes() for document in store)


def assert_same(ours, local):
    assert documents(ours) == documents(local)
    assert not list(ours.parent.glob(f".{ours.name}.build*"))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
def test_cluster_out_of_reach_is_an_error_of_one_line(tmp_path, monkeypatch, address):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    message = f"cannot reach a Ray cluster at {address}: ."
    with pytest.raises(ConnectionError, match=message) as raised:
        build(tmp_path / "d", made(), ray_address=address)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("drop_duplicates", [True, False])
@pytest.mark.parametrize("options", [{}, {"max_documents": 200}, {"max_tokens": 150_000}], ids=str)
def test_build_on_a_cluster_has_the_documents_of_the_local_one(
    cluster, tmp_path, options, drop_duplicates
):
    options = {"drop_duplicates": drop_duplicates, **options}
    local = build(tmp_path / "local", made(), "local", **options)
    told = []
    note = lambda *event, **_: told.append(event)  # noqa: E731
    ours = build(tmp_path / "ray", made(), progress=note, **options)
    assert_same(tmp_path / "ray", tmp_path / "local")
    for name in ("num_documents", "num_tokens", "num_added_documents", "num_added_tokens"):
        assert getattr(ours, name) == getattr(local, name)
    assert Datastore(tmp_path / "ray").corpus == ["made"]
    if len(options) == 1:
        assert ours.num_duplicates == local.num_duplicates
        assert (local.num_duplicates > 0) == drop_duplicates, "control"
        assert (ours.share_read, ours.skipped, ours.text_bytes) == (
            local.share_read,
            local.skipped,
            local.text_bytes,
        )
        assert ours.num_shards >= 5, "each part has shards of its own"
    assert ("tokenize", 1, 1) in told


def test_workers_find_duplicates_in_the_stores_of_a_fleet(cluster, tmp_path):
    tokenizer = Characters()
    (tmp_path / "fleet").mkdir()
    for number in range(3):
        memory = Memory(vocab_size(tokenizer), tokenizer=fingerprint(tokenizer))
        for text in ([1, 2, 3], [number, 20, 21], [number // 2, 30]):
            memory.insert("", text)
        memory.save(tmp_path / "fleet" / str(number))
    corpus = open_corpus(str(tmp_path / "fleet" / "{tenant}"))
    reports = [build(tmp_path / engine, corpus, engine) for engine in ("local", "ray")]
    assert [report.num_duplicates for report in reports] == [3, 3]
    assert reports[1].num_documents == 6
    assert_same(tmp_path / "ray", tmp_path / "local")


def test_documents_are_added_by_the_fast_tokenizer(cluster, tmp_path, demo_tokenizer):
    shared = {"drop_duplicates": False, **SMALL}
    for engine in ("local", "ray"):
        for parts, options in (
            ((Seeded(1),), {}),
            ((Seeded(2), Seeded(3)), {"append": True}),
        ):
            options = BuildOptions(engine=engine if options else "local", **options, **shared)
            report = build_datastore(made(*parts), demo_tokenizer, tmp_path / engine, options)
    assert_same(tmp_path / "ray", tmp_path / "local")
    assert report.num_documents > report.num_added_documents


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
        build(tmp_path / "d", made(Seeded(0, midway=partial(fail, error, arguments))))
    assert type(raised.value) is expected
    assert not list(tmp_path.iterdir())


def test_error_after_a_limit_is_not_raised(cluster, tmp_path):
    damaged = Seeded(1, midway=partial(fail, CorpusError, ["damaged"]))
    build(tmp_path / "local", made(Seeded(0)), "local", max_documents=9)
    build(tmp_path / "ray", made(Seeded(0), damaged), max_documents=9)
    assert_same(tmp_path / "ray", tmp_path / "local")


def test_empty_corpora_are_refused(cluster, tmp_path):
    for corpus in (Corpus("none", ()), made(Seeded(0, num_documents=0))):
        with pytest.raises(ValueError, match="the corpus is empty"):
            build(tmp_path / "d", corpus)
        assert not list(tmp_path.iterdir())


def test_build_resumes_after_the_driver_was_killed(cluster, tmp_path):
    options = {"drop_duplicates": False}
    local = build(tmp_path / "local", made(), "local", **options)
    program = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); import ray, test_ray;"
        "from pathlib import Path;"
        "ray.cloudpickle.register_pickle_by_value(test_ray);"
        "kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL);"
        "test_ray.build(Path(sys.argv[2]), test_ray.made(), progress=kill, ray_address=sys.argv[3],"
        "drop_duplicates=False)"
    )
    arguments = [str(Path(__file__).parent), str(tmp_path / "ray"), cluster.address]
    killed = subprocess.run([sys.executable, "-c", program, *arguments], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "ray").exists()
    report = build(tmp_path / "ray", made(), **options)
    assert report.num_resumed > 0
    assert report.num_added_documents == local.num_documents
    assert (report.text_bytes, report.skipped) == (local.text_bytes, local.skipped)
    assert_same(tmp_path / "ray", tmp_path / "local")


@pytest.fixture
def killer(cluster, tmp_path):
    """Kill the held worker, then release all; return the killed process."""
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


def test_work_of_a_killed_worker_is_repeated(killer, tmp_path):
    options = {"drop_duplicates": False}
    build(tmp_path / "local", made(), "local", **options)
    held = Seeded(2, midway=partial(hold, tmp_path))
    build(
        tmp_path / "ray",
        made(Seeded(0), Seeded(1), held, Seeded(3), Seeded(4)),
        **options,
    )
    assert killer
    assert_same(tmp_path / "ray", tmp_path / "local")
