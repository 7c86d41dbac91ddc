"""Run sections and write their tables below their headings in docs/RELIABILITY.md."""

import re
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

PAGE = Path(__file__).parents[2] / "docs" / "RELIABILITY.md"
SECTIONS = {
    "fuzz": "Inputs",
    "faults": "Kills and faults",
    "families": "Model families",
    "gguf": "Shapes of GGUF files",
    "gguf_context": "Long contexts of GGUF files",
    "gguf_texts": "Architectures of GGUF files",
    "mixed": "Mixed requests",
    "serve": "Requests of the server",
    "serve_hostile": "Hostile requests of the server",
    "third_party": "Third-party setups",
}
"""Modules of this package, and the heading of the table of each."""


def main(
    sections: Annotated[list[str] | None, typer.Argument(help="only these sections")] = None,
) -> None:
    """Replace the table of each section by a new measurement."""
    for name in sections or SECTIONS:
        lines = import_module(f"reliability.{name}").figures()
        page = PAGE.read_text()
        start = page.index("\n|", page.index(f"\n## {SECTIONS[name]}\n")) + 1
        end = re.compile(r"^(?!\|)|\Z", re.MULTILINE).search(page, start)
        PAGE.write_text(page[:start] + "\n".join(lines) + "\n" + page[end.start() :])


if __name__ == "__main__":
    typer.run(main)
