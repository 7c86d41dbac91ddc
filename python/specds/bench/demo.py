"""The modules that neither the demo's models nor its datastore have seen, and prompts from them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from specds.corpora import CorpusOptions, Document, belongs_to, open_corpus, stdlib_documents
from specds.indexing import BuildReport, build_datastore
from specds.models.tokenization import Tokenizer
from specds.terminal.progress import build_progress

MODES: dict[str, dict[str, Any]] = {
    "sampled, T = 0.7": {"do_sample": True, "temperature": 0.7, "top_k": 0},
    "greedy": {"do_sample": False},
}
"""How the demo chooses tokens, by the name of the mode."""

HELD_OUT = frozenset(
    (
        *("argparse", "bisect", "calendar", "cmd", "concurrent", "configparser", "csv"),
        *("fractions", "heapq", "json", "mailbox", "queue", "sched", "shelve", "shlex"),
        *("smtplib", "statistics", "tarfile", "textwrap", "wsgiref", "zipapp"),
    )
)


def held_out_documents() -> Iterator[Document]:
    """The sources of the held-out modules, without their tests and without empty files."""
    for document in stdlib_documents():
        held_out = belongs_to(document.name, HELD_OUT) and "test" not in document.name
        if held_out and document.text.strip():
            yield document


# Two thirds of the library's text; without it as much is accepted, and many systems lack it.
_TESTS = frozenset({"test", "tests", "idle_test"})


def build_stdlib(tokenizer: Tokenizer, out: Path) -> BuildReport:
    """Builds a datastore of the standard library, without its tests and what the demo holds out."""
    corpus = open_corpus("stdlib", CorpusOptions(without=tuple(sorted(HELD_OUT | _TESTS))))
    with build_progress() as progress:
        return build_datastore(corpus, tokenizer, out, tokenizer_name="demo", progress=progress)


@dataclass(frozen=True)
class Prompt:
    """The beginning of a held-out module's text, cut where a function's body begins."""

    name: str
    text: str


def prompts(count: int, *, characters: int = 700, seed: int = 0) -> list[Prompt]:
    """Draws prompts from the held-out modules, one a module before any module gives a second.

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
    """The document's function definitions in random order, each as the number of its last line."""
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
