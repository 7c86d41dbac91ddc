"""Corpora: what is read, what is skipped and why, what is refused and how."""

import gzip
import os
import pickle
import subprocess
import sys

import pytest

from specds.corpora import (
    CorpusError,
    CorpusOptions,
    Document,
    Skipped,
    belongs_to,
    open_corpus,
    stdlib_documents,
)


def read(spec, **options):
    return list(open_corpus(str(spec), CorpusOptions(**options)))


def names(spec, **options):
    return [item.name for item in read(spec, **options)]


def write(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def test_stdlib_leaves_out_modules_with_their_tests():
    corpus = open_corpus("stdlib", CorpusOptions(without=("test", "json")))
    assert corpus.name == "stdlib without=test,json"
    names = {item.name for item in corpus}
    assert sum(item.num_bytes for item in corpus) == corpus.num_bytes > 1_000_000
    assert "ast.py" in names
    assert not any("json" in name.split("/")[0] or "test_json" in name for name in names)
    assert any(document.name == "json/decoder.py" for document in stdlib_documents())
    assert belongs_to("json_tool.py", ("json",))
    assert not belongs_to("jsonpath.py", ("json",))


def test_folder_yields_source_files_in_order_and_skipped_files_with_reasons(tmp_path):
    write(
        tmp_path,
        {
            "b.py": "b = 1\n",
            "a/c.rs": "fn c() {}\n",
            "a/empty.py": "\n",
            "image.bin": b"\x89PNG\0\xff",
            "latin.txt": "é".encode("latin-1"),
            "big.txt": "x" * ((1 << 20) + 1),
            ".git/config": "[core]",
            "node_modules/x.js": "x",
        },
    )
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path)
    corpus = open_corpus(str(tmp_path))
    assert list(corpus) == [
        Document("b.py", "b = 1\n", 6),
        Skipped("big.txt", "larger than 1 MiB", (1 << 20) + 1),
        Skipped("broken", "not a regular file"),
        Skipped("image.bin", "not text", 6),
        Skipped("latin.txt", "not text", 1),
        Document("a/c.rs", "fn c() {}\n", 10),
        Skipped("a/empty.py", "empty", 1),
    ]
    assert corpus.num_bytes == sum(item.num_bytes for item in corpus) == 24 + (1 << 20) + 1
    assert corpus.name == str(tmp_path)


def test_folder_of_many_files_has_several_parts_that_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr("specds.corpora.folder._PART_BYTES", 10)
    write(tmp_path, {f"{number:02}.txt": f"file {number}" for number in range(20)})
    corpus = open_corpus(str(tmp_path))
    assert len(corpus.parts) == 10
    assert [item.name for part in corpus.parts for item in part] == sorted(
        path.name for path in tmp_path.iterdir()
    )
    assert corpus.num_bytes == sum(part.num_bytes for part in corpus.parts)


EVERYTHING = ["x.log", "x.py", "a/x.log", "a/x.py", "a/b/x.log", "a/b/x.py"]


@pytest.mark.parametrize(
    ("ignores", "ignored"),
    [
        ({}, set()),
        ({".gitignore": "*.log\n"}, {"x.log", "a/x.log", "a/b/x.log"}),
        ({".gitignore": "*.log", "a/.gitignore": "!x.log"}, {"x.log"}),
        ({".gitignore": "/x.py"}, {"x.py"}),
        ({"a/.gitignore": "/x.py"}, {"a/x.py"}),
        ({".gitignore": "b/"}, {"a/b/x.log", "a/b/x.py"}),
        ({".gitignore": "a/b\n", "a/.gitignore": "!b/x.py"}, {"a/b/x.log", "a/b/x.py"}),
        ({".gitignore": b"# x.py\n\n\xff\n"}, set()),
    ],
)
def test_gitignore_files_exclude_the_files_that_git_ignores(tmp_path, ignores, ignored):
    write(tmp_path, dict.fromkeys(EVERYTHING, "x") | ignores)
    assert names(tmp_path) == [name for name in EVERYTHING if name not in ignored]


def test_include_and_exclude_choose_files(tmp_path):
    write(tmp_path, {"a.py": "a", "b.rs": "b", "c.md": "c", "tests/d.py": "d"})
    assert names(tmp_path, include=("*.py", "*.rs")) == ["a.py", "b.rs", "tests/d.py"]
    assert names(tmp_path, exclude=("tests/", "*.md")) == ["a.py", "b.rs"]
    assert names(tmp_path, include=("*.py",), exclude=("tests/",)) == ["a.py"]
    corpus = open_corpus(str(tmp_path), CorpusOptions(include=("*.py",), exclude=("tests/",)))
    assert corpus.name == f"{tmp_path} include=*.py exclude=tests/"


def test_row_files_of_a_folder_are_read_as_rows_and_source_files_as_text(tmp_path):
    row = '{"text": "from a row"}\n'
    rows = {"b/a.ndjson": row * 2, "a.jsonl": row, "chats.json": f"[{row}, {row}]"}
    write(tmp_path, {"README.md": "# Rows", **rows})
    read_as_rows = ["a.jsonl:1", "chats.json:1", "chats.json:2", "a.ndjson:1", "a.ndjson:2"]
    assert names(tmp_path) == read_as_rows
    settings = {"p.json": '{"name": "x"}', "ids.json": "[1, 2]", "empty.json": "", "cut.json": "["}
    write(tmp_path, {"notes.txt": "n", **settings})
    others = ["README.md", "cut.json", "empty.json", "ids.json", "notes.txt", "p.json"]
    assert sorted(names(tmp_path)) == sorted([*read_as_rows, *others])
    write(tmp_path, {"b.jsonl": '{"id": 1}\n'})
    with pytest.raises(CorpusError, match=r"b.jsonl:1: neither a text nor .*--on-bad-row skip"):
        read(tmp_path)


@pytest.mark.parametrize("pattern", ["*a*a*a*a*b", "**/a/**/a/**/a/**/b"])
def test_pattern_with_exponential_cost_is_rejected(tmp_path, pattern):
    write(tmp_path, {"a" * 100: "x", ".gitignore": pattern})
    with pytest.raises(CorpusError, match=r"gitignore: the pattern .* has \d stars"):
        read(tmp_path)
    (tmp_path / ".gitignore").unlink()
    with pytest.raises(CorpusError, match=r"--include or --exclude: the pattern .* has \d stars"):
        read(tmp_path, exclude=(pattern,))


@pytest.mark.parametrize("pattern", ["[z-a]", "!", "\\"])
def test_invalid_pattern_is_ignored_in_a_gitignore_and_rejected_as_an_option(tmp_path, pattern):
    write(tmp_path, {"b.py": "x", "c.log": "x", ".gitignore": f"{pattern}\n*.log\n"})
    assert names(tmp_path) == ["b.py"]
    with pytest.raises(CorpusError, match="--include or --exclude: "):
        read(tmp_path, include=(pattern,))


def test_odd_entries_of_a_folder_are_skipped(tmp_path):
    write(tmp_path, {"ok.py": "x"})
    (tmp_path / "itself.py").symlink_to(tmp_path / "itself.py")
    os.mkfifo(tmp_path / "pipe.py")
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    assert read(tmp_path) == [
        Skipped("itself.py", "not a regular file"),
        Document("ok.py", "x", 1),
        Skipped("pipe.py", "not a regular file"),
    ]
    # Python's own removal is one call deep a folder.
    subprocess.run(["rm", "-r", tmp_path / "d"], check=True)


def test_pipe_is_rejected_as_a_corpus(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(CorpusError, match=r"pipe.jsonl is not a regular file"):
        read(tmp_path / "pipe.jsonl")


def test_path_with_invalid_utf8_gives_a_valid_corpus_name(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff.jsonl")
    path.write_text('{"text": "a"}')
    corpus = open_corpus(str(path))
    assert corpus.name.endswith("\ufffd.jsonl")
    assert [item.text for item in corpus] == ["a"]


def test_pattern_reads_every_file_that_matches(tmp_path):
    write(tmp_path, {"b.txt": "b", "a.jsonl": '{"text": "a"}', "c.py": "c", "d/e.txt": "e"})
    assert names(tmp_path / "*.[jt]*") == ["a.jsonl:1", "b.txt"]
    assert names(tmp_path / "**" / "*.txt") == ["b.txt", "e.txt"]
    with pytest.raises(CorpusError, match=r"no file matches `.*none\*`"):
        names(tmp_path / "none*")


@pytest.mark.parametrize("content", [b"\x00\x01", b"caf\xe9"])
def test_file_that_is_not_text_is_refused_or_skipped(tmp_path, content):
    write(tmp_path, {"data.txt": content})
    with pytest.raises(CorpusError, match=r"data.txt is not UTF-8 text"):
        read(tmp_path / "data.txt")
    skipped = [Skipped("data.txt", "not text", len(content))]
    assert read(tmp_path / "data.txt", on_bad_row="skip") == skipped


def test_packed_text_above_the_size_limit_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("specds.corpora.files._LARGEST_TEXT", 1000)
    path, packed = tmp_path / "data.txt.gz", gzip.compress(b"a text " * 200)
    path.write_bytes(packed)
    with pytest.raises(CorpusError, match=r"data.txt.gz unpacks to more than 256 MiB of one text"):
        read(path)
    skipped = [Skipped("data.txt.gz", "unpacks to more than 256 MiB", len(packed))]
    assert read(path, on_bad_row="skip") == skipped
    write(tmp_path, {"plain.txt": "a text " * 200})
    assert len(read(tmp_path / "plain.txt")) == 1


def test_sample_is_a_fraction_and_depends_only_on_the_text(tmp_path):
    write(tmp_path, {f"{number}.txt": f"text {number % 500}" for number in range(1000)})
    items = read(tmp_path, sample=0.3)
    kept = {item.name: item.text for item in items if isinstance(item, Document)}
    assert 220 < len(kept) < 380
    assert all(kept.get(f"{n}.txt") == kept.get(f"{n + 500}.txt") for n in range(500))
    skipped = [item.reason for item in items if isinstance(item, Skipped)]
    assert skipped == ["not in the sample"] * (1000 - len(kept))
    larger = {item.name for item in read(tmp_path, sample=0.5) if isinstance(item, Document)}
    assert larger > kept.keys()


def test_parts_can_be_pickled_and_read_again(tmp_path):
    rows = {"rows.jsonl": '{"text": "x"}\n', "l.json": '[{"text": ""}]'}
    write(tmp_path, {"src/a.py": "a", "b.txt": "b", **rows})
    for spec in (tmp_path / "src", tmp_path / "rows.jsonl", tmp_path / "b.txt", tmp_path / "*"):
        corpus = open_corpus(str(spec))
        again = pickle.loads(pickle.dumps(corpus))
        assert again == corpus
        assert list(again) == list(corpus) == list(corpus) != []


@pytest.mark.parametrize(
    "spec", ["wikipedia", "data/answers.jsonl", "./nowhere", "a/b/c", "logs/answers.txt", ""]
)
def test_unknown_corpus_error_lists_the_known_ones(spec):
    with pytest.raises(CorpusError, match=f"no corpus `{spec}`: expected `stdlib`, `ultrachat`"):
        open_corpus(spec)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_field": "a", "messages_field": "b"}, "are mutually exclusive"),
        ({"on_bad_row": "ignore"}, "on_bad_row must be `fail` or `skip`: 'ignore'"),
        ({"sample": 0.0}, "sample must be above 0 and at most 1: 0.0"),
        ({"sample": 1.5}, "sample must be above 0 and at most 1: 1.5"),
        ({"sample": float("nan")}, "sample must be above 0 and at most 1: nan"),
    ],
)
def test_invalid_option_is_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        CorpusOptions(**options)


def test_language_is_an_option_of_the_stack_only(tmp_path):
    with pytest.raises(CorpusError, match="a language can be chosen of `the-stack`, `bigcode"):
        open_corpus(str(tmp_path), CorpusOptions(language="python"))
    with pytest.raises(CorpusError, match="choose one with --language"):
        open_corpus("the-stack")


@pytest.mark.parametrize(
    ("package", "spec"),
    [("pyarrow", "rows.parquet"), ("datasets", "ultrachat")],
)
def test_missing_package_error_has_the_install_command(tmp_path, monkeypatch, package, spec):
    write(tmp_path, {"rows.parquet": ""})
    monkeypatch.chdir(tmp_path)
    for name in [n for n in sys.modules if n.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"{package} is not installed: .* run pip install '\.\[corpora\]'"
    with pytest.raises(ImportError, match=message):
        read(spec)
