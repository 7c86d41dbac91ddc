"""Where the parts of a corpus end: a build that goes on does not read again what it is through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from specds.build.report import Reading
from specds.corpora import CorpusError, Document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike

    from specds.corpora import Corpus


def documents_left(
    corpus: Corpus,
    folder: str | PathLike[str],
    num_given: int,
    read: Reading,
    report: Callable[[], object],
) -> Iterator[Document]:
    """Yields the documents of a corpus but for the first ones, and notes where each part ends.

    Args:
        corpus: What to read.
        folder: Where the notes are; they last as long as the build may go on.
        num_given: How many documents to leave out. Parts with none but such are not read at all.
        read: Empty; counts everything up to here, what is not read again too.
        report: Called now and then while documents are passed over.

    Raises:
        CorpusError: Documents are to be left out, but a part is no longer what it was.
    """
    _check_same(corpus, Path(folder, "states.json"), num_given)
    path = Path(folder, "parts.jsonl")
    ended = [noted for noted in _notes(path) if noted.num_read <= num_given]
    if ended:
        read.add(ended[-1])
    with path.open("w", encoding="utf-8") as notes:
        notes.writelines(map(_line, ended))
        for part in corpus.parts[len(ended) :]:
            for item in part:
                read.count(item)
                if not isinstance(item, Document):
                    continue
                if read.num_read > num_given:
                    yield item
                elif read.num_read % 1000 == 0:
                    report()
            notes.write(_line(read))
            notes.flush()


def _check_same(corpus: Corpus, path: Path, num_given: int) -> None:
    states = [part.state for part in corpus.parts]
    if num_given:
        try:
            noted = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            noted = None
        if noted != states:
            raise CorpusError(
                f"{corpus.name} has changed since its build was stopped: put it back as it was, or "
                f"remove {path.parent} to begin again"
            )
    path.write_text(json.dumps(states), encoding="utf-8")


def _line(read: Reading) -> str:
    return json.dumps(vars(read)) + "\n"


def _notes(path: Path) -> Iterator[Reading]:
    """What an earlier build had read after each part; a kill may have cut the last line."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield Reading(**json.loads(line))
        except (TypeError, ValueError):
            return
