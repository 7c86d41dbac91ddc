"""Rows: every format gives the same documents, and every bad row is reported with its position."""

import gzip
import io
import json
import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specds.corpora import CorpusError, CorpusOptions, Document, Skipped, open_corpus, render_with
from specds.corpora.files import json_rows, readable
from specds.corpora.rendering import plain

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def read(path, render=None, **options):
    return list(open_corpus(str(path), CorpusOptions(**options), render=render))


def texts(path, render=None, **options):
    return [d.text for d in read(path, render, **options) if isinstance(d, Document)]


def rows_file(folder, rows, name="rows.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def zstd(content):
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(content)
    return bytes(packed.getvalue())


def files_of(rows):
    """Every way to store some rows: the name of the file, and its content."""
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    unescaped = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()
    documents = {
        "lines.jsonl": lines,
        "unescaped.ndjson": unescaped,
        "list.json": json.dumps(rows).encode(),
        "indented.json": b"\xef\xbb\xbf" + json.dumps(rows, indent=2, ensure_ascii=False).encode(),
        "misnamed.json": lines,
    }
    packed = {f"{name}.gz": gzip.compress(content, 1) for name, content in documents.items()}
    packed |= {f"{name}.zst": zstd(content) for name, content in documents.items()}
    for codec in ("none", "gzip", "zstd"):
        table = pa.Table.from_pylist(rows, pa.schema([("text", pa.string())]))
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression=codec, row_group_size=2)
        packed[f"{codec}.parquet"] = buffer.getvalue()
    return documents | packed


TEXT = st.text(st.sampled_from('ab"\\{[]},: \n\r\té€😀\x1f\u2028'), max_size=6)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=st.lists(TEXT, max_size=6))
def test_every_format_gives_the_same_documents(tmp_path, written):
    rows = [{"text": text} for text in written]
    expected = [text if text.strip() else "empty" for text in written]
    for name, content in files_of(rows).items():
        (tmp_path / name).write_bytes(content)
        corpus = open_corpus(str(tmp_path / name))
        items = list(corpus)
        found = [i.text if isinstance(i, Document) else i.reason for i in items]
        assert found == expected, name
        assert [i.name for i in items] == [f"{name}:{i + 1}" for i in range(len(rows))], name
        assert sum(i.num_bytes for i in items) <= corpus.num_bytes == len(content)


@given(written=st.lists(TEXT, min_size=1, max_size=4), size=st.integers(1, 40))
def test_list_of_rows_is_the_same_wherever_it_is_cut(written, size):
    rows = [1234, *({"text": text} for text in written), 5678]
    content = json.dumps(rows, ensure_ascii=False, indent=size % 3 or None).encode()
    file = io.BufferedReader(io.BytesIO(content), size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specds.corpora.files._CHUNK", size)
        assert [row for _, row, _ in json_rows(file, lambda: 0)] == rows


@pytest.mark.parametrize(
    "name", ["lines.jsonl", "lines.jsonl.gz", "lines.jsonl.zst", "none.parquet"]
)
def test_progress_reaches_the_size_of_the_file(tmp_path, name):
    content = files_of([{"text": f"{number}" * 50} for number in range(2000)])[name]
    (tmp_path / name).write_bytes(content)
    corpus = open_corpus(str(tmp_path / name))
    assert sum(item.num_bytes for item in corpus) == corpus.num_bytes == len(content)


MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
TEXT_ROWS = [
    ({"text": "a", "answer": "b"}, {}, "a"),
    ({"text": "a", "answer": "b"}, {"text_field": "answer"}, "b"),
    ({"id": 1, "content": "code"}, {}, "code"),
    ({"id": 1, "prompt": "p ", "completion": "c"}, {}, "p c"),
    ({"completion": "c"}, {}, "c"),
    ({"prompt": ["p"], "completion": "c"}, {}, "c"),
    ({"prompt": "p", "response": "r"}, {}, "r"),
    ({"prompt": "p", "completion": "c"}, {"text_field": "completion"}, "c"),
    ({"text": None, "answer": "a"}, {}, "a"),
    ({"text": "half of a character \ud83d b"}, {}, "half of a character \ufffd b"),
    ({"data": "no conversation", "text": "a"}, {}, "a"),
    ({"data": [0.5, 1], "text": "a"}, {}, "a"),
    ({"messages": MESSAGES, "chat": ["a", "b", "c"]}, {"messages_field": "chat"}, "a\nb\nc"),
]
CHAT_ROWS = [
    {"messages": MESSAGES},
    {"prompt": "hi", "prompt_id": "x", "messages": MESSAGES},
    {"id": "1", "data": ["hi", "ho"]},
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]},
    {"conversation": [{"role": "User", "content": "hi"}, {"role": "BING", "content": "ho"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, MESSAGES[1]]},
    {"messages": [MESSAGES[0], {"role": "gpt", "content": "ho", "value": "other"}]},
]


@pytest.mark.parametrize(("row", "options", "text"), TEXT_ROWS)
def test_text_of_a_row(tmp_path, row, options, text):
    assert texts(rows_file(tmp_path, [row]), **options) == [text]


@pytest.mark.parametrize("row", CHAT_ROWS)
def test_conversation_of_a_row(tmp_path, row):
    path = rows_file(tmp_path, [row])
    assert texts(path) == ["hi\nho"]
    assert texts(path, render=json.dumps) == [json.dumps(MESSAGES)]


BAD_ROWS = [
    ("{", {}, "not JSON", ": Expecting property name"),
    ('["a"]', {}, "list, expected an object", ""),
    ("3", {}, "int, expected an object", ""),
    ('{"body": 1, "id": 3}', {"text_field": "text"}, "no text in `text`", "; its fields: `body`, "),
    ('{"text": 3}', {"text_field": "text"}, "no text but int in `text`", "; its"),
    ('{"text": 3}', {}, "no text but int in `text`", "; its"),
    ('{"answer": true}', {}, "no text but bool in `answer`", "; its"),
    ("{}", {}, "neither a text nor a conversation in a field of a usual name", ""),
    ('{"chat": 3}', {"messages_field": "chat"}, "no conversation but int in `chat`", "; its"),
    ('{"a": 3}', {"messages_field": "chat"}, "no conversation but NoneType in `chat`", "; its"),
    ('{"chat": [3]}', {"messages_field": "chat"}, "a message is int in `chat`", ""),
    ('{"messages": [3]}', {}, "no text but list in `messages`", ""),
    ('{"data": [{"content": "x"}]}', {}, "a message without `role` or `from` in `data`", ""),
    ('{"data": [{"from": "gpt", "value": 3}]}', {},
     "a message without text in `content` or `value` in `data`", ""),
]  # fmt: skip


@pytest.mark.parametrize(("row", "options", "reason", "detail"), BAD_ROWS)
def test_bad_row_is_reported_with_its_line_or_skipped(tmp_path, row, options, reason, detail):
    fine = '{"text": "fine", "chat": ["fine"]}\n'
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{fine}\n{row}\n{fine}")
    with pytest.raises(CorpusError) as failure:
        read(path, **options)
    assert str(failure.value).startswith(f"{path}:3: {reason}{detail}")
    items = read(path, **options, on_bad_row="skip")
    assert items[1] == Skipped("rows.jsonl:3", f"bad row: {reason}", items[1].num_bytes)
    assert [i.name for i in items] == ["rows.jsonl:1", "rows.jsonl:3", "rows.jsonl:4"]


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ('{"text": null}', {}),
        ('{"text": null, "messages": null}', {}),
        ('{"prompt": "p", "completion": null}', {}),
        ('{"body": null}', {"text_field": "body"}),
        ('{"chat": null}', {"messages_field": "chat"}),
    ],
)
def test_null_is_empty(tmp_path, row, options):
    path = tmp_path / "rows.jsonl"
    path.write_text(row)
    assert read(path, **options) == [Skipped("rows.jsonl:1", "empty", len(row))]


def test_a_line_too_long_is_a_bad_row(tmp_path, monkeypatch):
    monkeypatch.setattr("specds.corpora.files._LARGEST_ROW", 50)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n{"text": "' + "b" * 120 + '"}\n{"text": "c"}\n')
    with pytest.raises(CorpusError, match=r"rows.jsonl:2: not JSON: a line of more than 64 MiB"):
        read(path)
    first, bad, last = read(path, on_bad_row="skip")
    assert (first.text, bad.name, last.text) == ("a", "rows.jsonl:2", "c")


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.jsonl.zst"])
def test_a_packed_log_cut_short_is_read_up_to_its_last_whole_row(tmp_path, name):
    rows = b"".join(b'{"text": "%d"}\n' % (n * n) for n in range(30_000))
    packed = gzip.compress(rows) if name.endswith(".gz") else zstd(rows)
    (tmp_path / name).write_bytes(packed[: len(packed) // 2])
    with pytest.raises(CorpusError, match=r"cut short: .*--on-bad-row skip"):
        read(tmp_path / name)
    *documents, cut = read(tmp_path / name, on_bad_row="skip")
    assert cut.reason == "damaged or cut short"
    assert len(documents) > 5_000
    assert [item.text for item in documents] == [str(n * n) for n in range(len(documents))]
    assert sum(item.num_bytes for item in [*documents, cut]) == len(packed) // 2


def test_bytes_that_are_not_utf8_make_a_bad_row_or_a_damaged_list(tmp_path):
    for name, content, message in (
        ("rows.jsonl", b'{"text": "\xff"}\n', r"rows.jsonl:1: not JSON"),
        ("rows.json", b'[{"text": "\xff"}]', r"rows.json is damaged or cut short: 'utf-8' codec"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CorpusError, match=message):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "number"),
    [
        ('[{"text": "a"}, {"text": }, {"text": "c"}]', 2),
        ('[{"text": "a"} {"text": "b"}]', 2),
        ('[{"text": "a"}', 2),
        ('[{"text": "a"}, {"text": "b', 2),
        ('[{"text": "a"}, ]', 2),
        ("[" + "[" * 100_000, 1),
        ("[", 1),
    ],
)
def test_list_is_read_up_to_what_is_not_json(tmp_path, content, number):
    path = tmp_path / "rows.json"
    path.write_text(content)
    with pytest.raises(CorpusError, match=rf"rows.json: row {number}: not JSON"):
        read(path)
    *rows, last = read(path, on_bad_row="skip")
    assert last == Skipped(f"rows.json:{number}", "bad row: not JSON", last.num_bytes)
    assert [row.text for row in rows] == ["a"][: number - 1]


def test_list_without_end_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("specds.corpora.files._CHUNK", 16)
    monkeypatch.setattr("specds.corpora.files._LARGEST_ROW", 100)
    path = tmp_path / "rows.json"
    path.write_text('[{"text": "a"}, {"text": "' + "b" * 10_000 + '"}]')
    with pytest.raises(CorpusError, match=r"rows.json: row 2: not JSON: Unterminated string"):
        read(path)


@pytest.mark.parametrize("content", ["", " \n", "[]", "[ ]"])
def test_json_file_without_rows_has_no_documents(tmp_path, content):
    path = tmp_path / "rows.json"
    path.write_text(content)
    assert read(path) == []


def test_parquet_reads_only_the_columns_it_needs_and_names_all_of_them(tmp_path):
    path = tmp_path / "rows.parquet"
    talk = [[{"role": "user", "content": "a"}], [{"role": None, "content": "b"}]]
    pq.write_table(pa.table({"messages": talk, "id": [1, 2], "path": ["x", "y"]}), path)
    message = r"rows.parquet: row 2: .* fields: `messages`, `id`, `path`"
    with pytest.raises(CorpusError, match=message):
        read(path)
    assert read(path, on_bad_row="skip")[1].name == "rows.parquet:2"
    assert texts(path, text_field="path") == ["x", "y"]
    message = r"row 1: no text in `body`; its fields: `messages`, `id`"
    with pytest.raises(CorpusError, match=message):
        read(path, text_field="body")


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.jsonl.zst", "a.txt.gz", "a.txt.zst"])
def test_damaged_file_is_an_error_that_names_it(tmp_path, name):
    content = json.dumps({"text": "".join(map(str, range(5000)))}).encode() + b"\n"
    packed = gzip.compress(content) if name.endswith(".gz") else zstd(content)
    for damaged in (packed[:-20], b"nonsense, nothing else"):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(CorpusError, match=rf"{name} is damaged or cut short: "):
            read(tmp_path / name)


def test_damaged_parquet_file_is_an_error_that_names_it(tmp_path):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": [str(n) * 9 for n in range(2000)]}), buffer)
    content = buffer.getvalue()
    garbled = content[:100] + bytes(len(content) // 2) + content[100 + len(content) // 2 :]
    for damaged in (b"", b"nonsense", content[:-9], garbled):
        (tmp_path / "rows.parquet").write_bytes(damaged)
        with pytest.raises(CorpusError, match=r"rows.parquet is "):
            read(tmp_path / "rows.parquet")
    (tmp_path / "rows.parquet.gz").write_bytes(gzip.compress(content))
    with pytest.raises(CorpusError, match="parquet is compressed inside: unpack the file first"):
        read(tmp_path / "rows.parquet.gz")


@pytest.mark.parametrize("error", [ConnectionError("gone"), FileNotFoundError(2, "no such file")])
def test_errors_of_networks_and_systems_are_not_reported_as_damage(error):
    with pytest.raises(type(error)), readable("rows.jsonl"):
        raise error


def test_conversations_go_through_the_chat_template(tmp_path, demo_tokenizer):
    assert render_with(demo_tokenizer) is plain
    template = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    tokenizer = pickle.loads(pickle.dumps(demo_tokenizer))
    tokenizer.chat_template = template + "{{ raise_exception('no') if messages|length == 1 }}"
    render = pickle.loads(pickle.dumps(render_with(tokenizer)))
    path = rows_file(tmp_path, [{"messages": MESSAGES}, {"messages": MESSAGES[1:]}])
    assert texts(path, render) == ["[user] hi\n[assistant] ho\n", "ho"]


def test_conversation_that_render_refuses_is_a_bad_row(tmp_path):
    def render(messages):
        raise ValueError("too rude")

    path = rows_file(tmp_path, [{"messages": MESSAGES}])
    with pytest.raises(CorpusError, match=r"rows.jsonl:1: too rude; its fields: `messages`"):
        texts(path, render)
    assert read(path, render, on_bad_row="skip")[0].reason == "bad row: too rude"
