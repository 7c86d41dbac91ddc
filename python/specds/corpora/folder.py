"""Folders as corpora: files of rows, source code, and the standard library."""

import os
import re
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from specds.corpora.document import CorpusError, CorpusOptions, Document, Item, Part, Skipped, sift
from specds.corpora.files import DataFile, digest, file_state, kind, local_file
from specds.corpora.rendering import Render
from specds.corpora.texts import NotTextError, is_notebook, text_of

_SKIPPED = frozenset({"__pycache__", "build", "dist", "node_modules", "target", "venv"})
_ABOUT_DATA = ("readme", "license", "dataset_info", "state.json")
_PART_BYTES = 1 << 24
# A larger file in a folder is data or generated code.
_MAX_FILE_BYTES = 1 << 20
_TOO_LARGE = "larger than 1 MiB"
# Its outputs, such as pictures, are not part of its text.
_MAX_NOTEBOOK_BYTES = 1 << 26


@dataclass(frozen=True)
class SourceFiles:
    """Files of a folder of source code, by their relative paths."""

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
        if size > (_MAX_NOTEBOOK_BYTES if is_notebook(name) else _MAX_FILE_BYTES):
            return Skipped(name, _TOO_LARGE, size)
        try:
            found = text_of(name, path.read_bytes())
        except NotTextError as error:
            return Skipped(name, str(error), size)
        if len(found.text) > _MAX_FILE_BYTES:
            return Skipped(name, _TOO_LARGE, size)
        return Document(name, found.text, size, changes=found.changes)


def folder_parts(root: Path, options: CorpusOptions, render: Render) -> Iterator[Part]:
    """Return the parts of a folder: one for each file of rows, then source code.

    The readme and license of a folder of rows are left out. Next to source code, a `.json` or
    `.csv` file whose first row has no text, such as a project's settings, counts as source code.
    Hidden files, folders made by builds, and files that a `.gitignore` matches are left out.
    """
    exclude: Rules = (("", _asked_patterns(options.exclude)),) if options.exclude else ()
    names = list(_names(root, exclude))
    if options.include:
        names = [*filter(_asked_patterns(options.include).match_file, names)]
    content = [name for name in names if not name.lower().startswith(_ABOUT_DATA)]
    source = [name for name in content if kind(name) == "text"]
    if content and not source:
        return (local_file(root / name, options, render) for name in content)
    parts = [local_file(root / name, options, render) for name in names if kind(name) != "text"]
    data = [part for part in parts if kind(part.name) not in ("json", "csv") or _holds_rows(part)]
    read = {part.path for part in data}
    left = (name for name in names if root / name not in read)
    return chain(data, _source_parts(root, left, options))


def _holds_rows(part: DataFile) -> bool:
    first = replace(part, options=replace(part.options, on_bad_row="fail", sample=1))
    try:
        return next(iter(first), None) is not None
    except (CorpusError, OSError):
        return False


def _source_parts(
    root: Path, names: Iterable[str], options: CorpusOptions
) -> Iterator[SourceFiles]:
    group: list[str] = []
    num_bytes = 0
    for name in names:
        path = root / name
        size = path.stat().st_size if path.is_file() else 0
        group.append(name)
        num_bytes += size
        if num_bytes >= _PART_BYTES:
            yield SourceFiles(root, tuple(group), num_bytes, options)
            group, num_bytes = [], 0
    if group:
        yield SourceFiles(root, tuple(group), num_bytes, options)


Rules: TypeAlias = "tuple[tuple[str, Any], ...]"
"""Folders and the patterns that hold below each: of two that say something, the first counts."""


def _names(root: Path, exclude: Rules) -> Iterator[str]:
    """The paths below `root` of the files to read, sorted, the files of a folder first."""
    waiting: list[tuple[str, Rules]] = [("", ())]
    while waiting:
        below, ignores = waiting.pop()
        ignore = root / below / ".gitignore"
        if ignore.is_file():
            lines = ignore.read_text(encoding="utf-8", errors="replace").splitlines()
            # The rules of the innermost `.gitignore` stand first.
            ignores = ((below, _found_patterns(lines, ignore)), *ignores)
        entries = sorted(os.scandir(root / below), key=lambda entry: entry.name)
        visible = [entry for entry in entries if not entry.name.startswith(".")]
        rules = (*exclude, *ignores)
        for entry in visible:
            if not _is_folder(entry) and not _is_ignored(below + entry.name, rules):
                yield below + entry.name
        for entry in reversed(visible):
            folder = f"{below}{entry.name}/"
            skipped = entry.name in _SKIPPED or entry.is_symlink()
            if _is_folder(entry) and not skipped and not _is_ignored(folder, rules):
                waiting.append((folder, ignores))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_ignored(name: str, rules: Rules) -> bool:
    """Return true if a file or a folder (`a/b/`) is ignored."""
    said = (patterns.check_file(name.removeprefix(below)).include for below, patterns in rules)
    return next((each for each in said if each is not None), False)


# A name of 255 characters is compared with three stars in 0.1 s at most; each further star
# multiplies that by some 20.
_MOST_STARS = 3


def _git_ignore_spec() -> Any:
    from pathspec import GitIgnoreSpec  # it takes longer to import than the rest of this module

    return GitIgnoreSpec


def _asked_patterns(lines: Iterable[str]) -> Any:
    lines = [_with_few_stars(line, "--include or --exclude") for line in lines]
    try:
        return _git_ignore_spec().from_lines(lines)
    except (re.error, ValueError) as error:
        raise CorpusError(f"--include or --exclude: {error}") from error


def _found_patterns(lines: Iterable[str], file: Path) -> Any:
    """The patterns of a `.gitignore`; invalid lines are skipped, as git does."""
    spec = _git_ignore_spec()
    patterns = []
    for line in lines:
        line = _with_few_stars(line, file)
        with suppress(re.error, ValueError):
            patterns += spec.from_lines([line]).patterns
    return spec(patterns)


def _with_few_stars(line: str, place: object) -> str:
    names = line.split("/")
    stars = max(names.count("**"), *(len(re.findall(r"\*+", name)) for name in names))
    if stars > _MOST_STARS:
        raise CorpusError(
            f"{place}: the pattern `{line}` has {stars} stars, of which {_MOST_STARS} at most are "
            "matched in a short time: write several patterns"
        )
    return line


# Installed packages are not the library, and generated tables are not the code that people write.
_NOT_THE_LIBRARY = frozenset({"__pycache__", "encodings", "pydoc_data", "site-packages"})


def stdlib_parts(options: CorpusOptions) -> Iterator[SourceFiles]:
    """Return the parts of the standard library, without generated tables and installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = (path.relative_to(root) for path in sorted(root.rglob("*.py")))
    names = (path.as_posix() for path in paths if _NOT_THE_LIBRARY.isdisjoint(path.parts))
    return _source_parts(root, (n for n in names if not belongs_to(n, options.without)), options)


def stdlib_documents(without: Collection[str] = ()) -> Iterator[Document]:
    """Yield the modules of the library, sorted by path, without some packages and their tests."""
    items = chain.from_iterable(stdlib_parts(CorpusOptions(without=tuple(without))))
    return (item for item in items if isinstance(item, Document))


def belongs_to(name: str, modules: Collection[str]) -> bool:
    """Return whether a standard library document belongs to one of `modules` or its tests."""
    names = [part.removesuffix(".py").removeprefix("test_") for part in name.split("/")]
    return any(name == m or name.startswith(f"{m}_") for name in names for m in modules)
