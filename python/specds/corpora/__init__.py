"""Sources of documents: files, folders, datasets on the hub, the standard library.

Of the other folders, it imports only `specds.hub`.
"""

from typing import TYPE_CHECKING

from specds._lazy import lazy
from specds.corpora.document import Corpus, CorpusError, CorpusOptions, Document, Part, Skipped

if TYPE_CHECKING:
    from specds.corpora.folder import belongs_to, stdlib_documents
    from specds.corpora.open import open_corpora, open_corpus
    from specds.corpora.rendering import render_with

__all__ = [
    "Corpus",
    "CorpusError",
    "CorpusOptions",
    "Document",
    "Part",
    "Skipped",
    "belongs_to",
    "open_corpora",
    "open_corpus",
    "render_with",
    "stdlib_documents",
]

__getattr__ = lazy(__name__, "corpora.folder", "corpora.rendering", "corpora.open")
