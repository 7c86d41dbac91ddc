"""Builds of datastores from corpora or from token ids."""

import time
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from specds._core import Datastore, DatastoreBuilder, was_killed_after_publishing
from specds.corpora import Corpus, open_corpus, render_with
from specds.indexing.local import open_builder, tokenize_corpus, tokenizer_metadata
from specds.indexing.options import BuildOptions
from specds.indexing.ray import build_on_ray
from specds.indexing.report import BuildReport, IngestStats, Progress
from specds.models.tokenization import Tokenizer


def build_datastore(
    corpus: Corpus | str,
    tokenizer: Tokenizer,
    out: str | PathLike[str],
    options: BuildOptions | None = None,
    *,
    tokenizer_name: str | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Build the datastore of a corpus at `out`, or add the corpus to the one there.

    If the build fails, `out` is unchanged, and repeating the call resumes it.

    Args:
        corpus: A name or path for `specds.corpora.open_corpus`, or its result.
        tokenizer: Tokenizer of transformers; a fast one uses all cores.
        tokenizer_name: Name of the tokenizer in the manifest; by default its own name.

    Raises:
        FileExistsError: `out` exists and is not to be replaced.
        CorpusError: A document cannot be read.
        ValueError: The corpus has no tokens, or the datastore has another tokenizer.
        BlockingIOError: Another process is building at `out`.
        OSError: The disk is full, or `out` cannot be written.
    """
    if isinstance(corpus, str):
        corpus = open_corpus(corpus, render=render_with(tokenizer))
    options = options or BuildOptions()
    progress = progress or (lambda *_, **__: None)
    started = time.perf_counter()
    if published := _published_by_killed_build(corpus, tokenizer, Path(out), options):
        num_documents = published.num_documents
        return BuildReport.of(out, published, IngestStats(), num_documents, started, started)
    if options.engine == "ray":
        return build_on_ray(corpus, tokenizer, out, options, tokenizer_name, progress)
    with open_builder(corpus, tokenizer, out, options, tokenizer_name) as builder:
        num_resumed, started = builder.num_given, time.perf_counter()
        read = tokenize_corpus(corpus, tokenizer, builder, options, progress)
        if not (builder.num_tokens or options.append):
            raise ValueError(read.nothing())
        tokenized = time.perf_counter()
        datastore = builder.finish(progress)
    return BuildReport.of(out, datastore, read, num_resumed, started, tokenized)


def _published_by_killed_build(
    corpus: Corpus, tokenizer: Tokenizer, out: Path, options: BuildOptions
) -> Datastore | None:
    """Return the datastore of an equal build that was killed after it published; clean up."""
    if options.append or options.overwrite or not was_killed_after_publishing(out):
        return None
    metadata = tokenizer_metadata(tokenizer)
    datastore = Datastore(out)
    built = (datastore.corpus, datastore.commands, datastore.tokenizer_fingerprint)
    if built != ([corpus.name], [*options.commands], metadata["tokenizer_fingerprint"]):
        return None
    with DatastoreBuilder(out, **metadata, append=True):
        pass  # it locks the target, and removes what a killed build has left
    return datastore


def build_from_token_ids(
    documents: Iterable[ArrayLike],
    out: str | PathLike[str],
    options: BuildOptions | None = None,
    *,
    vocab_size: int,
    separator: int | None = None,
    tokenizer_name: str = "",
    tokenizer_fingerprint: str = "",
) -> Datastore:
    """Build a datastore from documents of token ids, without tokenizer and torch.

    Args:
        documents: Token ids of each document, any integer dtype, shape `(n,)`; read one by one.
        separator: Token between documents; by default an id outside the vocabulary.
        tokenizer_name: Name of the tokenizer, for people.
        tokenizer_fingerprint: Result of `specds.models.tokenization.fingerprint`, for checks.

    Raises:
        FileExistsError: `out` exists and is not to be replaced.
        ValueError: There are no tokens, or one is outside the vocabulary.
    """
    with DatastoreBuilder(
        out,
        vocab_size=vocab_size,
        separator=vocab_size if separator is None else separator,
        tokenizer_name=tokenizer_name,
        tokenizer_fingerprint=tokenizer_fingerprint,
        **(options or BuildOptions()).for_core(),
    ) as builder:
        for document in documents:
            builder.add_documents(document, [len(np.asarray(document))])
        return builder.finish()
