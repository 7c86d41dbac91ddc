"""Corpora: what is read, what is skipped and counted, what is refused and how."""

import json

import pytest

from specds.corpora import MAX_FILE_BYTES, CorpusError, open_corpus, stdlib_documents


def texts(spec, **options):
    return [document.text for document in open_corpus(str(spec), **options).documents]


def test_stdlib_leaves_out_modules_with_their_tests():
    names = {document.name for document in stdlib_documents(without={"json"})}
    assert "ast.py" in names
    assert not any("json" in name.split("/")[0] or "test_json" in name for name in names)
    assert any(document.name == "json/decoder.py" for document in stdlib_documents())


def test_stdlib_progress_reaches_its_total():
    corpus = open_corpus("stdlib", without={"test", "idlelib"})
    assert sum(document.num_bytes for document in corpus.documents) == corpus.num_bytes > 1_000_000


def test_folder_reads_source_files_in_order_and_counts_the_rest(tmp_path):
    (tmp_path / "b.py").write_text("b = 1\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "c.rs").write_text("fn c() {}\n")
    (tmp_path / "image.bin").write_bytes(b"\x89PNG\0\xff")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / "big.txt").write_text("x" * (MAX_FILE_BYTES + 1))
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("[core]")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "x.js").write_text("x")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    corpus = open_corpus(str(tmp_path))
    documents = list(corpus.documents)
    assert [(d.name, d.text) for d in documents] == [("b.py", "b = 1\n"), ("a/c.rs", "fn c() {}\n")]
    assert corpus.skipped == {"not text": 2, "larger than 1 MiB": 1, "not a regular file": 1}


def test_text_file_is_one_document(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("once\nupon\n")
    assert texts(path) == ["once\nupon\n"]


def test_jsonl_takes_the_named_field_and_skips_blank_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a", "answer": "b"}\n\n{"text": "c", "answer": "d"}\n')
    assert texts(path) == ["a", "c"]
    assert texts(path, text_field="answer") == ["b", "d"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", r"rows.jsonl:2 is not JSON"),
        ('["a"]', r"rows.jsonl:2 holds a list, expected an object"),
        ('{"body": "x"}', r"rows.jsonl:2 has no text in `text`; its fields: `body`"),
        ('{"text": 3}', r"rows.jsonl:2 has no text in `text`"),
    ],
)
def test_bad_jsonl_row_is_named_by_its_line(tmp_path, row, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "fine"}) + "\n" + row + "\n")
    with pytest.raises(CorpusError, match=message):
        texts(path)


def test_bytes_that_are_not_utf8_in_a_jsonl_row_are_an_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(CorpusError, match=r"rows.jsonl:1 is not JSON"):
        texts(path)


@pytest.mark.parametrize("content", [b"\x00\x01", b"caf\xe9"])
def test_file_that_is_not_text_is_refused(tmp_path, content):
    path = tmp_path / "data.txt"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=r"data.txt is not UTF-8 text"):
        texts(path)


def test_unknown_corpus_says_what_is_expected():
    with pytest.raises(CorpusError, match="no corpus `wikipedia`: expected `stdlib`, a folder"):
        open_corpus("wikipedia")
