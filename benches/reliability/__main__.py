"""Runs sections and puts their figures under their headings in docs/RELIABILITY.md."""

import re
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

PAGE = Path(__file__).parents[2] / "docs" / "RELIABILITY.md"
SECTIONS = {
    "fuzz": "Inputs",
    "faults": "Kills and faults",
    "tenants": "Tenants",
    "memory": "Memory",
    "sampling": "Texts",
    "families": "Families",
    "strangers": "Strangers",
}
"""Modules of this package, and what is above their figures."""


def main(
    sections: Annotated[list[str] | None, typer.Argument(help="of these alone")] = None,
) -> None:
    """Replaces the table of each section by one measured now."""
    for name in sections or SECTIONS:
        lines = import_module(f"reliability.{name}").figures()
        page = PAGE.read_text()
        start = page.index("\n|", page.index(f"\n## {SECTIONS[name]}\n")) + 1
        end = re.compile(r"^(?!\|)|\Z", re.MULTILINE).search(page, start)
        PAGE.write_text(page[:start] + "\n".join(lines) + "\n" + page[end.start() :])


if __name__ == "__main__":
    typer.run(main)
