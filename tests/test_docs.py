"""Consistency of the documentation with the repository."""

import re
from pathlib import Path

import pytest

import tables

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "scripts/README.md"]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)|(?:src|srcset)=\"([^\"]+)\"")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_outside_the_site_exist(page: Path) -> None:
    targets = [a or b for a, b in LINK.findall(page.read_text())]
    assert targets
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_acceptance_tables_equal_the_committed_rows(page: Path) -> None:
    text = page.read_text()
    assert "| `rest" in text
    assert tables.with_tables(text) == text


def test_pages_within_length_limits() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110
    assert len((ROOT / "docs/ARCHITECTURE.md").read_text().split()) <= 2500
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    assert sum(len(page.read_text().split()) for page in pages) < 36_000


def test_tests_named_by_guarantees_exist() -> None:
    table = (ROOT / "docs/RELIABILITY.md").read_text().split("## Tests by guarantee")[1]
    named = set(re.findall(r"`([\w/]+\.(?:py|rs))`", table))
    assert len(named) > 15
    assert [name for name in named if not (ROOT / "tests" / name).exists()] == []


def test_make_rules_named_by_docs_exist() -> None:
    rules = set(re.findall(r"^([\w-]+(?: [\w-]+)*):", (ROOT / "Makefile").read_text(), re.M))
    rules = {rule for line in rules for rule in line.split()}
    named = {
        rule
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
        for rule in re.findall(r"(?:`|^    )make ([a-z][\w-]*)", page.read_text(), re.M)
    }
    assert len(named) > 10
    assert named - rules == set()
