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
    """Puts a dataset on the hub."""
    hub, _ = client

    def put(name, files, **faults):
        hub.repositories[name] = repository = Repository(files, **faults)
        hub.requests.clear()
        return repository

    yield put
    hub.repositories.clear()


@pytest.fixture
def read(client):
    """Reads a corpus in the other process: itself, and the items of each part."""

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


def said(*numbers):
    return [f"question {number}\nanswer {number}" for number in numbers]


def texts(parts):
    return [[item.text for item in part] for part in parts]


def test_ultrachat_is_read_from_its_lines(serve, read):
    rows = [{"id": str(n), "data": [f"question {n}", f"answer {n}"]} for n in range(5)]
    files = {"train_0.jsonl": jsonl(rows[:3]), "train_1.jsonl": jsonl(rows[3:]), "README.md": b"#"}
    commit = serve("stingning/ultrachat", files).commit
    pickled, parts = read("ultrachat")
    assert texts(parts) == [said(0, 1, 2), said(3, 4)]
    assert [item.name for item in parts[1]] == [
        "stingning/ultrachat/train_1.jsonl:1",
        "stingning/ultrachat/train_1.jsonl:2",
    ]
    corpus = pickle.loads(pickled)
    origin = f"stingning/ultrachat@{commit[:12]}"
    assert corpus.name == f"ultrachat ({origin}) messages_field=data split=train"
    assert corpus.num_bytes == sum(map(len, files.values())) - 1
    assert corpus.num_bytes == sum(item.num_bytes for part in parts for item in part)


ULTRACHAT_200K = """---
dataset_info:
  splits:
  - name: train_sft
    num_bytes: 345
    num_examples: 3
  - name: test_sft
    num_bytes: 12
    num_examples: 1
configs:
- config_name: default
  data_files:
  - split: train_sft
    path: data/train_sft-*
  - split: test_sft
    path: data/test_sft-*
---
"""


def test_ultrachat_200k_is_read_from_parquet(serve, read):
    rows = [{"prompt": f"question {n}", "prompt_id": str(n), "messages": chat(n)} for n in range(4)]
    files = {
        "README.md": ULTRACHAT_200K.encode(),
        "data/train_sft-00000-of-00002.parquet": parquet(rows[:2]),
        "data/train_sft-00001-of-00002.parquet": parquet(rows[2:3]),
        "data/test_sft-00000-of-00001.parquet": parquet(rows[3:]),
    }
    serve("HuggingFaceH4/ultrachat_200k", files)
    pickled, parts = read("ultrachat-200k")
    assert texts(parts) == [said(0, 1), said(2)]
    assert parts[1] == [
        Document(
            "HuggingFaceH4/ultrachat_200k/data/train_sft-00001-of-00002.parquet:1",
            *said(2),
            len(files["data/train_sft-00001-of-00002.parquet"]),
        )
    ]
    assert pickle.loads(pickled).num_bytes == sum(
        len(files[f"data/train_sft-0000{n}-of-00002.parquet"]) for n in (0, 1)
    )
    assert texts(read("ultrachat-200k", split="test_sft")[1]) == [said(3)]


def test_sharegpt_is_read_from_its_lists(serve, read):
    rows = [
        {
            "id": f"x_{n}",
            "conversations": [
                {"from": "human", "value": f"question {n}"},
                {"from": "gpt", "value": f"answer {n}"},
            ],
        }
        for n in range(3)
    ]
    files = {
        "ShareGPT_2023.05.04v0_Wasteland_Edition.json": json.dumps(rows[:2], indent=2).encode(),
        "ShareGPT_V4.3_unfiltered_cleaned_split.json": json.dumps(rows[2:]).encode(),
    }
    serve("Aeala/ShareGPT_Vicuna_unfiltered", files)
    _, parts = read("sharegpt")
    assert texts(parts) == [said(0, 1), said(2)]


def stack():
    return {
        f"data/{language}/data-0000{n}-of-00002.parquet": parquet(
            [{"hexsha": "0", "content": f"{language} {n}", "max_stars_count": 1}]
        )
        for language in ("python", "rust")
        for n in range(2)
    }


def test_the_stack_is_read_by_language_by_who_may(serve, read):
    serve("bigcode/the-stack-dedup", stack(), gated=True)
    pickled, parts = read("the-stack", token=TOKEN, language="Python")
    assert texts(parts) == [["python 0"], ["python 1"]]
    assert "text_field=content language=Python" in pickle.loads(pickled).name
    with pytest.raises(CorpusError, match="`the-stack` has no data files for the language `cobol`"):
        read("the-stack", token=TOKEN, language="cobol")


@pytest.mark.parametrize("path", ["bigcode/the-stack", "bigcode/the-stack-dedup"])
def test_the_stack_is_read_by_language_by_its_ids_too(serve, read, path):
    serve(path, stack())
    assert texts(read(path, language="rust")[1]) == [["rust 0"], ["rust 1"]]
    with pytest.raises(CorpusError, match=f"`{path}` is read by language: choose one by --lang"):
        read(path)


def test_any_dataset_is_read_by_its_id(serve, read):
    serve("org/name", {"a.csv": b"id,body\n1,first\n2,second\n"})
    with pytest.raises(CorpusError, match=r"files such as `a.csv`.* try --revision refs/convert"):
        read("org/name")
    serve("org/packed", {"a.jsonl.gz": gzip.compress(jsonl([{"text": "a"}, {"text": "b"}]))})
    assert texts(read("org/packed")[1]) == [["a", "b"]]


@pytest.mark.parametrize("num_drops", [1, 3])
@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz", "json"])
def test_connection_that_drops_is_taken_up_again(client, serve, read, kind, num_drops):
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
def test_malformed_row_is_told_by_its_position_or_skipped(serve, read, kind, place):
    rows = [{"text": "a", "n": 1}, {"text": None, "n": 2}, {"text": "c", "n": 3}]
    content = {
        "jsonl": jsonl(rows[:1]) + b'{"text": "never clo\n' + jsonl(rows[2:]),
        "json": json.dumps(rows).encode(),
        "parquet": parquet(rows),
    }[kind]
    serve("org/name", {f"train.{kind}": content})
    with pytest.raises(CorpusError, match=rf"^org/name/train.{kind}{place}: (not|no text)"):
        read("org/name")
    _, (part,) = read("org/name", on_bad_row="skip")
    assert [type(item) for item in part] == [Document, Skipped, Document]
    assert part[1].name == f"org/name/train.{kind}:2"
    assert part[1].reason.startswith("bad row: n")


GATED = (
    r"`bigcode/the-stack-dedup` is gated: accept its terms at https://huggingface.co/datasets/bigcode/"
    r"the-stack-dedup, then log in by `hf auth login` or set HF_TOKEN"
)
ROW = {"train.jsonl": b'{"id": 1, "body": "x"}'}


@pytest.mark.parametrize(
    ("spec", "files", "options", "message"),
    [
        ("org/none", None, {}, "there is no folder `org/none` here; no dataset `org/none` on"),
        ("org/table", ROW, {"revision": "v2"}, "`org/table` has no revision `v2`"),
        (
            "org/table",
            ROW,
            {"text_field": "text"},
            "1: no text in `text`; its fields: `id`, `body`",
        ),
        ("org/empty", {"README.md": b"#"}, {}, "`org/empty` has no data files: see https://"),
        ("org/script", {"script.py": b""}, {}, "`org/script` is made by a script, which `data"),
        ("the-stack", "gated", {"language": "rust"}, GATED),
        ("the-stack", "gated", {"language": "rust", "token": "hf_token_of_a_stranger"}, GATED),
    ],
)
def test_what_cannot_be_read_says_why(serve, read, spec, files, options, message):
    if files == "gated":
        serve("bigcode/the-stack-dedup", stack(), gated=True)
    elif files:
        serve(spec, files)
    with pytest.raises(CorpusError, match=message):
        read(spec, **options)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "the hub refuses your token for `org/name`: log in by `hf auth login`"),
        (503, "cannot reach the hub for `org/name`: check the network"),
    ],
)
def test_hub_that_refuses_everything_is_said_so(client, serve, read, status, message):
    hub, _ = client
    serve("org/name", {"train.jsonl": jsonl([{"text": "a"}])})
    hub.refuses = status
    try:
        with pytest.raises(CorpusError, match=message):
            read("org/name", token=TOKEN)
    finally:
        hub.refuses = None


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_parts_can_be_read_by_another_process(client, serve, read, kind):
    hub, pool = client
    rows = [{"text": f"text {number}"} for number in range(40)]
    store = {"jsonl": jsonl, "parquet": parquet}[kind]
    files = {f"train-{n}.{kind}": store(rows[n * 10 : n * 10 + 10]) for n in range(4)}
    commit = serve("org/name", files).commit
    pickled, parts = read("org/name")
    assert [item.text for part in parts for item in part] == [row["text"] for row in rows]
    hub.requests.clear()
    again = [pool.submit(hub_client.read_part, pickled, index).result(60) for index in (3, 1)]
    assert again == [parts[3], parts[1]]
    asked = {r for r in hub.requests if r.startswith("GET /datasets") and "train-" in r}
    files = {f"GET /datasets/org/name/resolve/{commit}/train-{n}.{kind}" for n in (1, 3)}
    assert asked >= files


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_part_is_of_the_commit_that_was_opened(client, serve, read, kind):
    _, pool = client
    store = {"jsonl": jsonl, "parquet": parquet}[kind]
    serve("org/name", {f"train.{kind}": store([{"text": "the first version"}])})
    pickled, _ = read("org/name")
    serve("org/name", {f"train.{kind}": store([{"text": "a later version"}])})
    with pytest.raises(CorpusError, match=f"hub stopped sending org/name/train.{kind} "):
        pool.submit(hub_client.read_part, pickled, 0).result(60)


CONFIGS = """---
configs:
- config_name: one
  data_files: one.jsonl
- config_name: two
  data_files: two.jsonl
---
"""


def test_config_is_chosen_of_those_there_are(serve, read):
    files = {f"{name}.jsonl": jsonl([{"text": name}]) for name in ("one", "two")}
    serve("org/name", files | {"README.md": CONFIGS.encode()})
    assert texts(read("org/name", config="two")[1]) == [["two"]]
    with pytest.raises(CorpusError, match=r"configs: \['one', 'two'\] \(--config chooses\)"):
        read("org/name")
    with pytest.raises(CorpusError, match=r"'three' not found. Available: \['one', 'two'\]"):
        read("org/name", config="three")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_split_is_chosen_of_those_there_are(serve, read, kind):
    store = {"jsonl": jsonl, "parquet": parquet}[kind]
    serve("org/name", {f"{name}.{kind}": store([{"text": name}]) for name in ("train", "test")})
    assert texts(read("org/name", split="test")[1]) == [["test"]]
    with pytest.raises(CorpusError, match="no split `dev`: choose one by --split: `train`, `test`"):
        read("org/name", split="dev")


def test_hub_out_of_reach_is_said_so():
    from specds.corpora import open_corpus

    with pytest.raises(
        CorpusError, match="cannot reach the hub for `stingning/ultrachat`: unset HF_HUB_OFFLINE"
    ):
        open_corpus("ultrachat")
