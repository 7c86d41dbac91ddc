"""Datastores go to a hub on loopback and come from it, through the unmodified client."""

import json
import shutil
from pathlib import Path

import pytest
import xxhash

import hub_client
import specds
from datastores import files
from hub_server import TOKEN, Repository, hub_with_client
from specds import BuildOptions, Datastore, FormatError, build_from_token_ids
from specds._core import DatastoreBuilder

pytest.importorskip("huggingface_hub")

COMMAND = "specds build --corpus a.txt --tokenizer other --max-tokens 900"
NAMED = {"vocab_size": 9, "tokenizer_name": "other", "tokenizer_fingerprint": "0123abcd"}


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """A hub, and a process whose client knows no other one."""
    home = tmp_path_factory.mktemp("hub")
    with hub_with_client(home) as made:
        yield *made, home


@pytest.fixture
def hub(process):
    """The hub, with nothing on it, and nothing in the cache of its client."""
    hub, _, home = process
    shutil.rmtree(home / "hub", ignore_errors=True)
    hub.requests.clear()
    yield hub
    hub.repositories.clear()
    hub.objects.clear()
    hub.refuses = None


@pytest.fixture
def call(process):
    """Call a function of `specds.hub` in the other process."""

    def run(function, *arguments, token=TOKEN, **options):
        asked = f"specds.hub.{function}", arguments, options, token
        return process[1].submit(hub_client.call, *asked).result(60)

    return run


@pytest.fixture
def datastore(tmp_path):
    """The folder of a datastore of two shards."""
    path = tmp_path / "chat.specds"
    documents = [[n % 7, n % 5, n % 3, 1] * 8 for n in range(60)]
    options = BuildOptions(max_shard_tokens=1200, commands=(COMMAND,))
    build_from_token_ids(documents, path, options, **NAMED)
    assert Datastore(path).num_shards == 2
    return path


@pytest.fixture
def put(hub, datastore):
    """Put the datastore on the hub, unchanged or changed: `put(name, {path: change})`."""

    def put(name, changes=None, **faults):
        made = files(datastore)
        for path, change in (changes or {}).items():
            made[path] = change(made[path])
        hub.repositories[name] = repository = Repository(made, **faults)
        hub.requests.clear()
        return repository

    return put


def sent(hub):
    asked = (request for request in hub.requests if "GET" in request and "/resolve/" in request)
    return [request.split("/", 6)[-1] for request in asked]


def uploads(hub):
    return [request for request in hub.requests if request.startswith("PUT")]


def shard_file(datastore, name):
    return str(next(datastore.glob(f"shard-*/{name}")).relative_to(datastore))


def test_pushed_datastore_is_pulled_once_and_opened_offline(hub, call, datastore):
    address = call("push", datastore, "org/chat", license="cc-by-4.0")
    assert address.endswith(hub.repositories["org/chat"].commit)
    assert len(hub.repositories["org/chat"].files) == 2 + 2 * 6
    folder = Path(call("pull", "org/chat"))
    assert len(sent(hub)) == 1 + 2 * 6
    assert files(folder) == files(datastore)

    hub.requests.clear()
    assert Path(call("pull", "org/chat")) == folder
    assert hub.requests
    assert not sent(hub)
    hub.requests.clear()
    for name in ("org/chat", "hf://org/chat", "hf://datasets/org/chat@main", Path("hf://org/chat")):
        assert Path(call("locate", name, token=None)) == folder
    assert not hub.requests


def test_card_names_contents_and_build_command(hub, call, datastore):
    call("push", datastore, "org/chat", license="cc-by-4.0")
    card = hub.repositories["org/chat"].files["README.md"].decode()
    assert 'license: "cc-by-4.0"\n---\n' in card
    assert "| fingerprint of the tokenizer | `0123abcd` |" in card
    assert "| tokens | 1,980 |" in card
    assert f"\n    {COMMAND}\n" in card
    assert f"| bytes | {sum(map(len, files(datastore).values())):,} |" in card
    # One that was edited is left alone.
    hub.repositories["org/chat"].files["README.md"] = b"# mine"
    call("push", datastore, "org/chat")
    assert hub.repositories["org/chat"].files["README.md"] == b"# mine"


def test_existing_shards_are_not_transferred(hub, call, datastore):
    call("push", datastore, "org/chat")
    call("pull", "org/chat")
    hub.requests.clear()
    call("push", datastore, "org/chat")
    assert not uploads(hub)
    build_from_token_ids([[8, 8, 7, 7] * 9], datastore, BuildOptions(append=True), **NAMED)
    hub.requests.clear()
    call("push", datastore, "org/chat")
    assert len(uploads(hub)) == 5
    hub.requests.clear()
    folder = call("pull", "org/chat")
    assert len(sent(hub)) == 7
    assert Datastore(folder).num_shards == 3


def test_shards_of_an_older_push_are_removed(hub, call, datastore):
    call("push", datastore, "org/chat")
    hub.repositories["org/chat"].files["notes.txt"] = b"mine"
    specds._core.compact(datastore)
    call("push", datastore, "org/chat")
    assert len(hub.repositories["org/chat"].files) == 3 + 6
    assert Datastore(call("pull", "org/chat")).num_shards == 1


def test_interrupted_download_resumes(hub, call, put, datastore):
    name = shard_file(datastore, "suffixes.bin")
    repository = put("org/failed", drops={name: [10] * 99})
    with pytest.raises(ConnectionError, match="cannot reach the hub for `org/failed`"):
        call("pull", "org/failed")
    repository.drops.clear()
    hub.requests.clear()
    Datastore(call("locate", "org/failed")).verify()
    assert name in sent(hub)
    assert "manifest.json" not in sent(hub)


def flipped(content):
    return content[:-20] + bytes([content[-20] ^ 1]) + content[-19:]


@pytest.mark.parametrize("file", ["tokens.bin", "keys.bin", "shard.json"])
def test_wrong_checksum_is_refused_each_time(hub, call, put, datastore, file):
    name = f"org/wrong-{file}"
    put(name, {shard_file(datastore, file): flipped})
    for _ in range(2):
        with pytest.raises(FormatError, match=file.partition(".")[0]):
            call("locate", name)


def test_pull_repairs_damaged_cache(hub, call, put):
    put("org/decays")
    folder = Path(call("pull", "org/decays"))
    victim = next(folder.glob("shard-*/tokens.bin")).resolve()
    victim.write_bytes(flipped(victim.read_bytes()))
    Datastore(call("pull", "org/decays")).verify()


def test_gated_datastore_error_says_how_to_log_in(call, put):
    put("org/gated", gated=True)
    for token in (None, "hf_token_of_a_stranger"):
        message = "`org/gated` is gated: accept its terms at .*, then log in with `hf auth login`"
        with pytest.raises(PermissionError, match=message):
            call("locate", "org/gated", token=token)
    Datastore(call("locate", "org/gated")).verify()


def test_push_without_permission_raises(hub, call, datastore):
    with pytest.raises(PermissionError, match="refuses your token for `org/chat`: log in with"):
        call("push", datastore, "org/chat", token=None)
    assert not hub.repositories


def test_push_to_a_hub_that_keeps_nothing_raises(hub, call, datastore):
    hub.repositories["org/chat"] = Repository({}, ignores_uploads=True)
    message = r"its commit .* lacks 13 of 13 files, such as manifest.json: repeat `specds push`"
    with pytest.raises(ConnectionError, match=message):
        call("push", datastore, "org/chat")
    hub.repositories["org/chat"].ignores_uploads = False
    call("push", datastore, "org/chat")


@pytest.mark.parametrize("file", ["manifest.json", "tokens.bin"])
def test_body_is_read_up_to_its_size(hub, call, put, datastore, file):
    name = file if file == "manifest.json" else shard_file(datastore, file)
    put("org/endless", endless={name})
    hub.num_endless_bytes = 0
    message = rf"`org/endless` sends more than the [\d,]+ bytes of {name}"
    with pytest.raises(FormatError, match=message):
        call("pull", "org/endless")
    assert 0 < hub.num_endless_bytes < 64 << 20


def test_redirect_to_an_address_that_is_none_raises(call, put):
    put("org/lost", redirects={"manifest.json": "http://[::"})
    message = r"cannot reach the hub for `org/lost`: .*Invalid IPv6 URL"
    with pytest.raises(ConnectionError, match=message):
        call("pull", "org/lost")


def test_hub_that_is_down_is_asked_once(hub, call):
    hub.refuses = 503
    message = "no folder `org/chat2` here; cannot reach the hub for `org/chat2`: check the network"
    with pytest.raises(ConnectionError, match=message):
        call("locate", "org/chat2")
    assert len(hub.requests) == 1


def test_unknown_name_error_names_folder_and_hub(call):
    message = "no folder `org/none` here; no dataset `org/none` on the hub"
    with pytest.raises(FileNotFoundError, match=message):
        call("locate", "org/none")
    with pytest.raises(ConnectionError, match=r"no folder `org/none` here; .*unset HF_HUB_OFFLINE"):
        Datastore("org/none")


def test_unknown_revision_raises(call, put):
    commit = put("org/chat").commit
    with pytest.raises(FileNotFoundError, match="`org/chat` has no revision `v2`"):
        call("pull", "org/chat@v2")
    assert Path(call("pull", f"org/chat@{commit}")).name == commit


def test_dataset_without_manifest_raises(hub, call):
    hub.repositories["org/text"] = Repository({"train.jsonl": b"{}"})
    with pytest.raises(FormatError, match="`org/text` is not a datastore: it has no usable"):
        call("pull", "org/text")


def resealed(lie):
    """Return a change of the first shard's entry in a manifest, with a valid checksum."""

    def written(manifest):
        return (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()

    def change(content):
        manifest = json.loads(content) | {"build_id": ""}
        manifest["shards"][0] |= lie
        return written(manifest | {"build_id": xxhash.xxh3_128_hexdigest(written(manifest))})

    return change


@pytest.mark.parametrize(
    ("lie", "message", "is_refused_first"),
    [
        ({"id": "../../../../../../etc/passwd0000"}, "an entry of a shard is not usable", True),
        ({"num_bytes": 1 << 40}, "is not what the manifest says", False),
        ({"id": "0" * 32}, "lacks .*shard-0{32}", False),
    ],
    ids=["climbs", "grows", "forgets"],
)
def test_forged_manifest_is_refused(hub, call, put, lie, message, is_refused_first):
    put("org/honest", {"manifest.json": resealed({})})
    Datastore(call("pull", "org/honest")).verify()
    put("org/forged", {"manifest.json": resealed(lie)})
    with pytest.raises(FormatError, match=message):
        call("pull", "org/forged")
    assert (sent(hub) == ["manifest.json"]) == is_refused_first


def test_oversized_manifest_is_not_downloaded(hub, call, put):
    put("org/bomb", sizes={"manifest.json": 1 << 40})
    with pytest.raises(FormatError, match="no usable manifest"):
        call("pull", "org/bomb")
    assert not sent(hub)


def test_link_out_of_the_cache_is_refused(call, put, tmp_path):
    put("org/linked")
    folder = Path(call("pull", "org/linked"))
    victim = next(folder.glob("shard-*/tokens.bin"))
    elsewhere = tmp_path / "tokens.bin"
    elsewhere.write_bytes(victim.read_bytes())
    victim.unlink()
    victim.symlink_to(elsewhere)
    with pytest.raises(FormatError, match="leads out of the hub's cache, to"):
        call("pull", "org/linked")


def test_push_to_a_hub_that_lists_other_paths_touches_only_its_own(hub, call, datastore):
    call("push", str(datastore), "org/name")
    repository = hub.repositories["org/name"]
    shard = next(path for path in repository.files if path.endswith("tokens.bin"))
    odd = ["../evil.bin", "/etc/passwd", f"shard-{'0' * 32}/../x.bin", "shard-x/tokens.bin"]
    repository.files |= dict.fromkeys([*odd, f"shard-{'0' * 32}/keys.bin"], b"x")
    repository.sizes |= {shard: -1, odd[0]: 1 << 70}
    before = files(datastore)
    with pytest.raises(ConnectionError, match="lacks 1 of 13 files, such as shard"):
        call("push", str(datastore), "org/name")
    assert {*repository.files} >= {*odd, *before}
    assert f"shard-{'0' * 32}/keys.bin" not in repository.files
    assert repository.files[shard] == before[shard]
    assert files(datastore) == before


def test_names_of_documents_are_shared_if_a_shard_has_them(hub, call, datastore):
    with DatastoreBuilder(datastore, **NAMED, separator=9, append=True) as builder:
        builder.add_documents([1, 2, 3], [3], ["a.py"])
        builder.finish()
    call("push", str(datastore), "org/name")
    pulled = Datastore(call("pull", "org/name"))
    assert [pulled.source(index) for index in (59, 60)] == ["", "a.py"]
