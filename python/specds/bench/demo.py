"""Held-out modules, which the demo's models and datastore have not seen, and prompts from them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from specds.corpora import CorpusOptions, Document, belongs_to, open_corpus, stdlib_documents
from specds.indexing import BuildReport, build_datastore
from specds.models.tokenization import Tokenizer
from specds.terminal.progress import build_progress

HELD_OUT = frozenset(
    (
        *("argparse", "bisect", "calendar", "cmd", "concurrent", "configparser", "csv"),
        *("fractions", "heapq", "json", "mailbox", "queue", "sched", "shelve", "shlex"),
        *("smtplib", "statistics", "tarfile", "textwrap", "wsgiref", "zipapp"),
    )
)


def held_out_documents() -> Iterator[Document]:
    """Yield the sources of the held-out modules, without tests and empty files."""
    for document in stdlib_documents():
        held_out = belongs_to(document.name, HELD_OUT) and "test" not in document.name
        if held_out and document.text.strip():
            yield document


# Two thirds of the library's text; without it as much is accepted, and many systems lack it.
_TESTS = frozenset({"test", "tests", "idle_test"})


def build_stdlib(tokenizer: Tokenizer, out: Path) -> BuildReport:
    """Build a datastore of the standard library, without tests and held-out modules."""
    corpus = open_corpus("stdlib", CorpusOptions(without=tuple(sorted(HELD_OUT | _TESTS))))
    with build_progress() as progress:
        return build_datastore(corpus, tokenizer, out, tokenizer_name="demo", progress=progress)


@dataclass(frozen=True)
class Prompt:
    """The beginning of a held-out module's text, cut where a function's body begins."""

    name: str
    text: str


def prompts(count: int, *, characters: int = 700, seed: int = 0) -> list[Prompt]:
    """Draw prompts from the held-out modules, one per module before a second of any.

    Args:
        characters: The most of the text before the cut that a prompt keeps, in whole lines.
    """
    generator = random.Random(seed)
    rounds = [_cuts(document, generator) for document in held_out_documents()]
    chosen = [cut for turn in zip_longest(*rounds) for cut in turn if cut is not None]
    return [
        Prompt(f"{document.name}:{line}", _tail(document.text, line, characters))
        for document, line in chosen[:count]
    ]


def _cuts(document: Document, generator: random.Random) -> list[tuple[Document, int]]:
    """Return the document's function definitions in random order, by their last line's number."""
    lines = document.text.splitlines()
    cuts = [
        number
        for number, line in enumerate(lines, start=1)
        if line.lstrip().startswith("def ") and line.rstrip().endswith(":") and number > 20
    ]
    return [(document, number) for number in generator.sample(cuts, len(cuts))]


def _tail(text: str, last_line: int, characters: int) -> str:
    lines = text.splitlines(keepends=True)[:last_line]
    kept = len(lines)
    while kept > 0 and sum(map(len, lines[kept - 1 :])) <= characters:
        kept -= 1
    return "".join(lines[kept:]).rstrip("\n")
