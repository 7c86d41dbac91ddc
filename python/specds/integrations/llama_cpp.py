"""llama-cpp-python: chains for `Llama(..., draft_model=DraftModel({...}))`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds.integrations.adapter import Adapter, guarded


class DraftModel(Adapter):
    """Drafter for the one sequence of a `Llama`.

    Args:
        options: The configuration of `EngineDrafter`.
        max_nodes: Maximum tokens of a draft.
        max_length: Context size of the `Llama`; drafts end before it.
        **about: Arguments of `Adapter`. Pass the `tokenizer` of the original model: a GGUF file has
            no fingerprint to compare with the datastore's.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        max_nodes: int = 8,
        *,
        max_length: int | None = None,
        **about: Any,
    ) -> None:
        super().__init__(options, max_nodes, times_steps=True, **about)
        self.max_length = max_length

    @guarded(lambda *_, **__: np.zeros(0, np.intc))
    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        """Draft at most `max_nodes` tokens after a context, the token just sampled included."""
        self.drafter.sync([input_ids.view(np.uint32)], ["0"])
        max_length = sys.maxsize if self.max_length is None else self.max_length
        with self.timed_draft():
            [draft] = self.chains([max_length - len(input_ids)])
        return np.array(draft, np.intc)
