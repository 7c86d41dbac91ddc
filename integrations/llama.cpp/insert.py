"""Insert an external drafter into the sources of llama.cpp: `python insert.py SOURCE [FILE...]`.

`extern.insertions` lists the insertions of each file (`@@`): the start of the first line of a
block, such as a function (`@`), and the place of the text below in that block (`@before`, `@after`,
`@replace`): around the line that contains this, or instead of this. Without it, the first line of
the block is meant. If a source has no such block or line, or several, the reasons are printed and
nothing is written.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

_INSERTION = re.compile(r"@ (.+)\n@(before|after|replace) ?(.*)\n((?:(?!@).*\n)+)")


class Insertion(NamedTuple):
    """Text before or after a line of a block, or instead of a part of it."""

    block: str
    place: str
    line: str
    text: str


def insertions() -> dict[str, list[Insertion]]:
    """Return the insertions of each file."""
    parts = Path(__file__).with_name("extern.insertions").read_text().split("@@ ")[1:]
    files = (part.split("\n", 1) for part in parts)
    return {name: [Insertion(*found) for found in _INSERTION.findall(of)] for name, of in files}


def insert(lines: list[str], insertion: Insertion) -> None:
    """Insert text into a file's lines; raise ValueError unless there is exactly one place."""
    block, place, line, text = insertion
    starts = [number for number, found in enumerate(lines) if found.startswith(block)]
    if len(starts) != 1:
        raise ValueError(f"{len(starts)} blocks start with {block!r}")
    at = starts[0]
    if line:
        end = re.compile(re.match(" *", block)[0] + r"\}")
        ends = (number for number in range(at + 1, len(lines)) if end.match(lines[number]))
        inside = range(at, next(ends, at) + 1)
        found = [number for number in inside if line in lines[number]]
        if len(found) != 1:
            raise ValueError(f"{len(found)} lines of {block!r} contain {line!r}")
        at = found[0]
    if place == "replace":
        lines[at] = lines[at].replace(line, text.rstrip("\n"))
    else:
        at += place == "after"
        lines[at:at] = text.splitlines(keepends=True)


def main(source: str, *names: str) -> None:
    """Write the files, unless they are up to date."""
    texts, wrong = {}, []
    for name, of_file in insertions().items():
        if name not in (names or [name]):
            continue
        path = Path(source, name)
        original = path.with_name(f"{path.name}.original")
        before = (original if original.exists() else path).read_text()
        lines = before.splitlines(keepends=True)
        for insertion in of_file:
            try:
                insert(lines, insertion)
            except ValueError as error:
                wrong.append(f"{name}: {error}")
        texts |= {original: before, path: "".join(lines)}
    if wrong:
        sys.exit("\n".join(wrong))
    for path, text in texts.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
