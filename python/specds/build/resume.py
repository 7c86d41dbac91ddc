"""Where the parts of a corpus end: a build that goes on does not read again what it is through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from specds.build.report import Reading
from specds.corpora import Document

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
    """
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
