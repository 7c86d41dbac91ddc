"""A memory shared through a bucket of S3 or a Redis: contract, deletions, faults, credentials."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest
from typer.testing import CliRunner

import datastores
from bucket_server import KEY, BucketOfS3, running_bucket
from datastores import build, engine, num_drafted, texts, until
from specds import FormatError
from specds._core import without_credentials
from specds.cli import app
from specds.drafters import FusedDrafter, Memory
from specds.indexing import add_from_memory
from specds.stores import bucket_client, open_store, redis_client

SECRET = [901, 902, 903, 904, 905, 906, 907, 908]


@pytest.fixture
def bucket(monkeypatch):
    with running_bucket() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        bucket_client.cache_clear()
        yield bucket
        bucket_client.cache_clear()


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="session")
def redis_url():
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        pytest.skip("needs valkey-server or redis-server")
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--requirepass", "pass"]
    server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        yield f"redis://:pass@127.0.0.1:{port}/0"
    finally:
        server.kill()
        server.wait()


@pytest.fixture(params=["s3", "redis"])
def url(request):
    if request.param == "s3":
        request.getfixturevalue("bucket")
        return "s3://bucket/fleet/one"
    return f"{request.getfixturevalue('redis_url')}/{request.node.name}"


def stored(url):
    """Return the bytes of all objects of a store."""
    store = open_store(url)
    return b"".join(store.get(name) or b"" for name in store.list())


def is_stored(url, tokens=SECRET):
    return np.array(tokens, "<u2").tobytes() in stored(url)


def check_contract(one, other):
    """Check what an exchange relies on, with two clients of one empty store."""
    assert one.head(None) is None
    version = one.replace_head(b"one", None)
    assert version is not None
    assert other.replace_head(b"two", None) is None, "there is a head"
    assert other.head(None) == (b"one", version)
    assert other.head(version) == (None, version)
    newer = other.replace_head(b"two", version)
    assert newer not in (None, version)
    assert one.replace_head(b"three", version) is None, "another process was faster"
    assert one.head(version) == (b"two", newer)
    assert one.get("x") is None
    one.put("x", b"\0\xffabc")
    one.put("y", b"")
    assert (other.get("x"), other.get("y")) == (b"\0\xffabc", b"")
    assert sorted(other.list()) == ["x", "y"]
    for client in (one, other):
        client.delete("x")
    assert (one.get("x"), other.list()) == (None, ["y"])


def test_store_keeps_its_contract(url):
    one = open_store(url)
    bucket_client.cache_clear()
    redis_client.cache_clear()
    other = open_store(url)
    assert one is not other
    check_contract(one, other)
    assert open_store(url + "-next").list() == [], "another prefix"
    assert open_store(url + "-next").head(None) is None


@pytest.mark.client
def test_store_keeps_its_contract_on_another_server(monkeypatch):
    """Moto's server of S3; `make test-clients` installs it."""
    port = free_port()
    server = subprocess.Popen(["moto_server", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        for name, value in BucketOfS3(port=port).environment.items():
            monkeypatch.setenv(name, value)
        until(lambda: answers(f"http://127.0.0.1:{port}/bucket"))
        one = open_store("s3://bucket/m")
        bucket_client.cache_clear()
        check_contract(one, open_store("s3://bucket/m"))
    finally:
        server.kill()
        server.wait()


def answers(bucket):
    """Make a bucket, if its server runs."""
    try:
        return urlopen(Request(bucket, method="PUT")).status == 200
    except OSError:
        return False


def run(*arguments):
    result = CliRunner().invoke(app, ["memory", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(params=["folder", "s3", "redis"])
def prefix(request, tmp_path):
    """Return where several stores can be, at and below it."""
    if request.param == "folder":
        return str(tmp_path / "fleet")
    if request.param == "s3":
        request.getfixturevalue("bucket")
        return "s3://bucket/fleet"
    return f"{request.getfixturevalue('redis_url')}/{request.node.name}*"


def test_commands_reach_all_stores_below(prefix):
    names = [prefix, f"{prefix}/one", f"{prefix}/two"]
    for number, url in enumerate(names):
        for text in range(number + 1):
            memory = Memory(1000, tokenizer="t")
            memory.insert("ann", [text, *SECRET])
            memory.insert("bob", [text, 21, 22, 23])
            memory.save(url)
    assert sorted(Memory.stores_at(prefix)) == names
    assert Memory.stores_at(names[1]) == names[1:2]
    found = json.loads(run("info", prefix, "--json"))
    about = {"num_stores": 3, "tokenizers": ["t"], "num_segments": 6, "num_tenants": 6}
    about |= {"num_texts": 12, "num_groups": 0, "num_tokens": 6 * (1 + len(SECRET)) + 6 * 4}
    assert found.items() >= about.items()
    assert found["age_s"] < 600
    assert [store["num_texts"] for store in found["stores"]] == [2, 4, 6]
    assert "12" in run("info", prefix)
    run("compact", prefix)
    found = json.loads(run("info", prefix, "--json"))
    assert found.items() >= (about | {"num_segments": 3}).items()
    assert len(texts(Memory.open(names[2], 1000, tokenizer="t"), "ann")) == 3
    run("forget", prefix, "ann")
    assert json.loads(run("info", prefix, "--json"))["num_tenants"] == 3
    # A deletion in the store above removes none of those below.
    assert len(texts(Memory.open(names[2], 1000, tokenizer="t"), "bob")) == 3
    assert "nothing of" in str(
        CliRunner().invoke(app, ["memory", "forget", prefix, "ann"]).exception
    )
    with pytest.raises(FileNotFoundError, match="no request cache"):
        Memory.stores_at(f"{prefix}/three")


def shared(*tenants):
    """Return a memory that has a text of each of these tenants."""
    memory = Memory(1000)
    for number, tenant in enumerate(tenants):
        memory.insert(tenant, [number, *SECRET])
    return memory


def test_tenants_have_stores_of_their_own(prefix, tmp_path):
    url = f"{prefix}/{{tenant}}"
    with pytest.raises(FileNotFoundError, match="no request cache"):
        Memory.open(url, 1000)
    one, two = shared("ann", "bob"), shared("cid")
    for memory in (one, two, one):
        memory.save(url)
    hashes = sorted(hashlib.sha256(name).hexdigest()[:28] for name in (b"ann", b"bob", b"cid"))
    assert sorted(Memory.stores_at(prefix)) == [f"{prefix}/{name}" for name in hashes]
    assert sorted(Memory.stores_at(url)) == sorted(Memory.stores_at(prefix))
    assert two.num_tenants == 1, "it reads nothing of tenants that it has no request of"
    assert json.loads(run("info", url, "--json"))["num_tenants"] == 3
    two.insert("ann", [7, 7, 7])
    for memory in (two, one):
        memory.save(url)
    assert texts(two, "ann") == texts(one, "ann")[::-1] == [[7, 7, 7], [0, *SECRET]]
    everything = Memory.open(url, 1000)
    assert [len(texts(everything, name)) for name in ("ann", "bob", "cid")] == [2, 1, 1]
    report = add_from_memory(built(tmp_path / "d"), url, "bob")
    assert (report.num_added_documents, report.num_left) == (1, 0)


def test_engines_share_the_stores_of_tenants(prefix):
    url = f"{prefix}/{{tenant}}"
    one, two = engine(url), engine(url)
    one.sync([SECRET], ["a"], request_options=[{"tenant": "ann"}])
    one.end(["a"])
    until(lambda: [Memory.info(store)["num_texts"] for store in stores(prefix)] == [1])
    assert num_drafted(two, SECRET[:3], "b") == 0, "it reads a tenant after its first request"
    until(lambda: num_drafted(two, SECRET[:3], "c") > 0)


def stores(prefix):
    """Return the stores at a prefix, also if there are none."""
    try:
        return Memory.stores_at(prefix)
    except FileNotFoundError:
        return []


def test_deleted_tenants_leave_their_stores(prefix):
    url = f"{prefix}/{{tenant}}"
    one, two = shared("ann", "bob"), shared("ann", "cid")
    for memory in (one, two, one):
        memory.save(url)
    one.insert("eve", SECRET)  # in no store yet
    run("forget", prefix, "ann")
    assert "nothing of 'eve'" in str(
        CliRunner().invoke(app, ["memory", "forget", prefix, "eve"]).exception
    )
    for memory in (one, two):
        memory.save(url)
    assert [texts(one, name) for name in ("ann", "eve")] == [texts(two, "ann"), []] == [[], []]
    assert texts(one, "bob") != []
    one.insert("ann", [5, 5, 5])
    for memory in (one, one, two):
        memory.save(url)
    assert texts(Memory.open(url, 1000), "ann") == texts(one, "ann") == [[5, 5, 5]]
    one.forget("bob")
    assert one.deleted_at("bob") == np.inf
    one.save(url)
    assert texts(Memory.open(url, 1000), "bob") == []
    one.clear()
    assert one.deleted_at("cid") == np.inf
    for memory in (one, two):
        memory.save(url)
    assert two.num_tokens == Memory.open(url, 1000).num_tokens == 0
    assert json.loads(run("info", prefix, "--json"))["num_texts"] == 0


def test_memory_is_shared_by_tenant_or_as_a_whole(tmp_path):
    memory = shared("ann")
    memory.forget("bob")
    memory.save(tmp_path / "whole")
    with pytest.raises(ValueError, match="names a store for each tenant, but this memory was"):
        memory.save(tmp_path / "fleet" / "{tenant}")
    shared("ann", "bob").save(tmp_path / "fleet" / "{tenant}")
    ann, bob = (hashlib.sha256(name).hexdigest()[:28] for name in (b"ann", b"bob"))
    shutil.rmtree(tmp_path / "fleet" / bob)
    shutil.copytree(tmp_path / "fleet" / ann, tmp_path / "fleet" / bob)
    with pytest.raises(FormatError, match="it has texts of another tenant"):
        Memory.open(tmp_path / "fleet" / "{tenant}", 1000)
    other = shared("bob", "cid")
    with pytest.raises(FormatError, match="it has texts of another tenant"):
        other.save(tmp_path / "fleet" / "{tenant}")
    assert texts(
        Memory.open(tmp_path / "fleet" / hashlib.sha256(b"cid").hexdigest()[:28], 1000), "cid"
    )


ONE_KEY, OTHER_KEY = "1f" * 32, "2e" * 32


def objects(prefix):
    """Return the bytes of all objects of a store, a folder too."""
    return stored(prefix) if "://" in prefix else datastores.stored(Path(prefix))


def test_keys_encrypt_segments(prefix, monkeypatch, tmp_path):
    secret = np.array(SECRET, "<u2").tobytes()
    shared("ann").save(prefix)
    assert secret in objects(prefix), "control"
    monkeypatch.setenv("SPECDS_MEMORY_KEY", ONE_KEY)
    assert texts(Memory.open(prefix, 1000), "ann") == [[0, *SECRET]], "not encrypted yet"
    run("compact", prefix)
    assert secret not in objects(prefix)
    memory = shared("bob")
    memory.save(prefix)
    assert b"bob" not in objects(prefix)
    assert texts(memory, "ann") == [[0, *SECRET]]
    monkeypatch.setenv("SPECDS_MEMORY_KEY", OTHER_KEY)
    for work in (Memory.info, Memory.compact, lambda path: shared("cid").save(path)):
        with pytest.raises(FormatError, match="is encrypted with another key: add that") as raised:
            work(prefix)
        assert OTHER_KEY not in str(raised.value)
    monkeypatch.setenv("SPECDS_MEMORY_KEY", f"{OTHER_KEY},{ONE_KEY}")
    shared("cid").save(prefix)
    assert Memory.info(prefix)["num_tenants"] == 3, "one segment has the other key"
    run("compact", prefix)
    monkeypatch.delenv("SPECDS_MEMORY_KEY")
    with pytest.raises(FormatError, match="is encrypted: set SPECDS_MEMORY_KEY or"):
        Memory.open(prefix, 1000)
    (tmp_path / "key").write_text(f"{OTHER_KEY}\n")
    monkeypatch.setenv("SPECDS_MEMORY_KEY_FILE", str(tmp_path / "key"))
    assert texts(Memory.open(prefix, 1000), "bob") == [[0, *SECRET]]
    run("forget", prefix, "ann", "bob")
    assert Memory.info(prefix)["num_tenants"] == 1


def test_changed_segments_do_not_decrypt(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDS_MEMORY_KEY", ONE_KEY)
    shared("ann").save(tmp_path / "m")
    (path,) = (path for path in (tmp_path / "m").iterdir() if "head" not in path.name)
    content = bytearray(path.read_bytes())
    for at in (20, 40, len(content) - 1):
        content[at] ^= 1
        path.write_bytes(content)
        with pytest.raises(FormatError, match="has changed since it was written"):
            Memory.open(tmp_path / "m", 1000)
        content[at] ^= 1


@pytest.mark.parametrize("key", ["", "1f", ONE_KEY[:-1] + "g", ONE_KEY + "00", f"{ONE_KEY},x"])
def test_invalid_keys_are_errors_that_do_not_show_them(monkeypatch, tmp_path, key):
    monkeypatch.setenv("SPECDS_MEMORY_KEY", key)
    with pytest.raises(ValueError, match="`SPECDS_MEMORY_KEY` must have keys of 64") as raised:
        shared("ann").save(tmp_path / "m")
    assert not key or key not in str(raised.value)
    assert not (tmp_path / "m").exists()
    monkeypatch.setenv("SPECDS_MEMORY_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(ValueError, match="SPECDS_MEMORY_KEY_FILE are mutually exclusive"):
        shared("ann").save(tmp_path / "m")
    monkeypatch.delenv("SPECDS_MEMORY_KEY")
    with pytest.raises(FileNotFoundError, match="key"):
        shared("ann").save(tmp_path / "m")


def test_memories_share_texts_and_deletions(url, tmp_path):
    with pytest.raises(FileNotFoundError, match="no request cache"):
        Memory.open(url, 1000)
    one, two = FusedDrafter(memory=Memory(1000)), FusedDrafter(memory=Memory(1000))
    one.memory.insert("ann", SECRET)
    one.memory.insert("bob", [21, 22, 23])
    for drafter in (one, two):
        drafter.save(url)
    assert texts(two.memory, "ann") == texts(Memory.open(url, 1000), "ann") == [SECRET]
    assert is_stored(url), "control"
    result = CliRunner().invoke(app, ["memory", "forget", url, "ann"])
    assert result.exit_code == 0, result.output
    assert not is_stored(url)
    two.save(url)
    assert texts(two.memory, "ann") == []
    report = add_from_memory(built(tmp_path / "d"), url, "bob")
    assert (report.num_added_documents, report.num_left) == (1, 0)
    assert texts(Memory.open(url, 1000), "bob") == []


def built(path):
    build(path, [[50, 51]], vocab_size=1000, separator=999)
    return path


def test_engines_share_by_their_configuration(url):
    first, second = engine(url), engine(url)

    num_drafted(first, SECRET, "a")
    until(lambda: num_drafted(second, SECRET[:3], "b") > 0)
    Memory.forget_in(url, ["ann"])
    for drafter in (first, second):
        until(lambda drafter=drafter: num_drafted(drafter, SECRET[:3], "c") == 0)
    assert not is_stored(url)
    assert first.warnings == second.warnings == []


ENDS = """
import sys
from specds import EngineDrafter, Memory
url, of = sys.argv[1:]
memory = Memory(1000)
drafter = EngineDrafter(vocab_size=1000, snapshot=url, memory_scope="shared", sync_interval=3600)
if of == "memory":
    memory.share(url, every=3600)
    memory.insert("ann", [901, 902, 903])
else:
    drafter.sync([[901, 902, 903]], ["a"])
    del drafter
"""


@pytest.mark.parametrize("of", ["memory", "drafter"])
def test_last_exchange_of_a_process_is_made(bucket, of):
    command = [sys.executable, "-c", ENDS, "s3://bucket/m", of]
    subprocess.run(command, check=True, env={**os.environ, **bucket.environment}, timeout=60)
    stored = Memory.open("s3://bucket/m", 1000)
    assert texts(stored, "ann" if of == "memory" else "") == [[901, 902, 903]]


def test_concurrent_saves_lose_no_text(url):
    memories = [Memory(1000) for _ in range(4)]

    def work(number):
        for text in range(6):
            memories[number].insert("both", [number, text])
            memories[number].save(url)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = texts(Memory.open(url, 1000), "both")
    assert sorted(found) == [[number, text] for number in range(4) for text in range(6)]


def test_steps_do_not_wait_for_a_store_that_hangs(bucket):
    answers, hangs = threading.Event(), threading.Event()
    drafter = engine("s3://bucket/m")
    drafter.sync([SECRET], ["a"])
    drafter.end(["a"])

    def hang(method, key):
        hangs.set()
        answers.wait(60)

    try:
        bucket.fault = hang
        drafter.sync([[1, 2, 3]], ["b"])
        drafter.end(["b"])
        assert hangs.wait(60), "an exchange waits for the store"
        for number in range(1000):
            drafter.sync([SECRET[:3]], [f"c{number}"])
            _, numbers, _ = drafter.draft_chains(5)
            assert numbers[0] > 0, "it drafts from what is there"
            drafter.end([f"c{number}"])
        assert not answers.is_set(), "the steps have ended before the exchange"
    finally:
        answers.set()
    bucket.fault = works
    until(lambda: is_stored("s3://bucket/m", [1, 2, 3]))


# The client does not repeat a request after these answers.
FAULTS = {
    "fails": lambda method, key: 400,
    "is full": lambda method, key: 400 if method == "PUT" else None,
    "denies": lambda method, key: 403,
    "denies writes": lambda method, key: None if method == "GET" else 403,
    "cuts": None,
}


def works(method, key):
    return None


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_a_running_fleet_is_counted_and_ends(bucket, fault):
    url, drafter = "s3://bucket/m", engine("s3://bucket/m")
    drafter.sync([SECRET], ["a"])
    drafter.end(["a"])
    until(lambda: is_stored(url))
    other = Memory.open(url, 1000)
    bucket.fault, bucket.cuts = FAULTS[fault] or works, fault == "cuts"
    if fault == "cuts":  # the drafter reads what another process writes
        other.insert("", [4, 5, 6])
        other.save(url)
    drafter.sync([[1, 2, 3]], ["b"])
    drafter.end(["b"])
    until(lambda: drafter.stats()["num_memory_failures"] > 1)
    assert "the memory was not shared: " in drafter.warnings[-1]
    assert not any(b"\1\0\2\0\3\0" in content for content in bucket.objects.values())
    drafter.sync([SECRET[:3]], ["c"])
    _, numbers, _ = drafter.draft_chains(5)
    assert numbers[0] > 0, "it drafts from what is there"
    bucket.fault, bucket.cuts = works, False
    until(lambda: is_stored(url, [1, 2, 3]))
    until(lambda: drafter.warnings == [])


def test_interval_doubles_while_exchanges_fail(bucket):
    memory = Memory(1000)
    memory.share("s3://bucket/m", every=0.05)
    begun = len(bucket.times)
    bucket.fault = FAULTS["fails"]
    until(lambda: len(bucket.times) > begun + 5)
    times = bucket.times[begun:]
    # The first may come with the next one, and a wait can only be longer.
    waits = [after - before for before, after in pairwise(times[1:])]
    assert waits[0] > 0.09
    assert min(waits[2:]) > 0.35


def test_store_that_is_away_at_the_start_is_shared_later(bucket):
    url = "s3://bucket/m"
    bucket.fault = FAULTS["fails"]
    drafter = engine(url)
    assert drafter.stats()["num_memory_failures"] == 1
    with pytest.raises(ConnectionError, match="s3://bucket/m: the store failed"):
        Memory.open(url, 1000)
    with pytest.raises(ConnectionError, match="the store failed"):
        Memory.forget_in(url, ["ann"])
    bucket.fault = works
    drafter.sync([SECRET], ["a"])
    drafter.end(["a"])
    until(lambda: is_stored(url))
    until(lambda: drafter.warnings == [])


@pytest.mark.parametrize("fault", ["denies", "denies writes"])
def test_denied_store_at_the_start_is_an_error(bucket, fault):
    bucket.fault = FAULTS[fault]
    memory = Memory(1000)
    for start in (lambda: engine("s3://bucket/m"), lambda: memory.share("s3://bucket/m")):
        with pytest.raises(PermissionError, match="s3://bucket/m: the store denies access"):
            start()
    assert bucket.objects == {}


def test_missing_bucket_is_an_error(bucket):
    memory = Memory(1000)
    with pytest.raises(FileNotFoundError, match="s3://other/m: no such bucket"):
        memory.save("s3://other/m")


def test_damaged_store_is_refused_and_not_changed(bucket):
    memory = Memory(1000)
    memory.insert("ann", SECRET)
    memory.save("s3://bucket/m")
    bucket.objects["m/head"] = bucket.objects["m/head"].replace(b"1000", b"1001")
    kept = dict(bucket.objects)
    for start in (lambda: engine("s3://bucket/m"), lambda: Memory(1000).save("s3://bucket/m")):
        with pytest.raises(FormatError, match="its head has changed"):
            start()
    assert bucket.objects == kept


def test_credentials_are_in_no_message(bucket, redis_url, monkeypatch, capfd):
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    away = [f"redis://ann:{KEY.replace('/', '%2F')}@127.0.0.1:{free_port()}/0/p", "s3://bucket/m"]
    wrong = [
        redis_url.replace("pass", KEY.replace("/", "%2F")) + "/p",
        f"redis://ann:{KEY}@127.0.0.1:1/0/p",
        f"redis://ann:{KEY}@127.0.0.1:port/0/p",
        f"redis://127.0.0.1/0/p?password={KEY}&oops=1",
        f"s3://{KEY}@bucket/m",
        f"s3://bucket/m?secret={KEY}",
        f"ftp://ann:{KEY}@127.0.0.1/x",
    ]
    shown = []
    for url in [*away, *wrong]:
        calls = {
            "open": lambda url=url: Memory.open(url, 1000),
            "save": lambda url=url: Memory(1000).save(url),
            "forget": lambda url=url: Memory.forget_in(url, ["ann"]),
            "resume": lambda url=url: FusedDrafter(memory=Memory(1000)).save(url),
        }
        for call in calls.values():
            with pytest.raises((OSError, ValueError)) as refusal:
                call()
            shown += [repr(refusal.value), str(refusal.value)]
        result = CliRunner().invoke(app, ["memory", "forget", url, "ann"])
        shown += [result.output, repr(result.exception)]
        if url in away:
            drafter = engine(url)
            memory = Memory(1000)
            memory.share(url, every=3600)
            shown += [repr(drafter), *drafter.warnings, memory.failure, repr(memory)]
            assert "127.0.0.1" in repr(drafter) or "s3://bucket/m" in repr(drafter), "control"
            assert memory.failure
        shown.append(without_credentials(url))
    shown += capfd.readouterr()
    assert any("127.0.0.1" in text for text in shown), "control"
    hidden = [KEY, KEY.replace("/", "%2F"), "secret", "of+the+test"]
    assert [text for text in shown for part in hidden if part in text] == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://ann:a@b@host:1/0/p?x=y#z", "redis://host:1/0/p"),
        ("redis://ann:a/b?c#d@host/0/p", "redis://host/0/p"),
        ("s3://bucket/p", "s3://bucket/p"),
        ("folder/m@x?y", "folder/m@x?y"),
    ],
)
def test_url_is_shown_without_credentials(url, shown):
    assert without_credentials(url) == shown


def test_client_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ValueError, match=r"redis://h/0/p redis is not installed: .*'\.\[fleet\]'"):
        Memory(1000).save("redis://h/0/p")
