"""vLLM's V1 model runner: chains for ``"method": "custom_class"``.

    vllm serve MODEL \
        --speculative-config '{"method": "custom_class",
            "model": "specds.integrations.vllm.Proposer", "num_speculative_tokens": 8}' \
        --additional-config '{"specds": {"datastore": "chat.specds"}}'

The runner passes the batch as padded arrays, without request ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds.integrations.adapter import Adapter, guarded


class VllmAdapter(Adapter):
    """The drafter of a worker; `additional_config["specds"]` is its configuration."""

    def __init__(self, vllm_config: Any, *, times_steps: bool = False) -> None:
        model = vllm_config.model_config
        super().__init__(
            (vllm_config.additional_config or {}).get("specds", {}),
            vocab_size=model.get_vocab_size(),
            tokenizer=model.tokenizer,
            num_ranks=vllm_config.parallel_config.tensor_parallel_size,
            times_steps=times_steps,
        )
        self.max_nodes: int = vllm_config.speculative_config.num_speculative_tokens
        self.max_length: int = model.max_model_len


class Proposer(VllmAdapter):
    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config, times_steps=True)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing; the runner calls it."""

    @guarded(lambda _, rows, *__, **___: [[] for _ in rows])
    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts at most `max_nodes` tokens for each row of the batch.

        Args:
            sampled_token_ids: What each row emitted in this step; empty during its prefill.
            num_tokens_no_spec: The lengths of the rows, `(n,)` with n >= rows.
            token_ids_cpu: Their tokens, `(n, max_model_len)`.
        """
        lengths = num_tokens_no_spec[: len(sampled_token_ids)].tolist()
        tokens = token_ids_cpu.view(np.uint32)
        rows = zip(sampled_token_ids, lengths, tokens, strict=False)
        self.drafter.sync([row[:length] if emitted else None for emitted, length, row in rows])
        self.begin_draft(is_decoding=all(sampled_token_ids))
        drafts = self.chains(self.max_nodes, [self.max_length - length for length in lengths])
        self.end_draft()
        return drafts
