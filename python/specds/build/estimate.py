"""What will a build take? Tokenises and indexes a sample of the corpus to tell."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from specds._core import DatastoreBuilder, fit_weights
from specds.build.options import BuildOptions
from specds.build.report import peak_memory_bytes
from specds.corpora import Corpus, Document
from specds.tokenization import encode_batch, vocab_size

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_READ_BYTES = 32 << 20
_SAMPLE_BYTES = 4 << 20
_SAMPLED_PARTS = 8

# Time to fit the prior to a token, measured on 60 M tokens. It is fitted to at most one token in
# 16, and to none where these are too few.
_PRIOR_S = 20e-6
_PRIOR_SHARE = 16
_LEAST_PRIOR_TOKENS = 1024

# What sorting takes however small the shard.
_SORTING_BYTES = 2 << 20

# A sample fits the processor's caches and a shard does not: measured on 60 M tokens.
_SORT_SLOWDOWN = 2.0


@dataclass(frozen=True)
class BuildEstimate:
    """What a build is expected to take.

    Attributes:
        memory_bytes: The most memory of the process.
        disk_bytes: Size of the datastore.
        tokens_per_s: Tokens read and tokenised a second.
    """

    num_tokens: int
    num_documents: int
    seconds: float
    memory_bytes: int
    disk_bytes: int
    num_shards: int
    bytes_per_token: float
    tokens_per_s: float
    sampled_documents: int
    sampled_tokens: int


def estimate_build(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, options: BuildOptions | None = None
) -> BuildEstimate:
    """Tells from a sample, a few megabytes of up to eight parts, what a build would take.

    Raises:
        CorpusError: A document of the sample cannot be read.
        ValueError: The sample holds no tokens.
    """
    options = options or BuildOptions()
    started = time.perf_counter()
    documents, stride = _sample(corpus)
    read_s = (time.perf_counter() - started) / stride
    started = time.perf_counter()
    tokens, lengths = encode_batch(tokenizer, [document.text for document in documents])
    tokenise_s = read_s + time.perf_counter() - started
    sampled = len(tokens) + len(lengths)

    started = time.perf_counter()
    size = vocab_size(tokenizer)
    with tempfile.TemporaryDirectory(prefix="specds-estimate-") as folder:
        builder = DatastoreBuilder(
            Path(folder, "sample"), vocab_size=size, separator=size, prior_tokens=0
        )
        builder.add_documents(tokens, lengths)
        num_bytes = builder.finish().num_bytes
    index_s = time.perf_counter() - started

    expected = _expected_tokens(corpus, options, documents, sampled)
    # The tables by token and the manifests are there once, however large the corpus.
    fixed = 4 * size + 1_500
    per_token = 8 if size > 1 << 16 else 4
    prior_tokens = min(options.prior_tokens, expected // _PRIOR_SHARE)
    prior_bytes = len(fit_weights(None, [])) if prior_tokens >= _LEAST_PRIOR_TOKENS else 0
    shard = min(
        expected,
        options.max_shard_tokens or expected,
        max(options.sorting_memory() - _SORTING_BYTES, 2 * per_token) // per_token,
    )
    # A position takes as many bits as the number of a shard's tokens.
    wider = (shard.bit_length() - sampled.bit_length()) / 8
    bytes_per_token = max(num_bytes - fixed, 0) / sampled + wider
    return BuildEstimate(
        num_tokens=expected,
        num_documents=round(len(documents) * expected / sampled),
        seconds=expected * (tokenise_s + _SORT_SLOWDOWN * index_s) / sampled
        + prior_tokens * _PRIOR_S,
        memory_bytes=peak_memory_bytes() + _SORTING_BYTES + shard * per_token,
        disk_bytes=round(expected * bytes_per_token + fixed) + prior_bytes,
        num_shards=-(-expected // max(shard, 1)),
        bytes_per_token=bytes_per_token,
        tokens_per_s=sampled / tokenise_s,
        sampled_documents=len(documents),
        sampled_tokens=sampled,
    )


def _sample(corpus: Corpus) -> tuple[list[Document], int]:
    """Documents at an even stride, from the beginnings of parts spread evenly; and their number."""
    parts = corpus.parts[:: -(-len(corpus.parts) // _SAMPLED_PARTS)]
    documents: list[Document] = []
    held, seen, stride = 0, 0, 1
    for part in parts:
        num_read = 0
        for item in islice(part, _READ_BYTES):
            if not isinstance(item, Document):
                continue
            if seen % stride == 0:
                documents.append(item)
                held += len(item.text)
            if held > _SAMPLE_BYTES and len(documents) > 1:
                documents, stride = documents[::2], 2 * stride
                held = sum(len(document.text) for document in documents)
            seen += 1
            num_read += len(item.text)
            if num_read >= _READ_BYTES // len(parts):
                break
    return documents, stride


def _expected_tokens(
    corpus: Corpus, options: BuildOptions, documents: list[Document], sampled: int
) -> int:
    read = sum(document.num_bytes for document in documents)
    expected = round(sampled * corpus.num_bytes / max(read, 1))
    if options.max_documents is not None:
        expected = min(expected, round(sampled * options.max_documents / len(documents)))
    return expected if options.max_tokens is None else min(expected, options.max_tokens)
