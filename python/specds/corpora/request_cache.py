"""Requests of a request cache as documents: the tokens that it has, of chosen tenants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specds._core import Memory, without_credentials
from specds.corpora.document import NOT_SAMPLED, CorpusOptions, Document, Item, Skipped, share

_ALL_BYTES = 12_000_000_000


@dataclass(frozen=True)
class StoredRequests:
    """The requests of a store, each a document of tokens.

    Attributes:
        store: Folder or URL.
        tokenizer: Fingerprint of the tokenizer of its tokens.
    """

    store: str
    tenants: tuple[str, ...]
    sample: float
    vocab_size: int
    tokenizer: str
    num_bytes: int
    state: str

    def __iter__(self) -> Iterator[Item]:
        memory = Memory.open(
            self.store, self.vocab_size, max_bytes=_ALL_BYTES, tokenizer=self.tokenizer
        )
        name = without_credentials(self.store)
        for tenant in self.tenants:
            for number, tokens in enumerate(memory.texts(tenant)):
                place = f"{name}:{tenant}:{number}" if tenant else f"{name}:{number}"
                if self.sample < 1 and share(tokens.tobytes()) >= self.sample:
                    yield Skipped(place, NOT_SAMPLED, tokens.nbytes)
                else:
                    yield Document(place, "", tokens.nbytes, token_ids=tokens)


def is_request_cache(spec: str) -> bool:
    """Return whether a path is the URL of a store, or a folder that is one or has tenants'."""
    is_named = "://" in spec or spec.endswith("{tenant}")
    return is_named or any(Path(spec).glob("head-" + "[0-9]" * 12))


def stored_requests(spec: str, options: CorpusOptions) -> tuple[StoredRequests, ...]:
    """Return the stores at a folder or URL that may have requests of the chosen tenants."""
    parts = []
    for store in Memory.stores_at(spec, options.tenants):
        about = Memory.info(store)
        counts = ("num_texts", "num_tokens", "num_deletions")
        state = f"{without_credentials(store)} {[about[count] for count in counts]}"
        size, tokenizer = about["vocab_size"], about["tokenizer"]
        chosen = (options.tenants, options.sample)
        parts.append(
            StoredRequests(store, *chosen, size, tokenizer, 4 * about["num_tokens"], state)
        )
    return tuple(parts)
