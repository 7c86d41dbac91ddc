"""Where documents come from: the standard library, folders, text and JSONL files."""

from __future__ import annotations

import json
import os
import sysconfig
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

MAX_FILE_BYTES = 1 << 20
"""A larger file in a folder is data or generated code; it is skipped and counted."""

# Installed packages are not the library, and generated tables are not the code that people write.
_STDLIB_SKIPPED = frozenset({"__pycache__", "encodings", "pydoc_data", "site-packages"})
_FOLDERS_SKIPPED = frozenset({"__pycache__", "build", "dist", "node_modules", "target", "venv"})


class CorpusError(ValueError):
    """A corpus cannot be read; the message names the place and the way out."""


@dataclass(frozen=True)
class Document:
    """One text that no match may reach across, its name in reports, and its size on disk."""

    name: str
    text: str
    num_bytes: int


@dataclass(frozen=True)
class Corpus:
    """Documents to read once, in a fixed order.

    Attributes:
        name: What the manifest of a datastore calls this corpus.
        documents: The documents; reading them may raise `CorpusError`.
        num_bytes: The size of everything that will be read, for progress.
        skipped: What was left out while reading, counted by reason.
    """

    name: str
    documents: Iterable[Document]
    num_bytes: int
    skipped: Counter[str] = field(default_factory=Counter)


def open_corpus(spec: str, *, text_field: str = "text", without: Collection[str] = ()) -> Corpus:
    """Opens a corpus by its name or path.

    Args:
        spec: ``stdlib`` (the running interpreter's library), a folder of source files, a
            ``.jsonl`` file with one document a line, or any other text file as one document.
        text_field: The field of a JSONL row that holds the text.
        without: Modules that ``stdlib`` leaves out together with their tests.

    Raises:
        CorpusError: There is no such corpus.
    """
    if spec == "stdlib":
        return _stdlib(without)
    path = Path(spec)
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise CorpusError(
            f"no corpus `{spec}`: expected `stdlib`, a folder, a .jsonl file or a text file"
        )
    size = path.stat().st_size
    if path.suffix == ".jsonl":
        return Corpus(str(path), _jsonl_rows(path, text_field), size)
    return Corpus(str(path), _text_file(path), size)


def stdlib_documents(without: Collection[str] = ()) -> Iterator[Document]:
    """Yields the running interpreter's own library, one module at a time, sorted by path.

    Leaves out generated tables and installed packages.

    Args:
        without: Modules or packages to leave out together with their tests: ``{"json"}`` leaves
            out ``json/decoder.py`` and ``test/test_json/test_decode.py``.
    """
    for name, path in _stdlib_files(without):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield Document(name, text, path.stat().st_size)


def _stdlib(without: Collection[str]) -> Corpus:
    num_bytes = sum(path.stat().st_size for _, path in _stdlib_files(without))
    return Corpus("stdlib", stdlib_documents(without), num_bytes)


def _stdlib_files(without: Collection[str]) -> Iterator[tuple[str, Path]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        name = "/".join(parts)
        if _STDLIB_SKIPPED.isdisjoint(parts) and not belongs_to(name, without):
            yield name, path


def belongs_to(name: str, modules: Collection[str]) -> bool:
    """Whether a document of the standard library is a part, or a test, of one of `modules`."""
    names = [part.removesuffix(".py").removeprefix("test_") for part in name.split("/")]
    return any(name == m or name.startswith(f"{m}_") for name in names for m in modules)


def _folder(root: Path) -> Corpus:
    files: list[tuple[Path, int]] = []
    skipped: Counter[str] = Counter()
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and f not in _FOLDERS_SKIPPED
        )
        for path in sorted(Path(folder, name) for name in names if not name.startswith(".")):
            size = path.stat().st_size if path.is_file() else -1
            if size < 0:
                skipped["not a regular file"] += 1
            elif size > MAX_FILE_BYTES:
                skipped["larger than 1 MiB"] += 1
            else:
                files.append((path, size))
    num_bytes = sum(size for _, size in files)
    return Corpus(str(root), _folder_documents(root, files, skipped), num_bytes, skipped)


def _folder_documents(
    root: Path, files: list[tuple[Path, int]], skipped: Counter[str]
) -> Iterator[Document]:
    for path, size in files:
        text = _decode(path.read_bytes())
        if text is None:
            skipped["not text"] += 1
        else:
            yield Document(path.relative_to(root).as_posix(), text, size)


def _text_file(path: Path) -> Iterator[Document]:
    content = path.read_bytes()
    text = _decode(content)
    if text is None:
        raise CorpusError(f"{path} is not UTF-8 text: give a text file or convert it first")
    yield Document(path.name, text, len(content))


def _jsonl_rows(path: Path, text_field: str) -> Iterator[Document]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                text = _text_of_row(line, f"{path}:{number}", text_field)
                yield Document(f"{path.name}:{number}", text, len(line))


def _text_of_row(line: bytes, place: str, text_field: str) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise CorpusError(f"{place} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise CorpusError(f"{place} holds a {type(row).__name__}, expected an object a line")
    text = row.get(text_field)
    if not isinstance(text, str):
        fields = ", ".join(f"`{key}`" for key in row)
        raise CorpusError(
            f"{place} has no text in `{text_field}`; its fields: {fields} (choose one by --field)"
        )
    return text


def _decode(content: bytes) -> str | None:
    """The content as text; None where it is binary (a zero byte is UTF-8, but never text)."""
    if b"\0" in content:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None
