"""llama-cpp-python: chains for `Llama(..., draft_model=DraftModel({...}))`.

Needs no import of llama-cpp-python: it calls whatever `draft_model` is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds.integrations.adapter import Adapter, guarded


class DraftModel(Adapter):
    """Drafts for the one sequence of a `Llama`.

    A GGUF file has no fingerprint that a datastore knows: give the `tokenizer` of the original
    model for a check.

    Args:
        max_length: The context size of the `Llama`, where drafts are to end before it.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        k: int = 8,
        *,
        max_length: int | None = None,
        **about: Any,
    ) -> None:
        super().__init__(options, **about)
        self.k, self.max_length = k, max_length

    @guarded(lambda *_, **__: np.zeros(0, np.intc))
    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        """Drafts what follows a whole context, the token just sampled included.

        Returns:
            At most `k` tokens.
        """
        self.drafter.sync([input_ids.view(np.uint32)])
        self.begin_draft()
        room = self.k if self.max_length is None else self.max_length - len(input_ids) - 1
        token_ids, numbers, _ = self.drafter.draft_chains(self.k, budgets=[max(room, 0)])
        self.end_draft()
        return token_ids[0, : numbers[0]].astype(np.intc)
