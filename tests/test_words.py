"""The house's English: the word list of CONTRIBUTING, and the rules of first words."""

from pathlib import Path

import pytest

import words


def test_pages_comments_and_messages_follow_the_word_list():
    assert words.violations(words.files([*words.FOLDERS])) == []


@pytest.mark.parametrize(
    ("name", "text", "hit"),
    [
        ("a.md", "The draft goes on.", "goes on"),
        ("a.md", "# How drafts are made", "not a noun phrase"),
        ("a.py", 'def f():\n    """What it returns."""', "begins with What"),
        ("a.py", "x = 1  # beside the other", "beside"),
        ("a.py", "def test_no_draft_is_lost(): ...", "names no subject"),
        ("a.py", 'raise ValueError("x is no number")', "is no number"),
        ("a.rs", "/// Whether it is colored.\nfn f() {}", "begins with Whether"),
        ("a.rs", 'const TEXT: &str = "its colour is red";', "colour"),
    ],
)
def test_checker_reports_a_violation(name, text, hit, tmp_path, monkeypatch):
    pages = tmp_path / "CONTRIBUTING.md"
    pages.write_text((Path(words.ROOT) / "CONTRIBUTING.md").read_text())
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / name).write_text(text)
    (found,) = words.violations([tmp_path / name])
    assert f"[{hit}]" in found
