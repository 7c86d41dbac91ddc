"""The chat's commands, and the line of figures after each reply."""

import io
import json
import shutil
import sys

import pytest

from specds.cli.chat_commands import ChatCommands
from specds.generation import Chat
from specds.models.load import load_model


@pytest.fixture
def chat(chat_model):
    return Chat(*load_model(str(chat_model), device="cpu"), max_new_tokens=8, do_sample=False)


def test_retry_and_undo_remove_the_last_turn(chat):
    commands = ChatCommands(chat)
    reply = chat.send("def add(a, b):")
    assert chat.send(commands.by_name["/retry"]("")) == reply
    assert len(chat.messages) == 2
    commands.undo("")
    assert chat.messages == []
    with pytest.raises(ValueError, match="no reply yet"):
        commands.undo("")


def test_saved_conversation_is_continued_after_load(chat, tmp_path):
    commands, path = ChatCommands(chat), str(tmp_path / "talk.json")
    commands.system("import re")
    chat.send("def add(a, b):")
    messages = chat.messages
    commands.save(path)
    commands.clear()
    assert chat.messages == [{"role": "system", "content": "import re"}]
    commands.load(path)
    assert chat.messages == messages
    (tmp_path / "other.json").write_text('{"messages": [3]}')
    with pytest.raises(ValueError, match="is not a conversation that /save wrote"):
        commands.load(str(tmp_path / "other.json"))
    with pytest.raises(ValueError, match="name a file"):
        commands.save("")


def test_result_of_a_tool_is_a_message_with_its_role(run, chat, chat_model, tmp_path, monkeypatch):
    commands = ChatCommands(chat)
    reply = chat.send(commands.by_name["/tool"]("3 found"))
    assert chat.messages[0] == {"role": "tool", "content": "3 found"}
    assert chat.send(commands.by_name["/retry"]("")) == reply
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "f"}}]))
    monkeypatch.setattr(sys, "stdin", io.StringIO("def a\n/tool 3\n"))
    options = ("--model", chat_model, "--max-new-tokens", 2, "--tools", tools)
    assert run("chat", *options)[0] == 0
    tools.write_text("{}")
    code, _, err = run("chat", *options)
    assert code != 0
    assert "has no tools: write a list as OpenAI's API takes it" in err


def test_figures_follow_each_reply_until_they_are_switched_off(run, chat_model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("def a\ndef b\n/stats\ndef c\n/exit\n"))
    code, _, err = run("chat", "--model", chat_model, "--max-new-tokens", 4)
    assert code == 0
    lines = [line for line in err.splitlines() if line.startswith("4 tokens in")]
    assert len(lines) == 2
    assert "all replies: 8 tokens in" in err
    assert "\n12 tokens in" in err


def test_sampling_options_default_to_those_of_the_model(run, chat_model, tmp_path):
    options = ("--max-new-tokens", 12, "--json", "def add(a, b):")

    def text(folder, *more):
        return json.loads(run("generate", "--model", folder, *more, *options)[1])["token_ids"]

    greedy = text(chat_model)
    assert text(chat_model, "--temperature", 0) == greedy
    shutil.copytree(chat_model, tmp_path / "sampled")
    config = {"do_sample": True, "temperature": 5.0}
    (tmp_path / "sampled/generation_config.json").write_text(json.dumps(config))
    sampled = text(tmp_path / "sampled")
    assert sampled != greedy
    assert text(tmp_path / "sampled", "--temperature", 0) == greedy
    assert text(tmp_path / "sampled", "--min-p", 1) == greedy


def test_generate_stops_at_a_text_and_penalizes_repetition(run, chat_model):
    options = (
        "generate",
        "--model",
        chat_model,
        "--max-new-tokens",
        30,
        "--json",
        "def add(a, b):",
    )
    whole = json.loads(run(*options)[1])
    stop = whole["text"][5:8]
    stopped = json.loads(run(*options, "--stop", stop)[1])
    assert stop in stopped["text"]
    assert len(stopped["token_ids"]) < len(whole["token_ids"])
    penalized = json.loads(run(*options, "--repetition-penalty", 5)[1])
    assert penalized["token_ids"] != whole["token_ids"]


def test_generate_completes_each_prompt_of_a_file(run, tmp_path):
    rows = [{"prompt": "def a"}, {"prompt": "import"}]
    (tmp_path / "some.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "some.txt").write_text("def a\n\nimport\n")
    results = []
    for name in ("some.jsonl", "some.txt"):
        options = ("--prompts", tmp_path / name, "--max-new-tokens", 4, "--json")
        code, out, _ = run("generate", "--model", "demo-tiny", *options)
        assert code == 0
        results.append([json.loads(line)["token_ids"] for line in out.splitlines()])
    assert results[0] == results[1]
    assert len(results[0]) == 2
    assert run("generate", "--model", "demo-tiny", "a", "--prompts", "b")[0] == 2
