"""vLLM's V1 model runner: chains for ``"method": "custom_class"``.

    vllm serve MODEL \
        --speculative-config '{"method": "custom_class",
            "model": "specds.integrations.vllm.Proposer", "num_speculative_tokens": 8}' \
        --additional-config '{"specds": {"datastore": "chat.specds"}}'

The runner gives the batch as padded arrays and names no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds.integrations.adapter import Adapter, guarded


class VllmAdapter(Adapter):
    """What vLLM's runners make in each worker and ask for drafts once a step.

    Args:
        vllm_config: The engine's; `additional_config["specds"]` is the configuration of
            `EngineDrafter`.
    """

    def __init__(self, vllm_config: Any) -> None:
        model = vllm_config.model_config
        super().__init__(
            (vllm_config.additional_config or {}).get("specds", {}),
            vocab_size=model.get_vocab_size(),
            tokenizer=model.tokenizer,
            num_ranks=vllm_config.parallel_config.tensor_parallel_size,
        )
        self.k: int = vllm_config.speculative_config.num_speculative_tokens
        self.max_length: int = model.max_model_len


class Proposer(VllmAdapter):
    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Loads nothing: the runner calls it."""

    @guarded(lambda _, rows, *__, **___: [[] for _ in rows])
    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts for the rows of the batch.

        Args:
            sampled_token_ids: What each row emitted in this step; empty while its prompt is read.
            num_tokens_no_spec: Shape `(n,)`, n >= rows: their lengths, what was emitted included.
            token_ids_cpu: Shape `(n, max_model_len)`: their tokens.

        Returns:
            A list of at most `k` tokens for each row.
        """
        lengths = num_tokens_no_spec[: len(sampled_token_ids)].tolist()
        tokens = token_ids_cpu.view(np.uint32)
        rows = zip(sampled_token_ids, lengths, tokens, strict=False)
        self.drafter.sync([row[:length] if emitted else None for emitted, length, row in rows])
        self.begin_draft(is_decoding=all(sampled_token_ids))
        # One place is left for the bonus token.
        budgets = [max(self.max_length - length - 1, 0) for length in lengths]
        token_ids, numbers, _ = self.drafter.draft_chains(self.k, budgets=budgets)
        self.end_draft()
        return [
            row[:number] for row, number in zip(token_ids.tolist(), numbers.tolist(), strict=True)
        ]
