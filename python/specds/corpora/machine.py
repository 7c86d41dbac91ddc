"""Texts that every machine has: the standard library, documentation, installed packages."""

import os
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from itertools import accumulate, takewhile
from pathlib import Path

from specds.corpora.document import Corpus, CorpusOptions, Document, Item, Part, Skipped, sift
from specds.corpora.files import digest, file_state
from specds.corpora.folder import stdlib_parts
from specds.corpora.texts import NotTextError, text_of
from specds.corpora.unpacking import decompressed

_DOCUMENTATION = ("/usr/share/doc", "/usr/share/man/man1", "/usr/share/man/man7")
_MOST_DOCUMENTATION, _MOST_PACKAGES = 8 << 20, 24 << 20
_MOST_OF_A_FILE = 1 << 20
_PART_FILES = 256


@dataclass(frozen=True)
class TextFiles:
    """Files of the system, also compressed by gzip; what cannot be read is left out."""

    paths: tuple[str, ...]
    num_bytes: int

    @property
    def state(self) -> str:
        return digest(file_state(Path(path)) for path in self.paths if Path(path).is_file())

    def __iter__(self) -> Iterator[Item]:
        return sift(map(self._item, self.paths), CorpusOptions())

    def _item(self, name: str) -> Item:
        try:
            with Path(name).open("rb") as file:
                content = decompressed(file, name).read(_MOST_OF_A_FILE)
            text, size = text_of(name, content).text, Path(name).stat().st_size
        except NotTextError as error:
            return Skipped(name, str(error))
        except (OSError, EOFError, ValueError):
            return Skipped(name, "unreadable")
        return Document(name, text, size)


def machine_corpus() -> Corpus:
    """Return the texts of this machine that no user wrote, at most 32 MB and the library.

    These are the sources of the standard library, documentation and manuals of the system, and
    sources of packages that were installed from an index; what was installed from a folder or a
    repository may be a user's own.
    """
    documentation = _parts(_documents(), _MOST_DOCUMENTATION)
    packages = _parts(_sources(), _MOST_PACKAGES)
    library: Iterator[Part] = stdlib_parts(CorpusOptions())
    return Corpus("machine", (*library, *documentation, *packages))


def _parts(paths: Iterator[Path], most_bytes: int) -> Iterator[Part]:
    sizes: list[tuple[str, int]] = []
    for path in paths:
        with suppress(OSError):
            size = path.stat().st_size
            if 0 < size <= _MOST_OF_A_FILE and path.is_file():
                sizes.append((str(path), size))
    totals = accumulate(size for _, size in sizes)
    kept = [
        each
        for each, _ in takewhile(lambda of: of[1] <= most_bytes, zip(sizes, totals, strict=True))
    ]
    for start in range(0, len(kept), _PART_FILES):
        group = kept[start : start + _PART_FILES]
        yield TextFiles(tuple(path for path, _ in group), sum(size for _, size in group))


def _documents() -> Iterator[Path]:
    for folder in _DOCUMENTATION:
        for below, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(names):
                is_log = name.lower().startswith(("changelog", "copyright", "news"))
                if not is_log and Path(name).suffix in ("", ".gz", ".md", ".rst", ".txt", ".html"):
                    yield Path(below, name)


def _sources() -> Iterator[Path]:
    installed = Path(sysconfig.get_path("purelib"))
    known = metadata.distributions(path=[str(installed)])
    named = {str(each.metadata["Name"]).lower(): each for each in known}
    for _, each in sorted(named.items()):
        if each.read_text("direct_url.json") is None:
            files = sorted(map(str, each.files or ()))
            is_text = (".py", ".md", ".rst")
            yield from (installed / file for file in files if file.endswith(is_text))
