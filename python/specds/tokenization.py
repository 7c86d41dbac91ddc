"""Tokenizers: told apart by fingerprint, run over batches of documents."""

from __future__ import annotations

import hashlib
import json
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from specds._core import Datastore


class TokenizerError(ValueError):
    """A tokenizer is not the one that a datastore was built with."""


def vocab_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """One more than the tokenizer's largest token id, added tokens included."""
    return max(tokenizer.get_vocab().values()) + 1


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """The SHA-256 (hex) of the vocabulary in id order: equal where the ids mean the same."""
    items = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(items).encode()).hexdigest()


def check_tokenizer(built: Datastore, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses a tokenizer other than the one that a datastore was built with.

    Raises:
        TokenizerError: The fingerprints differ.
    """
    if fingerprint(tokenizer) != built.tokenizer_fingerprint:
        raise TokenizerError(
            f"the datastore at {built.path} was built with the tokenizer "
            f"`{built.tokenizer_name}`, which has another vocabulary: use that "
            "one, or rebuild the datastore with `specds build --tokenizer`"
        )


def encode_batch(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Tokenises documents without special tokens, on all cores where the tokenizer is a fast one.

    Returns:
        All token ids, `uint32` of shape `(num_tokens,)`, and the number of tokens of each
        document, `int64` of shape `(num_documents,)`.
    """
    if getattr(tokenizer, "is_fast", False):
        encodings = tokenizer.backend_tokenizer.encode_batch_fast(
            list(texts), add_special_tokens=False
        )
        rows = [encoding.ids for encoding in encodings]
    else:
        rows = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    flat = np.fromiter(chain.from_iterable(rows), dtype=np.uint32, count=int(lengths.sum()))
    return flat, lengths
