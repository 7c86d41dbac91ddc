"""Datasets of the hub, through the unmodified clients, from a hub on loopback."""

import gzip
import io
import json
import pickle

import pytest

import hub_client
from hub_server import TOKEN, Repository, hub_with_client
from specds.corpora import CorpusError, CorpusOptions, Document, Skipped

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A hub, and a process whose clients know no other one."""
    with hub_with_client(tmp_path_factory.mktemp("hub")) as made:
        yield made


@pytest.fixture
def serve(client):
    """Put a dataset on the hub."""
    hub, _ = client

    def put(name, files, **faults):
        hub.repositories[name] = repository = Repository(files, **faults)
        hub.requests.clear()
        return repository

    yield put
    hub.repositories.clear()


@pytest.fixture
def read(client):
    """Read a corpus in the other process; return it and the items of each part."""

    def run(spec, token=None, **options):
        _, pool = client
        return pool.submit(hub_client.read, spec, CorpusOptions(**options), token).result(60)

    return run


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows, **options):
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer, **options)
    return buffer.getvalue()


def chat(number):
    return [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": f"answer {number}"},
    ]


def texts(parts):
    return [[item.text for item in part] for part in parts]


def said(*numbers):
    return [f"question {number}\nanswer {number}" for number in numbers]


ULTRACHAT_200K = """---
dataset_info: {splits: [{name: train_sft, num_bytes: 345, num_examples: 3}]}
configs:
- config_name: default
  data_files:
  - {split: train_sft, path: data/train_sft-*}
  - {split: test_sft, path: data/test_sft-*}
---
"""


def ultrachat(*numbers):
    return jsonl([{"data": [f"question {n}", f"answer {n}"]} for n in numbers])


def ultrachat_200k(*numbers):
    return parquet([{"prompt": f"question {n}", "messages": chat(n)} for n in numbers])


def sharegpt(*numbers):
    names = {"user": "human", "assistant": "gpt"}
    told = [[{"from": names[m["role"]], "value": m["content"]} for m in chat(n)] for n in numbers]
    return json.dumps([{"id": "x", "conversations": each} for each in told], indent=2).encode()


NAMED = {
    "ultrachat": (
        "stingning/ultrachat",
        {"train_0.jsonl": ultrachat(0, 1, 2), "train_1.jsonl": ultrachat(3), "README.md": b"#"},
        "messages_field=data split=train",
    ),
    "ultrachat-200k": (
        "HuggingFaceH4/ultrachat_200k",
        {
            "data/train_sft-0-of-2.parquet": ultrachat_200k(0, 1, 2),
            "data/train_sft-1-of-2.parquet": ultrachat_200k(3),
            "data/test_sft-0-of-1.parquet": ultrachat_200k(4),
            "README.md": ULTRACHAT_200K.encode(),
        },
        "messages_field=messages split=train_sft",
    ),
    "sharegpt": (
        "Aeala/ShareGPT_Vicuna_unfiltered",
        {"ShareGPT_2023.json": sharegpt(0, 1, 2), "ShareGPT_V4.3.json": sharegpt(3)},
        "messages_field=conversations split=train",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_dataset_of_the_papers_is_read_by_its_name(serve, read, name):
    path, files, options = NAMED[name]
    commit = serve(path, files).commit
    pickled, parts = read(name)
    assert texts(parts) == [said(0, 1, 2), said(3)]
    assert [item.name for item in parts[1]] == [f"{path}/{list(files)[1]}:1"]
    corpus = pickle.loads(pickled)
    assert corpus.name == f"{name} ({path}@{commit[:12]}) {options}"
    assert corpus.num_bytes == sum(len(content) for content in [*files.values()][:2])
    spent = sum(item.num_bytes for part in parts for item in part)
    assert corpus.num_bytes - 1 <= spent <= corpus.num_bytes
    if name == "ultrachat-200k":
        assert texts(read(name, split="test_sft")[1]) == [said(4)]


def stack():
    return {
        f"data/{language}/data-0000{n}-of-00002.parquet": parquet(
            [{"hexsha": "0", "content": f"{language} {n}", "max_stars_count": 1}]
        )
        for language in ("python", "rust")
        for n in range(2)
    }


def test_gated_stack_is_read_by_language_with_a_token(serve, read):
    serve("bigcode/the-stack-dedup", stack(), gated=True)
    pickled, parts = read("the-stack", token=TOKEN, language="Python")
    assert texts(parts) == [["python 0"], ["python 1"]]
    assert "text_field=content language=Python" in pickle.loads(pickled).name
    with pytest.raises(CorpusError, match="`the-stack` has no data files for the language `cobol`"):
        read("the-stack", token=TOKEN, language="cobol")


@pytest.mark.parametrize("path", ["bigcode/the-stack", "bigcode/the-stack-dedup"])
def test_stack_is_read_by_language_under_both_ids(serve, read, path):
    serve(path, stack())
    assert texts(read(path, language="rust")[1]) == [["rust 0"], ["rust 1"]]
    with pytest.raises(CorpusError, match=f"`{path}` is split by language: choose one"):
        read(path)


def test_dataset_is_read_by_its_id(serve, read):
    serve("org/name", {"a.txt": b"first\nsecond\n"})
    with pytest.raises(CorpusError, match=r"files such as `a.txt`.* try --revision refs/convert"):
        read("org/name")
    serve("org/table", {"a.csv": b"id,text\n1,first\n2,second\n"})
    assert texts(read("org/table")[1]) == [["first", "second"]]
    serve("org/packed", {"a.jsonl.gz": gzip.compress(jsonl([{"text": "a"}, {"text": "b"}]))})
    assert texts(read("org/packed")[1]) == [["a", "b"]]


@pytest.mark.parametrize("num_drops", [1, 3])
@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz", "json"])
def test_dropped_connection_is_resumed(client, serve, read, kind, num_drops):
    hub, _ = client
    rows = [{"text": f"{number} " * 200} for number in range(3000)]
    content = {
        "parquet": parquet(rows, row_group_size=500),
        "jsonl": jsonl(rows),
        "jsonl.gz": gzip.compress(jsonl(rows), 1),
        "json": json.dumps(rows).encode(),
    }[kind]
    path = f"train.{kind}"
    drops = {path: [len(content) * 2 // 3] * num_drops}
    repository = serve("org/name", {path: content}, drops=drops)
    _, (part,) = read("org/name")
    assert [item.text for item in part] == [row["text"] for row in rows]
    assert hub.requests.count("DROPPED") == num_drops
    assert repository.drops == {path: []}


@pytest.mark.parametrize(
    ("kind", "place"), [("jsonl", ":2"), ("json", ": row 2"), ("parquet", ": row 2")]
)
def test_malformed_row_is_reported_with_its_position_or_skipped(serve, read, kind, place):
    rows = [{"text": "a", "n": 1}, {"text": 2, "n": 2}, {"text": "c", "n": 3}]
    turns = [[{"role": role, "content": "a"}] for role in ("user", None, "user")]
    content = {
        "jsonl": jsonl(rows[:1]) + b'{"text": "never clo\n' + jsonl(rows[2:]),
        "json": json.dumps(rows).encode(),
        "parquet": parquet([{"messages": messages} for messages in turns]),
    }[kind]
    serve("org/name", {f"train.{kind}": content})
    message = rf"^org/name/train.{kind}{place}: (not|no text|a message)"
    with pytest.raises(CorpusError, match=message):
        read("org/name")
    _, (part,) = read("org/name", on_bad_row="skip")
    assert [type(item) for item in part] == [Document, Skipped, Document]
    assert part[1].name == f"org/name/train.{kind}:2"
    assert part[1].reason.startswith("bad row: ")


GATED = (
    r"`bigcode/the-stack-dedup` is gated: accept its terms at https://huggingface.co/datasets/bigcode/"
    r"the-stack-dedup, then log in with `hf auth login` or set HF_TOKEN"
)
ROW = {"train.jsonl": b'{"id": 1, "body": "x"}'}


@pytest.mark.parametrize(
    ("spec", "files", "options", "message"),
    [
        ("org/none", None, {}, "no folder `org/none` here; no dataset `org/none` on"),
        ("org/table", ROW, {"revision": "v2"}, "`org/table` has no revision `v2`"),
        ("org/table", ROW, {"text_field": "text"}, "1: no text in `text`; its fields: `id`, `bo"),
        ("org/empty", {"README.md": b"#"}, {}, "`org/empty` has no data files: see https://"),
        ("org/script", {"script.py": b""}, {}, "`org/script` is made by a script, which `data"),
        ("the-stack", "gated", {"language": "rust"}, GATED),
        ("the-stack", "gated", {"language": "rust", "token": "hf_token_of_a_stranger"}, GATED),
    ],
)
def test_unreadable_dataset_error_names_its_cause(serve, read, spec, files, options, message):
    if files == "gated":
        serve("bigcode/the-stack-dedup", stack(), gated=True)
    elif files:
        serve(spec, files)
    with pytest.raises(CorpusError, match=message):
        read(spec, **options)


STORES = {"jsonl": jsonl, "parquet": parquet}


@pytest.mark.parametrize("kind", STORES)
def test_parts_can_be_read_by_another_process(client, serve, read, kind):
    hub, pool = client
    rows = [{"text": f"text {number}"} for number in range(40)]
    parts = [STORES[kind](rows[n : n + 10]) for n in range(0, 40, 10)]
    files = {f"train-{n}.{kind}": part for n, part in enumerate(parts)}
    commit = serve("org/name", files).commit
    pickled, parts = read("org/name")
    assert [item.text for part in parts for item in part] == [row["text"] for row in rows]
    hub.requests.clear()
    again = [pool.submit(hub_client.read_part, pickled, index).result(60) for index in (3, 1)]
    assert again == [parts[3], parts[1]]
    asked = {r for r in hub.requests if r.startswith("GET /datasets") and "train-" in r}
    files = {f"GET /datasets/org/name/resolve/{commit}/train-{n}.{kind}" for n in (1, 3)}
    assert asked >= files


@pytest.mark.parametrize("kind", STORES)
def test_part_is_of_the_commit_that_was_opened(client, serve, read, kind):
    (_, pool), store = client, STORES[kind]
    serve("org/name", {f"train.{kind}": store([{"text": "the first version"}])})
    pickled, _ = read("org/name")
    serve("org/name", {f"train.{kind}": store([{"text": "a later version"}])})
    with pytest.raises(CorpusError, match=f"hub stopped sending org/name/train.{kind} "):
        pool.submit(hub_client.read_part, pickled, 0).result(60)


def test_config_is_selected_from_those_of_the_dataset(serve, read):
    files = {f"{name}.jsonl": jsonl([{"text": name}]) for name in ("one", "two")}
    configs = [{"config_name": name, "data_files": f"{name}.jsonl"} for name in ("one", "two")]
    card = "---\n" + json.dumps({"configs": configs}) + "\n---\n"  # YAML too
    serve("org/name", files | {"README.md": card.encode()})
    assert texts(read("org/name", config="two")[1]) == [["two"]]
    with pytest.raises(CorpusError, match=r"configs: \['one', 'two'\] \(--config chooses\)"):
        read("org/name")
    with pytest.raises(CorpusError, match=r"'three' not found. Available: \['one', 'two'\]"):
        read("org/name", config="three")


@pytest.mark.parametrize("kind", STORES)
def test_split_is_selected_from_those_of_the_dataset(serve, read, kind):
    store = STORES[kind]
    serve("org/name", {f"{name}.{kind}": store([{"text": name}]) for name in ("train", "test")})
    assert texts(read("org/name", split="test")[1]) == [["test"]]
    with pytest.raises(CorpusError, match="no split `dev`: choose one by --split: `train`, `test`"):
        read("org/name", split="dev")
