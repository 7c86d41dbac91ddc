"""Builds a datastore: documents of a corpus -> tokens -> suffix arrays on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specds.build.local import open_builder, tokenise
from specds.build.options import BuildOptions
from specds.build.ray import build_on_ray
from specds.build.report import BuildReport, Clock, peak_memory_bytes

if TYPE_CHECKING:
    from os import PathLike

    from transformers import PreTrainedTokenizerBase

    from specds.build.report import Progress
    from specds.corpora import Corpus


def build_datastore(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    out: str | PathLike[str],
    options: BuildOptions | None = None,
    *,
    tokenizer_name: str | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Builds the datastore of a corpus at `out`, or adds the corpus to the one there.

    Whatever goes wrong, `out` is left as it was; the same call then goes on where the last one was
    ended.

    Args:
        corpus: What to index, from `specds.open_corpus`.
        tokenizer: A transformers tokenizer; a fast one uses all cores.
        out: The folder to make.
        options: How to build.
        tokenizer_name: What to call the tokenizer in the manifest; its own name by default.
        progress: Told how far the build has come.

    Raises:
        FileExistsError: `out` exists and may not be there.
        CorpusError: A document cannot be read.
        ValueError: The corpus holds no tokens, or the datastore is of another tokenizer.
        BlockingIOError: Another process builds at `out`.
        OSError: The disk is full, or `out` cannot be written.
    """
    options = options or BuildOptions()
    progress = progress or _silent
    if options.engine == "ray":
        return build_on_ray(corpus, tokenizer, out, options, tokenizer_name, progress)
    with open_builder(corpus, tokenizer, out, options, tokenizer_name) as builder:
        num_taken_up, before = builder.num_given, Clock.now()
        read = tokenise(corpus, tokenizer, builder, options, progress)
        tokenised = Clock.now()
        added = (builder.num_documents, builder.num_tokens, builder.num_duplicates)
        datastore = builder.finish(progress)
    indexed = Clock.now()
    return BuildReport(
        path=str(out),
        num_documents=datastore.num_documents,
        num_tokens=datastore.num_tokens,
        num_shards=datastore.num_shards,
        num_bytes=datastore.num_bytes,
        num_added_documents=added[0],
        num_added_tokens=added[1],
        num_duplicates=added[2],
        num_taken_up=num_taken_up,
        text_bytes=read.num_bytes,
        tokenise_s=tokenised.wall_s - before.wall_s,
        index_s=indexed.wall_s - tokenised.wall_s,
        tokenise_cpu_s=tokenised.cpu_s - before.cpu_s,
        index_cpu_s=indexed.cpu_s - tokenised.cpu_s,
        peak_memory_bytes=peak_memory_bytes(),
        skipped=read.skipped,
    )


def _silent(stage: str, done: int, total: int | None, **counts: int) -> None:
    """The progress that nobody watches."""
