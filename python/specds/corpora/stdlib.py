"""The corpus `stdlib`: the running interpreter's own library."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specds.corpora.document import CorpusOptions, Document, sift
from specds.corpora.files import digest, file_state

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from specds.corpora.document import Item

# Installed packages are not the library, and generated tables are not the code that people write.
_SKIPPED = frozenset({"__pycache__", "encodings", "pydoc_data", "site-packages"})


@dataclass(frozen=True)
class StandardLibrary:
    """The whole library as one part."""

    options: CorpusOptions

    @property
    def num_bytes(self) -> int:
        """The size of the modules that are read."""
        return sum(path.stat().st_size for _, path in _files(self.options.without))

    @property
    def state(self) -> str:
        """The modules, their sizes and times, as a digest."""
        return digest(file_state(path) for _, path in _files(self.options.without))

    def __iter__(self) -> Iterator[Item]:
        return sift(stdlib_documents(self.options.without), self.options)


def stdlib_documents(without: Collection[str] = ()) -> Iterator[Document]:
    """Yields the running interpreter's own library, one module at a time, sorted by path.

    Leaves out generated tables and installed packages.

    Args:
        without: Modules or packages to leave out together with their tests: ``{"json"}`` leaves
            out ``json/decoder.py`` and ``test/test_json/test_decode.py``.
    """
    for name, path in _files(without):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield Document(name, text, path.stat().st_size)


def belongs_to(name: str, modules: Collection[str]) -> bool:
    """Whether a document of the standard library is a part, or a test, of one of `modules`."""
    names = [part.removesuffix(".py").removeprefix("test_") for part in name.split("/")]
    return any(name == m or name.startswith(f"{m}_") for name in names for m in modules)


def _files(without: Collection[str]) -> Iterator[tuple[str, Path]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        name = "/".join(parts)
        if _SKIPPED.isdisjoint(parts) and not belongs_to(name, without):
            yield name, path
