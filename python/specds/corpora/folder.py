"""A folder: of source code, each file a document; of data, each file full of rows; or `stdlib`."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from specds._lazy import imported
from specds.corpora.document import CorpusOptions, Document, Item, Part, Skipped, sift
from specds.corpora.files import decode, digest, file_state, kind, local_file
from specds.corpora.rows import Render

_SKIPPED = frozenset({"__pycache__", "build", "dist", "node_modules", "target", "venv"})
_ABOUT_DATA = ("readme", "license", "dataset_infos.json")
_PART_BYTES = 1 << 24
# A larger file in a folder is data or generated code.
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class SourceFiles:
    """Some files of a folder of source code, by their paths below it."""

    root: Path
    paths: tuple[str, ...]
    num_bytes: int
    options: CorpusOptions

    @property
    def state(self) -> str:
        paths = (self.root / name for name in self.paths)
        return digest(file_state(path) for path in paths if path.is_file())

    def __iter__(self) -> Iterator[Item]:
        return sift(map(self._item, self.paths), self.options)

    def _item(self, name: str) -> Item:
        path = self.root / name
        if not path.is_file():
            return Skipped(name, "not a regular file")
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            return Skipped(name, "larger than 1 MiB")
        text = decode(path.read_bytes())
        if text is None:
            return Skipped(name, "not text", size)
        return Document(name, text, size)


def folder_parts(root: Path, options: CorpusOptions, render: Render) -> Iterator[Part]:
    """The parts of a folder: of data where all files hold rows, but for a readme and a licence.

    Hidden files, folders that a build makes, and what `.gitignore` files name are left out.
    """
    exclude: Rules = (("", _patterns(options.exclude)),) if options.exclude else ()
    names = list(_names(root, "", exclude))
    if options.include:
        names = [*filter(_patterns(options.include).match_file, names)]
    data = [name for name in names if not name.lower().startswith(_ABOUT_DATA)]
    if data and all(kind(name) in ("lines", "parquet") for name in data):
        return (local_file(root / name, options, render) for name in data)
    return _source_parts(root, names, options)


def _source_parts(
    root: Path, names: Iterable[str], options: CorpusOptions
) -> Iterator[SourceFiles]:
    group: list[str] = []
    num_bytes = 0
    for name in names:
        path = root / name
        size = path.stat().st_size if path.is_file() else 0
        group.append(name)
        num_bytes += size if size <= _MAX_FILE_BYTES else 0
        if num_bytes >= _PART_BYTES:
            yield SourceFiles(root, tuple(group), num_bytes, options)
            group, num_bytes = [], 0
    if group:
        yield SourceFiles(root, tuple(group), num_bytes, options)


Rules: TypeAlias = "tuple[tuple[str, Any], ...]"
"""Folders and the patterns that hold below each: of two that say something, the first counts."""


def _names(root: Path, below: str, exclude: Rules, ignores: Rules = ()) -> Iterator[str]:
    """The paths below `root` of the files to read, sorted, the files of a folder first.

    `ignores` are those of the `.gitignore` files above, the innermost first.
    """
    ignore = root / below / ".gitignore"
    if ignore.is_file():
        lines = ignore.read_text(encoding="utf-8", errors="replace").splitlines()
        ignores = ((below, _patterns(lines)), *ignores)
    entries = sorted(os.scandir(root / below), key=lambda entry: entry.name)
    visible = [entry for entry in entries if not entry.name.startswith(".")]
    rules = (*exclude, *ignores)
    for entry in visible:
        if not entry.is_dir() and not _is_ignored(below + entry.name, rules):
            yield below + entry.name
    for entry in visible:
        folder = f"{below}{entry.name}/"
        skipped = entry.name in _SKIPPED or _is_ignored(folder, rules)
        if entry.is_dir(follow_symlinks=False) and not skipped:
            yield from _names(root, folder, exclude, ignores)


def _is_ignored(name: str, rules: Rules) -> bool:
    """Whether a file, or a folder (`a/b/`), is ignored."""
    said = (patterns.check_file(name.removeprefix(below)).include for below, patterns in rules)
    return next((each for each in said if each is not None), False)


def _patterns(lines: Iterable[str]) -> Any:
    return imported("pathspec").GitIgnoreSpec.from_lines(lines)


# Installed packages are not the library, and generated tables are not the code that people write.
_NOT_THE_LIBRARY = frozenset({"__pycache__", "encodings", "pydoc_data", "site-packages"})


def stdlib_parts(options: CorpusOptions) -> Iterator[SourceFiles]:
    """The parts of the running interpreter's own library, without generated tables and packages."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = (path.relative_to(root) for path in sorted(root.rglob("*.py")))
    names = (path.as_posix() for path in paths if _NOT_THE_LIBRARY.isdisjoint(path.parts))
    return _source_parts(root, (n for n in names if not belongs_to(n, options.without)), options)


def stdlib_documents(without: Collection[str] = ()) -> Iterator[Document]:
    """Yields the modules of the library, sorted by path, without some packages and their tests."""
    items = chain.from_iterable(stdlib_parts(CorpusOptions(without=tuple(without))))
    return (item for item in items if isinstance(item, Document))


def belongs_to(name: str, modules: Collection[str]) -> bool:
    """Whether a document of the standard library is a part, or a test, of one of `modules`."""
    names = [part.removesuffix(".py").removeprefix("test_") for part in name.split("/")]
    return any(name == m or name.startswith(f"{m}_") for name in names for m in modules)
