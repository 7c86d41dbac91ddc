"""What is shown is text as it is: nothing that comes from files, models or users is markup."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from specds import terminal
from specds.bench.harness import table
from specds.cli import display

TEXTS = st.text(st.sampled_from("[]/=:\\#0bi smile"), min_size=1, max_size=12)


def shown(*things, width=1000):
    """What a terminal would show of them."""
    console = Console(width=width, **terminal._LITERAL)
    with console.capture() as captured:
        for thing in things:
            console.print(thing, soft_wrap=True)
    return captured.get()


@example("[/INST]")
@example("[bold]x[/bold] :smile: https://a.b 12")
@given(text=TEXTS)
@settings(deadline=None)
def test_brackets_in_data_are_shown(text):
    row = {"count": 1, "token_id": 2, "text": text}
    found = {"match_length": 1, "match_count": 2, "match_text": text, "continuations": [row]}
    assert shown(display.lookup_table(found)).count(repr(text)) == 2
    source = {"document": 1, "position": 2, "before": text, "match": "|", "after": text}
    assert f"{text}|{text}" in shown(display.source_text(source))
    for part in shown(display.facts_table(f"<{text}>", {f"({text})": f"|{text}|"})), shown(text):
        assert text in part
    with terminal.err.capture() as captured:
        terminal.note(text)
        terminal.fail(text)
        with terminal.waiting(text):
            pass
    assert captured.get().replace("\n", "").count(text.replace("\n", "")) >= 2


def test_a_narrow_terminal_shows_fewer_figures_and_each_whole():
    row = {"status": "ok", "nodes": 63.5, "tokens": 2.5, "p99": 4170}
    columns = ("nodes", "nodes", "{:.1f}"), ("tokens", "tokens", "{:.3f}"), ("p99", "p99", "{}")
    figures = table("Replay", [row], lambda _: "rest:match=2", columns)
    for width, num_columns in (80, 3), (32, 2), (24, 1):
        words = " ".join(shown(figures, width=width).split())
        assert "rest:match=2 " + " ".join(["63.5", "2.500", "4170"][:num_columns]) in words
        assert ("4170" in words) == (num_columns == 3)
