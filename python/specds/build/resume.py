"""Where the parts of a corpus end: a build that goes on does not read again what it is through."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specds.corpora import Document, Skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike

    from specds.build.reading import Reading
    from specds.corpora import Corpus


@dataclass
class _Bookmark:
    """What was read up to the end of a part."""

    num_documents: int = 0
    num_bytes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


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
        read: Counts what is left out.
        report: Called now and then while documents are passed over.
    """
    path = Path(folder, "parts.jsonl")
    ended = [mark for mark in _marks(path) if mark.num_documents <= num_given]
    at = ended[-1] if ended else _Bookmark()
    read.num_bytes, read.skipped = at.num_bytes, Counter(at.skipped)
    with path.open("w", encoding="utf-8") as notes:
        notes.writelines(map(_line, ended))
        for part in corpus.parts[len(ended) :]:
            for item in part:
                at.num_bytes += item.num_bytes
                if isinstance(item, Skipped):
                    at.skipped[item.reason] += 1
                    read.leave_out(item)
                    continue
                at.num_documents += 1
                if at.num_documents > num_given:
                    yield item
                    continue
                read.num_bytes += item.num_bytes
                if at.num_documents % 1000 == 0:
                    report()
            notes.write(_line(at))
            notes.flush()


def _line(mark: _Bookmark) -> str:
    return json.dumps({**asdict(mark), "skipped": dict(mark.skipped)}) + "\n"


def _marks(path: Path) -> Iterator[_Bookmark]:
    """The notes of an earlier build; the last line may have been cut by a kill."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            noted = json.loads(line)
            skipped = Counter(noted["skipped"])
            yield _Bookmark(noted["num_documents"], noted["num_bytes"], skipped)
        except (KeyError, TypeError, ValueError):
            return
