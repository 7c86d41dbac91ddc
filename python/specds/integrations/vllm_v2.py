"""vLLM's V2 model runner: chains in place of its n-gram speculation.

    vllm serve MODEL --speculative-config '{"method": "ngram_gpu", "num_speculative_tokens": 8}' \
        --additional-config '{"specds": {"datastore": "chat.specds"}}'

That runner accepts no external class, so our entry point replaces its factory of speculators,
unless the configuration has no ``specds``. It was never run: it follows the source of vLLM 0.32.0,
and tests use fakes of its shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specds.integrations.adapter import guarded
from specds.integrations.vllm import VllmAdapter

if TYPE_CHECKING:
    import torch


class ChainSpeculator(VllmAdapter):
    """Drafts for the V2 runner; `register` makes one of the runner's type.

    Args:
        req_states: The runner's tokens and lengths of all requests.

    Attributes:
        draft_token_confidence_probs: float32 `(max_num_reqs, k)`, by the place of the request: the
            probability of each token after those before it, for adaptive verification.
    """

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        import torch

        super().__init__(vllm_config)
        config = vllm_config.speculative_config
        self.num_speculative_steps = self.max_nodes
        self.enable_adaptive_verification: bool = config.enable_adaptive_verification
        self.device, self.req_states = device, req_states
        self.draft_token_confidence_probs = torch.zeros(
            vllm_config.scheduler_config.max_num_seqs, self.max_nodes, device=device
        )
        self._lengths: dict[str, int] = {}

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Records no graph."""

    def capture(self) -> None:
        """Records no graph."""

    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        *args: Any,
        dummy_run: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Drafts for the batch: int64 `(num_reqs, max_nodes)`, filled up with the last tokens."""
        places = input_batch.idx_mapping[: input_batch.num_reqs]
        self.draft_token_confidence_probs[places] = 0
        fill = last_sampled.view(-1)[places, None].expand(-1, self.max_nodes).long().clone()
        return fill if dummy_run else self._drafted(input_batch, fill)

    @guarded(lambda _, __, drafts: drafts)
    def _drafted(self, input_batch: Any, drafts: torch.Tensor) -> torch.Tensor:
        import torch

        places = input_batch.idx_mapping[: input_batch.num_reqs]
        names = list(input_batch.req_ids[: input_batch.num_reqs])
        totals = self.req_states.total_len.gpu[places].tolist()
        news = [self._news(*row) for row in zip(names, places.tolist(), totals, strict=True)]
        starts = [total - len(tokens) for total, tokens in zip(totals, news, strict=True)]
        is_prefilling = input_batch.is_prefilling_np[: len(names)].tolist()
        rows = zip(news, is_prefilling, strict=True)
        self.drafter.sync(
            [None if prefilling else tokens for tokens, prefilling in rows],
            starts=starts,
            names=names,
        )
        served = zip(names, totals, is_prefilling, strict=True)
        self._lengths = {name: total for name, total, prefilling in served if not prefilling}
        left = [max(self.max_length - total - 1, 0) for total in totals]
        token_ids, lengths, probs = self.drafter.draft_chains(self.max_nodes, max_nodes=left)
        probs[:, 1:] /= probs[:, :-1].clip(min=1e-30)
        steps = torch.arange(self.max_nodes, device=self.device)
        is_drafted = steps < torch.from_numpy(lengths).to(self.device)[:, None]
        confidences = torch.from_numpy(probs).to(self.device).where(is_drafted, 0.0)
        self.draft_token_confidence_probs[places] = confidences
        return torch.from_numpy(token_ids).to(self.device).where(is_drafted, drafts)

    def _news(self, name: str, place: int, total: int) -> Any:
        """The tokens that the drafter has not seen; all tokens if there is a gap."""
        start = self._lengths.get(name, 0)
        tokens = self.req_states.all_token_ids.gpu[place]
        return tokens[start if start < total else 0 : total].cpu().numpy()


def register() -> None:
    """The entry point of the plug-in: replaces vLLM's factory of speculators."""
    try:
        from vllm.v1.worker.gpu import spec_decode
    except ImportError:  # a version without that runner
        return
    make = spec_decode.init_speculator

    def init_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
        if "specds" not in (vllm_config.additional_config or {}):
            return make(vllm_config, device, req_states)
        from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

        speculator = type("SpecdsSpeculator", (ChainSpeculator, BaseSpeculator), {})
        return speculator(vllm_config, device, req_states)

    spec_decode.init_speculator = init_speculator
