"""llama-cpp-python: chains for `Llama(..., draft_model=DraftModel({...}))`.

Needs no import of llama-cpp-python: it calls whatever `draft_model` is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from specds.integrations.opening import Failures, StepClock, open_drafter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase


class DraftModel:
    """Drafts for the one sequence of a `Llama`.

    A GGUF file has no fingerprint that a datastore knows: give the `tokenizer` of the original
    model for a check.

    Args:
        options: The configuration of `EngineDrafter`.
        k: The most tokens of a draft.
        max_length: The context size of the `Llama`, where drafts are to end before it.
        vocab_size: Of the model.
        tokenizer: The model's, or where it lies.

    Attributes:
        drafter: What drafts.
        failures: What was caught.

    Raises:
        ValueError: The configuration is wrong, or the datastore is of another tokenizer.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        k: int = 8,
        *,
        max_length: int | None = None,
        vocab_size: int | None = None,
        tokenizer: str | PreTrainedTokenizerBase | None = None,
    ) -> None:
        self.k, self.max_length = k, max_length
        self.drafter = open_drafter(options, vocab_size=vocab_size, tokenizer=tokenizer)
        self.failures = Failures()
        self._guarded = self.failures.guard(self._draft, lambda _: np.zeros(0, np.intc))
        self._clock = StepClock(self.drafter)

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        """Drafts what follows a whole context, the token just sampled included.

        Args:
            input_ids: The context, shape `(n,)`.
            **kwargs: Not used.

        Returns:
            At most `k` tokens.
        """
        return self._guarded(input_ids)

    def _draft(self, input_ids: NDArray[np.intc]) -> NDArray[np.intc]:
        self.drafter.sync([input_ids.view(np.uint32)])
        self._clock.begin()
        room = self.k if self.max_length is None else self.max_length - len(input_ids) - 1
        token_ids, numbers, _ = self.drafter.draft_chains(self.k, budgets=[max(room, 0)])
        self._clock.end()
        return token_ids[0, : numbers[0]].astype(np.intc)
