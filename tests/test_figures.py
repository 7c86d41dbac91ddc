"""Figures of pages that link to a page of results: the target has each of them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pages import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
LINK = re.compile(r"\]\(([^)#]*\bresults/[^)#]*\.md)(?:#([^)]*))?\)")
CLAIM = re.compile(r"(?<![\w.,-])(?:\d+\.\d+|\d+(?=x| %| times))")
NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?")


LinkedSections = list[tuple[str, str]]


def claims(text: str) -> Iterator[tuple[LinkedSections, list[str]]]:
    """Yield the links of each sentence or table cell to results, and its figures.

    The figures of a table belong to the link of the line that introduces it.
    """
    introduced: LinkedSections = []
    for block in text.split("\n\n"):
        if block.startswith("| "):
            statements = block.split("|")
            if introduced:
                yield introduced, [one for cell in statements for one in NUMBER.findall(cell)]
        else:
            statements = re.split(r"(?<=[.;:]) |(?<=[.;:])\n", block)
        for statement in filter(LINK.search, statements):
            yield LINK.findall(statement), CLAIM.findall(re.sub(r"\]\([^)]*\)", "]", statement))
        introduced = LINK.findall(statements[-1]) if block.endswith(":") else []


def section(text: str, anchor: str) -> str:
    """Return the part of a page below the heading of an anchor, or all of it."""
    if not anchor:
        return text
    for found in re.finditer(r"^(#+) (.*)$", text, re.M):
        words = re.sub(r"[^\w\- ]", "", found[2].lower())
        if re.sub(r"[ -]+", "-", words) == anchor:
            end = re.search(rf"^#{{1,{len(found[1])}}} ", text[found.end() :], re.M)
            return text[found.end() :][: end.start() if end else None]
    raise ValueError(anchor)


def missing(figures: list[str], text: str) -> list[str]:
    """Return the figures that a text lacks, compared at their own number of digits."""
    numbers = [float(each.replace(",", "")) for each in NUMBER.findall(text)]

    def has(figure: str) -> bool:
        unit = 10.0 ** -len(figure.partition(".")[2])
        return any(abs(each - float(figure)) <= 0.501 * unit for each in numbers)

    return [figure for figure in figures if not has(figure.replace(",", ""))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_figures_are_in_the_results_that_they_link(page: Path) -> None:
    for links, figures in claims(page.read_text()):
        targets = [section((page.parent / path).read_text(), anchor) for path, anchor in links]
        assert missing(figures, "\n".join(targets)) == [], links


def test_another_figure_is_found() -> None:
    page = (
        "Up to 1.42x, or [3 times](a/results/b.md#c-d): 9.9.\n\nOf [b](results/b.md#c-d):\n\n| 7 |"
    )
    target = "## C, d\n2.96, 1.4\n### E\n7\n## F\n1.42"
    found = [missing(of, section(target, anchor)) for [(_, anchor)], of in claims(page)]
    assert found == [["1.42"], [], []]
