"""Messages of one or more lines, and commands, in a chat's input."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from specds.cli.chat_input import messages

SAID = [
    ("a line\n\nanother\n", ["a line", "another"]),
    ('"""\none\n\n  two\n"""\nthree\n', ["one\n\n  two", "three"]),
    ('"""one\ntwo""" \n', ["one\ntwo"]),
    ('"""one"""\n"""\n"""\n', ["one"]),
    ('"""one\n/clear\n', ["one\n/clear"]),
    (" /claer\n/usr/bin/env is\n/help me\n", [" /claer", "/usr/bin/env is"]),
    ("one\n/quit\ntwo\n", ["one"]),
]


@pytest.mark.parametrize(("typed", "expected"), SAID)
def test_lines_and_quoted_texts_are_messages(monkeypatch, typed, expected):
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert list(messages({})) == expected


def test_slash_command_is_run_or_rejected_and_never_sent(monkeypatch, capsys):
    typed = "/claer\n/clear\n/retry it \n/save\n/help\n/exit now\nmore\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    cleared = []
    commands = {
        "/clear": cleared.append,
        "/retry": lambda text: f"again: {text}",
        "/save": lambda _: Path("/nowhere/x").write_text(""),
    }
    assert list(messages(commands)) == ["again: it"]
    assert cleared == [""]
    err = capsys.readouterr().err
    assert "no command `/claer`: try /help" in err
    assert "note: /nowhere/x: no such file or directory" in err
    assert "/exit         end, as /quit and Ctrl-D do" in err


PROGRAM = """
import json
from specds.cli.chat_input import messages
for said in messages({}, "some model"):
    print("said", json.dumps(said), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have another readline")
def test_pasted_lines_are_one_message_after_a_banner_of_two_lines():
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    shown, seen = b"", {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, **streams, env=seen, start_new_session=True):
        while b"> " not in shown:
            shown += os.read(ours, 4096)
        assert b"\x1b[?2004h" in shown, "else a terminal does not mark what is pasted"
        os.write(ours, b"\x1b[200~def f(x):\r    return tmp\x1b[201~\r")
        while b"\n" not in shown.partition(b"said")[2]:
            shown += os.read(ours, 4096)
        os.write(ours, b"/quit\r")
    os.close(ours)
    os.close(theirs)
    assert shown.startswith(b"some model\r\n/help lists the commands.")
    assert rb'said "def f(x):\n    return tmp"' in shown
