"""Verification backend `native`: forward passes of the core over the blocks of a GGUF file."""

import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds._core import TokenTree
from specds.generation.runner import UnsupportedModelError, Verification, Verifier
from specds.models.gguf_model import GgufCache, GgufModel
from specds.models.needs import require_cache_memory

# Tokens of a row that are read at once; longer passes take no less time for each.
_CHUNK = 256


class NativeRunner(Verifier):
    """Verification by the core: the logits of a token are the same to the bit in any pass.

    Memory beyond the cache does not grow with a prompt.
    """

    name = "native"
    token_cost = 0.13

    def __init__(self, model: GgufModel, *, num_rows: int = 1, **_: int) -> None:
        self._native = model
        self.setting = (
            type(self),
            self._native.weights.instructions,
            self._native.activations,
            self._native.cache_type,
            model.num_threads,
        )
        self.states = model.new_states(num_rows)
        # A pass that crosses this length computes the committed tokens again.
        self._short_context = self._native.weights.short_context
        # The rows of the states that the rows of the request have.
        self._rows = [*range(num_rows)]
        self._past: tuple[GgufCache, int] | None = None
        self._mark_at: int | None = None

    @classmethod
    def is_shape_invariant(cls, model: Any) -> bool:
        return True

    def pass_times(self) -> Sequence[tuple[int, float]]:
        return self._native.pass_times()

    def load(self, past: GgufCache) -> None:
        """Continue from the only row of a cache; a request that fails restores it.

        Recurrent states may return to an earlier position instead.
        """
        self._past = past, past.get_seq_length()
        self._mark_at = past.mark_at
        self.states = past.start(self._native, 1)

    def extend(self, past: GgufCache) -> GgufCache:
        """Return the cache of `load`, which has the states of the request."""
        self._past = None
        return past

    def prefill_rows(
        self, prompts: Sequence[Any], chunk_size: int | None = None
    ) -> NDArray[np.float32]:
        texts = [np.asarray(prompt[0]) for prompt in prompts]
        first_rows: dict[bytes, int] = {}
        originals = [first_rows.setdefault(text.tobytes(), row) for row, text in enumerate(texts)]
        logits: dict[int, NDArray[np.float32]] = {}
        num_read = 0
        num_tokens = sum(len(texts[row]) - self.states.length(row) for row in first_rows.values())

        def poll(share: float) -> None:
            self.report_prefill(num_read + int(share * size), num_tokens)

        lengths = [len(text) for text in texts]
        require_cache_memory(self._native, sum(lengths), sum(self.lengths))
        self.report_prefill(0, num_tokens)
        while waiting := [row for row in first_rows.values() if row not in logits]:
            inputs, ended = [], []
            for row in waiting:
                start = self.states.length(row)
                end = start + (chunk_size or _CHUNK)
                if self._mark_at is not None and start < self._mark_at:
                    end = min(end, self._mark_at)
                most = self._short_context
                if most is not None and start <= most < len(texts[row]):
                    end = max(end, most + 1)  # so that no token of a long prompt is read twice
                chunk = texts[row][start:end]
                is_last = start + len(chunk) == len(texts[row])
                inputs.append((row, chunk, None, int(is_last)))
                ended += [row] * is_last
            size = sum(len(chunk) for _, chunk, *_ in inputs)
            logits |= zip(ended, self._native.compute(self.states, inputs, poll), strict=True)
            for row, chunk, *_ in inputs:
                self.states.commit(row, range(len(chunk)))
                if self.states.length(row) == self._mark_at:
                    self.states.mark(row)
            num_read += size
            self.report_prefill(num_read, num_tokens)
        for row, original in enumerate(originals):
            if row != original:
                self.states.copy(original, row)
        return np.stack([logits[original] for original in originals])

    def verify_rows(
        self, token_ids: Sequence[int], trees: Sequence[TokenTree]
    ) -> list[NDArray[np.float32]]:
        inputs: list[tuple[int, Any, Any, int]] = []
        for row, token, tree in zip(self._rows, token_ids, trees, strict=True):
            size = 1 + max(len(tree), self.least_nodes)
            tokens, parents = np.zeros(size, dtype=np.int64), np.full(size, -1, dtype=np.int64)
            tokens[0], tokens[1 : 1 + len(tree)] = token, tree.token_ids
            parents[1 : 1 + len(tree)] = tree.parents + 1  # others follow no token of the pass
            inputs.append((row, tokens, parents if size > 1 else None, size))
        logits = self._native.compute(self.states, inputs)
        starts = accumulate((size for *_, size in inputs), initial=0)
        # The last start is the end of all rows.
        rows = zip(starts, trees, strict=False)
        return [logits[start : start + 1 + len(tree)] for start, tree in rows]

    def commit_rows(self, paths: Sequence[Sequence[int]]) -> None:
        for row, path in zip(self._rows, paths, strict=True):
            self.states.commit(row, [0, *(1 + node for node in path)])

    def room(self, row: int) -> int:
        """The most depth of a row's next draft, which keeps to one side of the short context."""
        length = 1 + self.states.length(self._rows[row])
        most = self._short_context
        return sys.maxsize if most is None or length > most else most - length

    @property
    def lengths(self) -> list[int]:
        return [self.states.length(row) for row in self._rows]

    def committed(self) -> GgufCache:
        return self._native.cache_class(self.states)

    def leave(self, row: int) -> None:
        last = self._rows.pop()
        if row < len(self._rows):
            self._rows[row], last = last, self._rows[row]
        self.states.truncate(last, 0)

    def close(self) -> None:
        if self._past is not None:
            cache, length = self._past
            cache.rolled_back(length)


class NativeChainRunner(NativeRunner):
    """Verification by chains, for models with recurrent states, which no token is dropped from."""

    name = "native"
    takes_trees = False


def runner_of(model: GgufModel) -> type[NativeRunner]:
    """Return the backend that verifies drafts on a model of the core."""
    return NativeRunner if model.weights.takes_trees else NativeChainRunner


def require_native(verification: Verification) -> None:
    """Check that a `GgufModel` can be verified by this backend.

    Raises:
        UnsupportedModelError: It cannot.
    """
    of_class = isinstance(verification, type) and issubclass(verification, NativeRunner)
    if verification not in ("auto", NativeRunner.name) and not of_class:
        raise UnsupportedModelError(
            "GgufModel cannot verify drafts by that backend: the core computes it: use "
            "verification='native'"
        )
