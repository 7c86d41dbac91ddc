"""The house's English: the word list of CONTRIBUTING, and the rules of first words."""

import re
from collections import defaultdict
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


# Each is one thing in two languages, an interface, or a part of its language.
_MIRRORS = (
    "Activations AdedConfig CacheType Drafter Effort Engine Error FusedConfig FusedDrafter Input "
    "Item NGrammysConfig Outcome Random Readme RestConfig Result Session Strategy Target Trees"
)
_TYPE = re.compile(
    r"^(?:pub\S* )?(?:class|struct|enum|trait|type) _?(\w+)|^_?([A-Z]\w+)(?:: TypeAlias)? = ", re.M
)


def test_type_names_have_one_meaning():
    homes = defaultdict(set)
    for path in words.files(["rust", "python", "tests", "benches"]):
        # Bindings and references have the names of what they stand for.
        if path.suffix in (".py", ".rs") and not re.search(r"rust/(py|c)/|/reference", str(path)):
            for names in _TYPE.findall(path.read_text()):
                homes["".join(names)].add(path)
    types = {name: paths for name, paths in homes.items() if not name.isupper()}
    shared = {name for name, paths in types.items() if len(paths) > 1 and "_" not in name}
    assert len(types) > 500
    assert shared <= {*_MIRRORS.split()}
