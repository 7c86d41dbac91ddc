"""Streamed text: its sources, and interruption."""

import io
import re
import signal
import sys
import time

from hypothesis import given
from hypothesis import strategies as st

from commands import started
from specds import Chat, FusedDrafter, TokenTree, generate, terminal
from specds.cli.stream_output import Writer
from specds.drafters.step import Step
from specds.models.load import load_model
from specds.models.render import Spelling


@given(st.lists(st.sampled_from(["é", "雪", "a", " b", "\n", "\n\n    ", "🙂", "]["]), max_size=30))
def test_incremental_decoding_equals_decoding_at_once(demo_tokenizer, parts):
    text = "".join(parts)
    ids = demo_tokenizer.encode(text, add_special_tokens=False)
    spelling = Spelling(demo_tokenizer)
    assert "".join(map(spelling.of, [*ids, None])) == demo_tokenizer.decode(ids) == text


class ByteTokenizer:
    """A tokenizer of bytes: a token is the value of one."""

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


def test_a_character_of_several_tokens_waits_for_the_last():
    spelling = Spelling(ByteTokenizer())
    assert [spelling.of(byte) for byte in "é!".encode()] == ["", "é", "!"]
    assert [spelling.of(byte) for byte in b"\xe2\x82"] + [spelling.of(None)] == ["", "", "�"]


class WordTokenizer:
    """A tokenizer of words with the space before them."""

    all_special_ids = ()

    def __init__(self, text):
        self.words = re.findall(r" ?[^ \n]+|\n", text)

    def decode(self, ids):
        return "".join(self.words[token] for token in ids)


def test_lines_of_a_chat_are_broken_at_spaces(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "out", terminal.LiteralConsole(width=40))
    prose = "a function that returns the first of all names in a list of names that it takes\n"
    code = "```\nreturn sorted(names, key=lambda name: name.lower())[0]\n```\n"
    text = prose + code + prose
    tokenizer, shown = WordTokenizer(text), []
    for wraps in (False, True):
        writer = Writer(tokenizer, wraps=wraps)
        for token in range(len(tokenizer.words)):
            writer(Step(TokenTree([], [], []), [], [token]))
        writer.end()
        shown.append(capsys.readouterr().out)
    whole, wrapped = shown
    assert whole == text + "\n"
    assert wrapped.split() == whole.split()
    lines = wrapped.splitlines()
    assert code.splitlines()[1] in lines
    assert max(len(line) for line in lines if "lambda" not in line) <= 40
    assert len(lines) > len(whole.splitlines())


def test_steps_have_the_source_of_each_token(tiny_model):
    model, tokenizer = tiny_model
    ids = tokenizer("import os\nimport os\nimport os\n", return_tensors="pt")["input_ids"]
    steps = []
    settings = {"max_new_tokens": 48, "do_sample": False, "max_nodes": 8}
    output = generate(model, ids, FusedDrafter(), on_step=steps.append, **settings)
    tokens = [token for step in steps for token in step.token_ids]
    assert tokens == output.sequences[0, ids.shape[1] :].tolist()
    sources = [source for step in steps for source in step.sources]
    assert [source is not None for source in sources] == output.drafted_by_row[0]
    assert any(sources)
    assert {source for source in sources if source} <= {"context", "recycled"}
    for step in steps:
        assert step.tree.token_ids[step.path].tolist() == step.token_ids[: len(step.path)]
        assert step.tree.parents[step.path].tolist() == [-1, *step.path][: len(step.path)]
    assert sum(len(step.tree) for step in steps) == output.stats.num_draft_tokens


def test_the_prompt_is_an_argument_or_an_option(run, monkeypatch):
    options = ["generate", "--model", "demo-tiny", "--max-new-tokens", 4]
    _, out, err = run(*options, "def add(")
    assert "no draft was accepted" in err
    assert out
    assert not out.startswith("def add(")
    monkeypatch.setattr(sys, "stdin", io.StringIO("def add("))
    assert run(*options, "-")[1] == out
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in run(*options, "-")[2]


def test_switched_off_drafts_are_not_missed(run):
    options = ["generate", "--model", "demo-tiny", "--max-new-tokens", 4, "--max-nodes", 0]
    err = run(*options, "def add(")[2]
    assert err.endswith("; 3 passes, 1.0 tokens each\n")


def test_invalid_utf8_is_rejected(run, chat_model, monkeypatch):
    said = io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), errors="surrogateescape")
    for command in (
        ("generate", "--model", chat_model, "-"),
        ("chat", "--model", chat_model),
        ("chat", "--model", chat_model, "--system", "\udcff"),
    ):
        said.seek(0)
        monkeypatch.setattr(sys, "stdin", said)
        assert run(*command) == (1, "", "error: the text is not UTF-8\n")


def test_chat_equals_decoding_without_drafts_and_keeps_its_memory(
    run, chat_model, tmp_path, monkeypatch
):
    loaded = load_model(str(chat_model), device="cpu")
    chat = Chat(*loaded, max_nodes=0, max_new_tokens=12, do_sample=False)
    expected = [chat.send("def add(a, b):"), chat.send("import os")]
    options = ["chat", "--model", chat_model, "--max-new-tokens", 12, "--max-nodes", 8]
    options += ["--memory", tmp_path / "m"]
    ends = []
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", io.StringIO("def add(a, b):\n\nimport os\n"))
        code, out, err = run(*options)
        assert code == 0
        assert out == "".join(f"{reply}\n" for reply in expected)
        ends.append(err.splitlines()[-1])
    assert all("24 tokens in" in end for end in ends)
    assert "memory" not in ends[0]
    assert "memory" in ends[1]

    monkeypatch.setattr(sys, "stdin", io.StringIO("def add(a, b):\n/clear\ndef add(a, b):\n"))
    assert run(*options)[1] == f"{expected[0]}\n" * 2


def interrupted(arguments, shown, said=None):
    """Run a command and interrupt it after some output; return its output, errors and exit code."""
    process = started(*arguments)
    if said:
        process.stdin.write(said)
        process.stdin.flush()
    out = b""
    deadline = time.monotonic() + 60
    while len(out) < shown and time.monotonic() < deadline:
        out += process.stdout.read1(64)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    return (out + rest).decode(), err.decode(), process.returncode


def test_an_interrupted_text_stays_as_it_is(tmp_path):
    memory = tmp_path / "m"
    options = ["--model", "demo-tiny", "--max-new-tokens", 1500, "--memory", memory]
    out, err, code = interrupted(["generate", "import os\n", *options], 40)
    assert code == 130
    assert len(out) >= 40
    assert " tokens in " in err
    assert "error: interrupted" in err
    assert memory.exists()
    assert "1,500 tokens" not in err


def test_an_interrupted_reply_is_part_of_the_conversation(chat_model):
    options = ["chat", "--model", chat_model, "--max-new-tokens", 1500]
    out, err, code = interrupted(options, 40, b"import os\n")
    assert code == 0
    assert out.endswith("\n")
    assert " tokens in " in err
    assert "1,500 tokens" not in err
