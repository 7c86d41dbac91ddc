"""Keys and values of finished requests, from which later ones with the same beginning continue."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds.models.gguf_model import GgufModel

_LEAST_SHARED = 16
"""Fewer tokens are read again, so that another text keeps its states."""
TokenIds = NDArray[np.int64]


@dataclass
class TextSlot:
    """A row of the cache.

    Attributes:
        row: Its number.
        tokens: The tokens that its states are of, or will be of.
        tenant: Whose they are.
        is_used: Whether a request computes in it.
        last_used: Grows with each use.
        begun_at: When its last request began, in seconds since 1970.
    """

    row: int
    tokens: TokenIds = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    tenant: str = ""
    is_used: bool = False
    last_used: int = 0
    begun_at: float = 0.0


class Slots:
    """The rows of a cache, by tenant.

    Args:
        num_rows: The most texts, those that are being computed included.
        max_bytes: The most bytes of finished texts.
        is_shared: Whether tenants continue from each other's texts.
        deleted_at: Returns when a tenant was deleted last, in seconds since 1970; 0 if never.
    """

    def __init__(
        self,
        model: GgufModel,
        num_rows: int,
        max_bytes: int,
        *,
        is_shared: bool = False,
        deleted_at: Callable[[str], float] = lambda _: 0.0,
    ) -> None:
        self.states, self._deleted_at = model.new_states(num_rows), deleted_at
        self._all = [TextSlot(row) for row in range(num_rows)]
        self._model, self._max_bytes, self._is_shared = model, max_bytes, is_shared
        self._clock = count(1)

    def take(self, tenant: str, prompt: TokenIds) -> TextSlot:
        """Return a slot with the longest beginning of a prompt that is kept, not all of it.

        A text that shares little with its slot keeps it: its beginning is copied.
        """
        self.forget_deleted()
        known = [slot for slot in self._all if self._is_shared or slot.tenant == tenant]
        sizes = [self._num_shared(slot, prompt) for slot in known]
        shared = max(sizes, default=0)
        source = known[sizes.index(shared)] if known else self._all[0]
        if shared < _LEAST_SHARED:
            shared, slot = 0, self._oldest()
        elif source.is_used or 2 * shared < self.states.length(source.row):
            source.last_used = next(self._clock)
            slot = self._oldest()
            self.states.copy(source.row, slot.row)
        else:
            slot = source
        kept = self.states.kept(slot.row, shared)
        self.states.truncate(slot.row, kept)
        slot.tokens, slot.tenant, slot.is_used = prompt, tenant, True
        slot.last_used, slot.begun_at = next(self._clock), time()
        return slot

    def give_back(self, slot: TextSlot, tokens: TokenIds) -> None:
        """Keep the states of a text, and forget the oldest ones beyond the limit of memory."""
        slot.tokens = tokens[: self.states.length(slot.row)]
        slot.is_used, slot.last_used = False, next(self._clock)
        self.forget_deleted()
        while self.num_bytes > self._max_bytes:
            self.forget(self._oldest(is_filled=True))

    def forget(self, slot: TextSlot) -> None:
        self.states.truncate(slot.row, 0)
        slot.tokens = slot.tokens[:0]

    def forget_deleted(self) -> None:
        """Forget the finished texts of tenants that were deleted since their requests began."""
        for slot in self._all:
            is_kept = len(slot.tokens) and not slot.is_used
            if is_kept and self._deleted_at(slot.tenant) >= slot.begun_at:
                self.forget(slot)

    def save(self, path: Path, name: str) -> None:
        """Write the finished texts and the name of the model to a file for its owner alone."""
        self.forget_deleted()
        kept = [slot for slot in self._all if len(slot.tokens) and not slot.is_used]
        kept.sort(key=lambda slot: slot.last_used)
        arrays: dict[str, Any] = {"about": np.array([name, *(slot.tenant for slot in kept)])}
        arrays["begun_at"] = np.array([slot.begun_at for slot in kept])
        for number, slot in enumerate(kept):
            arrays[f"tokens{number}"] = slot.tokens
            arrays[f"states{number}"] = self.states.states(slot.row)
        written = path.with_name(f"{path.name}.{os.getpid()}")
        with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            np.savez(file, **arrays)
        written.replace(path)

    def load(self, path: Path, name: str) -> None:
        """Read what `save` wrote for this model.

        Raises:
            ValueError: It is another file, or of another model.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                of_model, *tenants = arrays["about"].tolist()
                if of_model != name:
                    raise ValueError(f"it is of the model {of_model}")
                first = max(len(tenants) - len(self._all), 0)
                for number, tenant in enumerate(tenants[first:], first):
                    slot = self._oldest()
                    self.states.append(slot.row, arrays[f"states{number}"])
                    slot.tokens, slot.tenant = arrays[f"tokens{number}"].astype(np.int64), tenant
                    slot.begun_at = float(arrays["begun_at"][number])
                    self.give_back(slot, slot.tokens)
        except (IndexError, KeyError, OSError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} has no slots of this model: {error}") from error

    @property
    def num_bytes(self) -> int:
        """Bytes of the finished texts."""
        sizes = [len(slot.tokens) for slot in self._all if not slot.is_used]
        kind = self._model.cache_type
        return sum(self._model.weights.cache_bytes(size, kind) for size in sizes if size)

    def _num_shared(self, slot: TextSlot, prompt: TokenIds) -> int:
        most = min(len(slot.tokens), len(prompt) - 1, self.states.length(slot.row))
        differ = slot.tokens[:most] != prompt[:most]
        shared = int(differ.argmax()) if differ.any() else most
        return self.states.kept(slot.row, shared) if shared else 0

    def _oldest(self, *, is_filled: bool = False) -> TextSlot:
        free = [s for s in self._all if not s.is_used and (len(s.tokens) or not is_filled)]
        return min(free, key=lambda slot: (len(slot.tokens) > 0, slot.last_used))
