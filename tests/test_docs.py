"""What the documents promise about themselves."""

import re
from pathlib import Path

import pytest

import tables

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "scripts/README.md"]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)|(?:src|srcset)=\"([^\"]+)\"")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_from_outside_the_site_lead_somewhere(page: Path) -> None:
    targets = [a or b for a, b in LINK.findall(page.read_text())]
    assert targets
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_tables_of_acceptance_lengths_are_those_of_the_rows(page: Path) -> None:
    text = page.read_text()
    assert "| `rest" in text
    assert tables.with_tables(text) == text


def test_the_first_pages_stay_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110
    assert len((ROOT / "docs/ARCHITECTURE.md").read_text().split()) <= 2500


def test_the_tests_that_hold_what_broke_are_there() -> None:
    table = (ROOT / "docs/RELIABILITY.md").read_text().split("## Which test holds what")[1]
    named = set(re.findall(r"`([\w/]+\.(?:py|rs))`", table))
    assert len(named) > 15
    folders = ROOT / "tests", ROOT / "tests/core"
    assert [name for name in named if not any((of / name).exists() for of in folders)] == []
