"""Corpora: parts that yield documents, and the items that were left out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class CorpusError(ValueError):
    """A corpus cannot be read; the message names the place and a remedy."""


@dataclass(frozen=True)
class Document:
    """One text; matches do not cross its ends.

    Attributes:
        name: Its place: ``a/b.py``, ``answers.jsonl:17``.
        text: The text; never empty, and always encodable as UTF-8.
        num_bytes: Bytes read for it, for progress; a compressed file counts with its size on disk.
        unwritten: Fields of its conversation with text that `text` lacks.
        changes: What was normalized in it: ``UTF-16``, ``byte order mark``, ``CRLF line ends``.
        token_ids: Its tokens, if it has these in place of a text.
    """

    name: str
    text: str
    num_bytes: int
    unwritten: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    token_ids: NDArray[np.uint32] | None = None


@dataclass(frozen=True)
class Skipped:
    """An item that was left out, and the reason: ``not text``, ``empty``, ``bad row: ...``."""

    name: str
    reason: str
    num_bytes: int = 0


NOT_SAMPLED = "not in the sample"
"""The one reason that a user asked for."""

COPY = "duplicate"
"""The reason of documents that another worker adds."""

Item: TypeAlias = "Document | Skipped"


class Part(Protocol):
    """A part of a corpus, such as a file; it can be pickled and read in another process.

    `state` identifies its present content: a stopped build resumes only if it is unchanged.
    """

    @property
    def num_bytes(self) -> int: ...

    @property
    def state(self) -> str: ...

    def __iter__(self) -> Iterator[Item]: ...


@dataclass(frozen=True)
class Corpus:
    """Documents to read in a fixed order, as often as wanted; parts may be read in parallel.

    Attributes:
        name: Name of the corpus in the manifest of a datastore.
    """

    name: str
    parts: tuple[Part, ...]

    @cached_property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    def __iter__(self) -> Iterator[Item]:
        return chain.from_iterable(self.parts)


@dataclass(frozen=True)
class CorpusOptions:
    """Options of reading a corpus; the command line has them too.

    Attributes:
        text_field: Field of a row with its text; by default the first one with a usual name.
        messages_field: Field of a row with a conversation; by default the first one with a usual
            name.
        chat_template: File of a chat template in Jinja that formats conversations; by default the
            tokenizer's.
        language: Programming language in ``the-stack``, such as python.
        config: Configuration of a dataset on the hub.
        split: Split of a dataset on the hub; by default ``train``, or that of a named corpus.
        revision: Branch, tag or commit of a dataset on the hub.
        on_bad_row: Treatment of unreadable rows: ``fail`` stops with an error that names the place,
            ``skip`` counts them.
        sample: Fraction of documents to keep, selected by a hash of the text: the selection does
            not depend on the order.
        include: Patterns as in a ``.gitignore``; only matching files of a folder are read.
        exclude: Patterns as in a ``.gitignore``; matching files of a folder are left out.
        tenants: Tenants whose requests of a request cache are read, which all users of the
            datastore can draft from; by default requests without a tenant.
        without: Modules that ``stdlib`` leaves out together with their tests.

    """

    text_field: str | None = None
    messages_field: str | None = None
    chat_template: str | None = None
    language: str | None = None
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    on_bad_row: Literal["fail", "skip"] = "fail"
    sample: float = 1.0
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ("",)
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.text_field is not None and self.messages_field is not None:
            raise ValueError("text_field and messages_field are mutually exclusive")
        if self.on_bad_row not in ("fail", "skip"):
            raise ValueError(f"on_bad_row must be `fail` or `skip`: {self.on_bad_row!r}")
        if not 0 < self.sample <= 1:
            raise ValueError(f"sample must be above 0 and at most 1: {self.sample}")

    def describe(self) -> str:
        """Return the options that differ from the defaults, for the name: `` split=test``."""
        text = ""
        for name, default in ((field.name, field.default) for field in fields(self)):
            value = getattr(self, name)
            if value != default:
                text += f" {name}={','.join(value) if isinstance(value, tuple) else value}"
        return text


def sift(items: Iterable[Item], options: CorpusOptions) -> Iterator[Item]:
    """Leave out the documents that are empty or not in the sample, and repair invalid Unicode."""
    for item in items:
        if isinstance(item, Skipped):
            yield item
            continue
        document, content = _encodable(item)
        if not document.text.strip():
            yield Skipped(item.name, "empty", item.num_bytes)
        elif options.sample < 1 and share(content) >= options.sample:
            yield Skipped(item.name, NOT_SAMPLED, item.num_bytes)
        else:
            yield document


def _encodable(document: Document) -> tuple[Document, bytes]:
    """The document, without the halves of characters that JSON can hold, and its UTF-8."""
    try:
        return document, document.text.encode()
    except UnicodeEncodeError:
        text = document.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return replace(document, text=text), text.encode()


def share(content: bytes) -> float:
    """A number in [0, 1) that depends on the content alone."""
    digest = hashlib.blake2b(content, digest_size=6).digest()
    return float(int.from_bytes(digest, "little") / 2**48)
