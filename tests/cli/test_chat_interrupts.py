"""Ctrl-C and Ctrl-D in a chat, typed into a terminal."""

import json
import sys

import pytest

from gguf_models import byte_tokenizer, write_model
from typed import Typed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="others have another readline")
TEMPLATE = "{% for message in messages %}{{ message['content'] + '<|im_end|>' }}{% endfor %}"
CTRL_D = "\x04"
# A bar is shown at once, and a reply ends by no token.
PROGRAM = """
import sys
from specds.cli import chat_commands, main, stream_output
stream_output._SHOWN_AFTER_S = 0.0
note_context = chat_commands.ChatCommands.note_context
def slow(self):
    import time
    print("a pause", flush=True)
    time.sleep(1.0)
    note_context(self)
if "--pause" in sys.argv:
    sys.argv.remove("--pause")
    chat_commands.ChatCommands.note_context = slow
main()
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    extra = byte_tokenizer(TEMPLATE)
    return write_model(path, "llama", ("Q8_0",), vocab=258, extra=extra, context_length=1 << 16)


@pytest.fixture
def chat(path):
    def start(*options, new_tokens=4):
        words = ("chat", "--model", path, "--max-new-tokens", new_tokens, *options)
        return Typed("-c", PROGRAM, *words)

    return start


def test_interrupt_at_the_prompt_cancels_the_line_and_a_second_leaves(chat):
    with chat() as typed:
        at = typed.wait_for("> ")
        typed.type("not sent")
        at = typed.interrupt_until("Ctrl-D ends the chat, and so does another Ctrl-C", at)
        at = typed.wait_for("> ", at)
        typed.type("one two\n")
        at = typed.wait_for("4 tokens in", at)
        at = typed.wait_for("> ", at)
        # After a message, the next one is the first again.
        at = typed.interrupt_until("another Ctrl-C", at)
        at = typed.wait_for("> ", at)
        at = typed.interrupt_until("Save the conversation to which file?", at)
        typed.interrupt()
        assert typed.end() == 0
    assert typed.shown.count("4 tokens in") == 2, "of the reply, and of all"


def test_interrupt_within_quotes_cancels_the_text(chat, tmp_path):
    with chat() as typed:
        at = typed.wait_for("> ")
        typed.type('"""one\n')
        at = typed.wait_for("... ", at)
        typed.type("two")
        at = typed.interrupt_until("another Ctrl-C", at)
        at = typed.wait_for("> ", at)
        typed.type(f"/save {tmp_path}/talk.json\n")  # a new line, and no part of the text
        typed.wait_for("> ", typed.wait_for("saved to", at))  # before, the terminal may drop it
        typed.type(CTRL_D)
        assert typed.end() == 0
    assert "tokens in" not in typed.shown
    assert "Save the conversation" not in typed.shown


def test_interrupt_just_after_a_reply_neither_leaves_nor_cancels(chat):
    with chat("--pause") as typed:
        at = typed.wait_for("> ")
        typed.type("one two\n")
        at = typed.wait_for("a pause", at)
        at = typed.interrupt_until("> ", at)
        typed.type("three\n")
        at = typed.wait_for("4 tokens in", at)
        assert "another Ctrl-C" not in typed.shown


def test_stopped_reply_stays_and_is_saved_on_leaving(chat, tmp_path):
    with chat("--temperature", 2, "--regex", "[a-z]{9000}", new_tokens=30_000) as typed:
        at = typed.wait_for("> ")
        typed.type("one two\n")
        at = typed.wait_for("\n", typed.wait_for("one two", at))
        while len(typed.shown) < at + 40:
            typed._read()
        typed.interrupt()
        at = typed.wait_for("> ", typed.wait_for("tokens in", at))
        typed.type(CTRL_D)
        at = typed.wait_for("which file?", at)
        typed.type("/nowhere/talk.json\n")
        at = typed.wait_for("which file?", typed.wait_for("talk.json: no such file", at))
        typed.type(f"{tmp_path}/talk.json\n")
        typed.wait_for("saved to", at)
        assert typed.end() == 0
    said, reply = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert said == {"role": "user", "content": "one two"}
    assert reply["content"].strip()


def test_saved_conversation_is_not_offered_again(chat, tmp_path):
    with chat() as typed:
        at = typed.wait_for("> ")
        typed.type("one two\n")
        at = typed.wait_for("> ", typed.wait_for("4 tokens in", at))
        typed.type(f"/save {tmp_path}/talk.json\n")
        at = typed.wait_for("> ", typed.wait_for("saved to", at))
        typed.type(CTRL_D)
        assert typed.end() == 0
    assert "Save the conversation" not in typed.shown


def test_long_message_shows_a_bar_and_is_canceled_by_an_interrupt(chat):
    with chat() as typed:
        at = typed.wait_for("> ")
        # A terminal's line has 4,096 bytes; a pasted text is one message.
        typed.type("\x1b[200~")
        for _ in range(12):
            typed.type("one two three four " * 200 + "\r")
        typed.type("\x1b[201~\r")
        at = typed.wait_for("tokens", typed.wait_for("reading 45,", at))
        at = typed.interrupt_until("the message was not read, and is not kept", at)
        at = typed.wait_for("> ", at)
        typed.type("one\n")
        typed.wait_for("4 tokens in", at)
