"""Files as they are: encodings, line ends, notebooks, tables, and long windows of zstd."""

import codecs
import gzip
import io
import json
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specds import build_datastore
from specds.corpora import CorpusError, CorpusOptions, Document, Skipped, open_corpus
from specds.corpora.texts import NotTextError, text_of
from specds.corpora.unpacking import decompressed

pa = pytest.importorskip("pyarrow")
zstandard = pytest.importorskip("zstandard")


def read(path, **options):
    return list(open_corpus(str(path), CorpusOptions(**options)))


def texts(path, **options):
    return [item.text for item in read(path, **options)]


CRLF, MARK = "CRLF line ends", "byte order mark"
CASES = [
    (b"a\nb\n", "a\nb\n", ()),
    (b"a\r\nb\r\n", "a\nb\n", (CRLF,)),
    (b"a\r\nb\nc\rd", "a\nb\nc\rd", (CRLF,)),
    (codecs.BOM_UTF8 + "é\r\n".encode(), "é\n", (MARK, CRLF)),
    ("é😀\r\n".encode("utf-16"), "é😀\n", ("UTF-16", CRLF)),
    (codecs.BOM_UTF16_BE + "é😀\n".encode("utf-16-be"), "é😀\n", ("UTF-16",)),
    ("é😀\n".encode("utf-32"), "é😀\n", ("UTF-32",)),
    (b"", "", ()),
]


@pytest.mark.parametrize(("content", "text", "changes"), CASES)
def test_text_is_decoded_and_normalized(tmp_path, content, text, changes):
    found = text_of("a.txt", content)
    assert (found.text, found.changes) == (text, changes)
    if not text:
        return
    (tmp_path / "a.txt").write_bytes(content)
    (document,) = read(tmp_path / "a.txt")
    assert (document.text, document.changes) == (text, changes)
    assert read(tmp_path)[0].text == text, "in a folder"


@pytest.mark.parametrize(
    "content", [b"\0", b"caf\xe9", "é\n".encode("utf-16-le"), b"\xff\xfea\0\0\0", b"\xff\xfe\0"]
)
def test_binary_content_is_not_text(content):
    with pytest.raises(NotTextError, match="not text"):
        text_of("a.txt", content)


def notebook(*cells, **more):
    return json.dumps({"cells": [*cells], "nbformat": 4, **more}).encode()


CODE = {
    "cell_type": "code",
    "source": ["import os\n", "os.getcwd()"],
    "outputs": [{"data": {"image/png": "iVBORw0KGgo" * 9}}],
}
NOTE = {"cell_type": "markdown", "source": "# Title\n"}
EMPTY = {"cell_type": "code", "source": []}
OLD = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["a = 1\n"]}]}]}


def test_notebook_is_one_document_of_its_cells(tmp_path):
    expected = "# Title\n\nimport os\nos.getcwd()\n"
    content = notebook(NOTE, EMPTY, CODE)
    (tmp_path / "a.ipynb").write_bytes(content)
    (tmp_path / "b.ipynb.gz").write_bytes(gzip.compress(codecs.BOM_UTF8 + content))
    assert texts(tmp_path / "a.ipynb") == texts(tmp_path / "b.ipynb.gz") == [expected]
    assert read(tmp_path)[0].text == expected, "in a folder"
    assert text_of("A.IPYNB", json.dumps(OLD).encode()).text == "a = 1\n"


def test_notebook_with_large_outputs_is_read_in_a_folder(tmp_path):
    output = {"data": {"image/png": "A" * (2 << 20)}}
    (tmp_path / "a.ipynb").write_bytes(notebook(CODE | {"outputs": [output]}))
    (tmp_path / "b.ipynb").write_bytes(notebook(NOTE | {"source": "a" * (2 << 20)}))
    one, other = read(tmp_path)
    assert one.text == "import os\nos.getcwd()\n"
    assert other.reason == "larger than 1 MiB"


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"3", b'{"cells": 3}', b'{"cells": [3]}', b'{"cells": [{"source": [3]}]}',
     b'{"worksheets": [{}]}', b'{"cells": [{"source": {"a": 1}}]}', b"[" * 100_000],
)  # fmt: skip
def test_damaged_notebook_is_an_error_or_skipped(tmp_path, content):
    (tmp_path / "a.ipynb").write_bytes(content)
    with pytest.raises(CorpusError, match=r"a.ipynb is not a notebook: repair it"):
        read(tmp_path / "a.ipynb")
    (skipped,) = read(tmp_path / "a.ipynb", on_bad_row="skip")
    assert skipped.reason == read(tmp_path)[0].reason == "not a notebook"


ROWS = ["first", 'with "quotes", and\ncommas', "é😀;\t"]


def csv_of(delimiter=",", encoding="utf-8", end="\n"):
    lines = [["id", "text"], *([str(n), text] for n, text in enumerate(ROWS))]
    quoted = (['"' + each.replace('"', '""') + '"' for each in line] for line in lines)
    return end.join(delimiter.join(line) for line in quoted).encode(encoding)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", csv_of()),
        ("a.tsv", csv_of("\t", end="\r\n")),
        ("a.csv", csv_of(";", "utf-8-sig")),
        ("a.csv", csv_of(encoding="utf-16")),
        ("a.csv.gz", gzip.compress(csv_of())),
        ("a.csv.zst", zstandard.compress(csv_of())),
        ("a.jsonl", "".join(json.dumps({"text": row}) + "\n" for row in ROWS).encode("utf-16")),
        ("a.json", json.dumps([{"text": row} for row in ROWS]).encode("utf-16")),
    ],
)
def test_rows_of_csv_and_of_other_encodings(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    items = read(tmp_path / name)
    assert [item.text for item in items] == ROWS
    assert [item.name for item in items] == [f"{name}:{number}" for number in (1, 2, 3)]
    assert 0 <= sum(item.num_bytes for item in items) <= len(content)


def test_bad_rows_of_csv_are_named_or_skipped(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text,id\na,1\nb\n\nc,2,3\n"d"e,4\nf,5\n')
    with pytest.raises(CorpusError, match=r"a.csv: row 2: another number of fields: 1, expected 2"):
        read(path)
    items = read(path, on_bad_row="skip")
    assert [item.text for item in items if isinstance(item, Document)] == ["a", "f"]
    reasons = [item.reason for item in items if isinstance(item, Skipped)]
    assert reasons == ["bad row: another number of fields"] * 2 + ["bad row: not CSV"]
    path.write_text("id,body\n1,first\n")
    with pytest.raises(CorpusError, match=r"its fields: `id`, `body` \(choose one with --text-f"):
        read(path)
    assert texts(path, text_field="body") == ["first"]
    path.write_text("")
    assert read(path) == []


def test_conversations_of_csv_are_json(tmp_path):
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    said = json.dumps(talk).replace('"', '""')
    (tmp_path / "a.csv").write_text(f'id,messages\n1,"{said}"\n')
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": talk}))
    assert texts(tmp_path / "a.csv") == texts(tmp_path / "a.jsonl")


def test_table_without_text_next_to_code_is_a_source_file(tmp_path):
    (tmp_path / "a.py").write_text("a = 1\n")
    (tmp_path / "b.csv").write_text("id,value\n1,2\n")
    (tmp_path / "c.csv").write_text("id,text\n1,first\n")
    assert sorted(texts(tmp_path)) == ["a = 1\n", "first", "id,value\n1,2\n"]


def arrow(rows, opened, batch):
    table, packed = pa.table({"text": rows, "id": [*range(len(rows))]}), io.BytesIO()
    with opened(packed, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return packed.getvalue()


@pytest.mark.parametrize("opened", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("name", ["a.arrow", "a.feather"])
def test_rows_of_arrow_files_and_streams(tmp_path, opened, name):
    rows = [f"row {number}" for number in range(1000)]
    content = arrow(rows, opened, 300)
    (tmp_path / name).write_bytes(content)
    items = read(tmp_path / name)
    assert [item.text for item in items] == rows
    assert len(content) // 2 < sum(item.num_bytes for item in items) <= len(content)
    for damaged in (b"", b"ARROW1", b"nonsense", content[: len(content) // 2]):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(CorpusError, match=rf"{name} is "):
            read(tmp_path / name)
    (tmp_path / "b.arrow.gz").write_bytes(gzip.compress(content))
    with pytest.raises(CorpusError, match="arrow is compressed inside: unpack the file first"):
        read(tmp_path / "b.arrow.gz")


def test_dataset_that_was_saved_to_disk_is_read_by_its_rows(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": ROWS}).save_to_disk(tmp_path / "saved")
    assert texts(tmp_path / "saved") == ROWS


def test_zstd_with_a_window_of_two_gigabytes_is_read(tmp_path):
    content = b"".join(b"%d\n" % (n * n) for n in range(9000))
    (tmp_path / "plain").write_bytes(content)
    path = tmp_path / "a.txt.zst"
    command = ["zstd", "-q", "--ultra", "--long=31", "--no-check", "-o", path]
    try:
        # From a pipe, whose length is unknown, the frame asks for the whole window.
        subprocess.run(command, input=content, check=True)
    except FileNotFoundError:
        pytest.skip("the program zstd is not installed")
    with pytest.raises(OSError, match="too much memory"):
        pa.CompressedInputStream(pa.OSFile(str(path)), "zstd").read()
    assert texts(path) == [content.decode()]


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.binary(max_size=500), min_size=1, max_size=4), cut=st.integers(1, 30))
def test_frames_of_zstd_are_joined_and_a_cut_one_is_noticed(parts, cut):
    packed = b"".join(map(zstandard.compress, parts))
    whole = decompressed(io.BytesIO(packed), "a.zst").read()
    assert whole == b"".join(parts)
    last = len(zstandard.compress(parts[-1]))
    if cut < last:
        with pytest.raises((EOFError, OSError)):
            decompressed(io.BytesIO(packed[:-cut]), "a.zst").read()


def test_report_of_a_build_counts_what_was_normalized(run, demo_tokenizer, tmp_path):
    (tmp_path / "src").mkdir()
    for name, (content, _, _) in zip("abcdefg", CASES, strict=False):
        (tmp_path / f"src/{name}.txt").write_bytes(content + content)
    report = build_datastore(str(tmp_path / "src"), demo_tokenizer, tmp_path / "d")
    assert report.normalized == {
        "CRLF line ends": 4,
        "byte order mark": 1,
        "UTF-16": 2,
        "UTF-32": 1,
    }
    assert report.to_dict()["normalized"]["UTF-16"] == 2
    options = ("--corpus", tmp_path / "src", "--tokenizer", "demo", "--out", tmp_path / "e")
    code, out, _ = run("build", *options)
    assert code == 0
    assert "4: CRLF line ends" in out
