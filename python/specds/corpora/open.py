"""Opening of corpora by name or path."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from glob import has_magic
from itertools import chain
from pathlib import Path

from specds._core import without_credentials
from specds.corpora.document import Corpus, CorpusError, CorpusOptions, Part
from specds.corpora.files import kind, local_file
from specds.corpora.folder import folder_parts, stdlib_parts
from specds.corpora.hub import BY_LANGUAGE, NAMED, HubDataset, hub_corpus
from specds.corpora.rendering import Render, plain
from specds.corpora.request_cache import is_request_cache, stored_requests


def open_corpus(
    spec: str, options: CorpusOptions | None = None, *, render: Render | None = None
) -> Corpus:
    """Open a corpus by its name or path.

    Args:
        spec: One of these; the first that matches is used:

            - ``stdlib``, the standard library of the running interpreter; ``ultrachat``,
              ``ultrachat-200k``, ``sharegpt`` or ``the-stack``, on the Hugging Face hub;
            - a file of rows, `.parquet`, `.arrow`, `.jsonl`, `.json` or `.csv`, such as a log of
              the model's own answers; any other file is one document, a notebook its cells; all but
              `.parquet` and `.arrow` also compressed: `.gz`, `.zst`;
            - a folder: files of rows row by row, others as source;
            - a pattern of files: ``logs/*.jsonl.gz``;
            - a request cache, a folder or a URL such as ``s3://bucket/fleet``: the requests of
              `options.tenants`, as they were tokenized;
            - any other dataset on the hub: ``org/name``; those of The Stack by language.
        options: Options of reading.
        render: Converts a conversation to text, as `render_with` does with a tokenizer's chat
            template. By default, the messages are joined, one per line.

    Raises:
        CorpusError: There is no such corpus, or it does not support an option.
        ImportError: A required package is not installed.
    """
    options = options or CorpusOptions()
    render = render or plain
    path = Path(spec)
    known = NAMED.get(spec) or (None if path.exists() else BY_LANGUAGE.get(spec))
    if options.language is not None and not (known and known.by_language):
        names = ", ".join(f"`{name}`" for name in ("the-stack", *BY_LANGUAGE))
        raise CorpusError(f"a language can be chosen of {names} alone, not of `{spec}`")
    if known:
        return hub_corpus(spec, known, options, render)
    parts: Iterable[Part] | None = None
    if spec == "stdlib":
        parts = stdlib_parts(options)
    elif is_request_cache(spec):
        spec, parts = without_credentials(spec), stored_requests(spec, options)
    elif spec and path.is_dir():
        parts = folder_parts(path, options, render)
    elif spec and path.exists():
        parts = [local_file(path, options, render)]
    elif has_magic(spec):
        parts = _matching(spec, options, render)
    if parts is not None:
        # Names of files need not be Unicode, but names in manifests are.
        name = os.fsencode(spec).decode(errors="replace")
        return Corpus(name + options.describe(), tuple(parts))
    is_file = kind(spec) != "text" or Path(spec).suffix in (".txt", ".md", ".gz", ".zst", ".py")
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", spec) and not is_file:
        return hub_corpus(spec, HubDataset(spec), options, render)
    raise CorpusError(
        f"no corpus `{spec}`: expected {', '.join(f'`{name}`' for name in ('stdlib', *NAMED))}, "
        "a file, a folder, a pattern such as `logs/*.jsonl`, or a dataset of the hub (`org/name`)"
    )


def open_corpora(
    specs: Iterable[str], options: CorpusOptions | None = None, *, render: Render | None = None
) -> Corpus:
    """Open several corpora as one, which is read in this order (see `open_corpus`)."""
    opened = [open_corpus(spec, options, render=render) for spec in specs]
    parts = tuple(chain.from_iterable(corpus.parts for corpus in opened))
    return Corpus(" + ".join(corpus.name for corpus in opened), parts)


def _matching(pattern: str, options: CorpusOptions, render: Render) -> list[Part]:
    path = Path(pattern)
    matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
    files = sorted(match for match in matches if match.is_file())
    if not files:
        raise CorpusError(f"no file matches `{pattern}`")
    return [local_file(path, options, render) for path in files]
