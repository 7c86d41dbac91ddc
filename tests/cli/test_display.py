"""Display of untrusted text: markup and control characters have no effect."""

import io
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specds import terminal
from specds.bench.harness import table
from specds.cli import display
from specds.terminal.progress import build_progress, request_progress

WAYS = ["fail", "note", "waiting", "facts", "lookup", "source", "build", "request", "print"]


def written(way, text):
    """Return the output of a terminal for an untrusted text."""
    file = io.StringIO()
    console = terminal.LiteralConsole(file=file, force_terminal=True, color_system=None, width=1000)
    with pytest.MonkeyPatch.context() as patch:
        for stream in ("out", "err"):
            patch.setattr(terminal, stream, console)
        match way:
            case "fail" | "note":
                getattr(terminal, way)(text)
            case "waiting":
                with terminal.waiting(text):
                    pass
            case "facts":
                display.show(text, {text: f"<{text}>", "corpus": [text]}, as_json=False)
            case "lookup":
                row = {"count": 1, "token_id": 2, "text": text}
                match = {"match_length": 1, "match_count": 2, "match_text": text}
                about = {"unfinished": text, "continuations": [row]}
                console.print(display.lookup_table({**match, **about}))
            case "source":
                around = {"before": text, "match": "|", "after": text, "source": text}
                console.print(display.source_text({"document": 1, "position": 2, **around}))
            case "build":
                with build_progress() as progress:
                    progress(text, 1, 2)
            case "request":
                with request_progress(text) as progress:
                    progress(text, 1)
            case "print":
                console.print(text, soft_wrap=True)
    # What rich itself sends moves the cursor and hides it.
    return re.sub(r"\x1b\[[0-9?]*[A-Zhl]|\r", "", file.getvalue())


@example(text="[/INST]")
@example(text="[bold]x[/bold] :smile: https://a.b 12")
@given(text=st.text(st.sampled_from("[]/=:\\#0bi smile"), min_size=1, max_size=12))
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=30)
def test_brackets_in_data_are_shown(way, text):
    shown = repr(text) if way == "lookup" else text.strip()
    assert shown in written(way, text)


OBEYED = "\x1b]0;PWNED\x07 \x1b[31m \x9b31m \x00 \x08 \r \x7f \u202e \u2066 \u200f \udcff"


def is_obeyed(text):
    """Return true if a terminal would interpret the text."""
    return any(unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\t\n" for c in text)


@pytest.mark.parametrize("way", WAYS)
def test_control_characters_are_escaped(way):
    shown = written(way, OBEYED)
    assert "PWNED" in shown
    assert not is_obeyed(shown)
    assert is_obeyed(OBEYED)


@pytest.mark.parametrize("no_color", [False, True])
def test_without_colors_no_text_is_dim_or_bold(no_color, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1" if no_color else "")
    file, settings = io.StringIO(), {"force_terminal": True, "color_system": "standard"}
    terminal.LiteralConsole(file=file, **settings).print("dim", style="dim")
    assert ("\x1b[" in file.getvalue()) == (not no_color)


def test_terminal_output_goes_through_one_module():
    package = Path(terminal.__file__).parents[1]
    written = re.compile(r"(?<![\w.])print\(|sys\.std(out|err)|typer\.echo\(|Console\(")
    found = {
        (path.relative_to(package).as_posix(), line.strip())
        for path in package.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if written.search(line) and path.parent.name != "terminal"
    }
    assert found == {
        ("cli/__init__.py", 'typer.echo(f"specds {__version__}")'),
        ("cli/__init__.py", "for stream in (sys.stdout, sys.stderr):"),
    }


def test_a_narrow_terminal_shows_fewer_figures_and_each_whole():
    row = {"status": "ok", "nodes": 63.5, "tokens": 2.5, "p99": 4170}
    columns = ("nodes", "nodes", "{:.1f}"), ("tokens", "tokens", "{:.3f}"), ("p99", "p99", "{}")
    figures = table("Replay", [row], lambda _: "aded:order=2", columns)
    for width, num_columns in (80, 3), (32, 2), (24, 1):
        console = terminal.LiteralConsole(width=width)
        with console.capture() as captured:
            console.print(figures, soft_wrap=True)
        words = " ".join(captured.get().split())
        assert "aded:order=2 " + " ".join(["63.5", "2.500", "4170"][:num_columns]) in words
        assert ("4170" in words) == (num_columns == 3)
