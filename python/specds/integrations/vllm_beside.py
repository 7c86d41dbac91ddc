"""vLLM's V1 runner with a draft model of its own, EAGLE or MTP: specds drafts beside it.

    vllm serve MODEL \
        --speculative-config '{"method": "eagle", "model": HEAD, "num_speculative_tokens": 5}' \
        --additional-config '{"specds": {"datastore": "chat.specds"}}'

Each such proposer is joined when it has loaded its model. What it proposes is suggested to specds,
whose best chain vLLM verifies.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from specds.integrations.adapter import guarded
from specds.integrations.vllm import VllmAdapter, mend_sampling


class Beside(VllmAdapter):
    """Joins a proposer of vLLM's, whose attribute `specds` it becomes."""

    has_tenants = True

    def __init__(self, proposer: Any) -> None:
        super().__init__(proposer.vllm_config)
        mend_sampling()
        self._rows: Any = None
        self._probs: list[Any] = []
        self._lengths: dict[str, int] = {}
        prepare, propose = proposer.prepare_next_token_ids_padded, proposer.propose
        compute_logits = proposer.model.compute_logits

        def prepared(*rows: Any) -> Any:
            self._rows = rows
            return prepare(*rows)

        def computed(hidden_states: Any) -> Any:
            logits = compute_logits(hidden_states)
            if logits is not None:  # it is on one rank
                self._probs.append(logits.float().softmax(-1).amax(-1))
            return logits

        def proposed(*args: Any, **kwargs: Any) -> Any:
            self._probs = []
            drafts = self._joined(propose(*args, **kwargs))
            if self.group is not None:
                self.group.broadcast(drafts)  # all ranks must verify the same
            proposer._last_draft_probs = None  # the chains are no samples of these
            return drafts

        proposer.prepare_next_token_ids_padded, proposer.propose = prepared, proposed
        proposer.model.compute_logits, proposer.specds = computed, self

    @guarded(lambda _, drafts: drafts)
    def _joined(self, drafts: Any) -> Any:
        """The best chains; the proposer's own tokens where these are shorter."""
        import torch

        if not self.drafts:
            return drafts
        self._sync(len(drafts))
        probs = torch.full(drafts.shape, 0.5)
        if self._probs:  # it computes logits
            probs = torch.stack(self._probs, 1).view(drafts.shape).cpu()
        self.drafter.suggest(drafts.cpu().numpy(), probs.numpy())
        token_ids, _, _ = self.drafter.draft_chains(drafts.shape[1], min_prob=0.0)
        joined = torch.from_numpy(token_ids).to(drafts)
        return drafts.where(joined < 0, joined)

    def _sync(self, num_rows: int) -> None:
        """Takes what the rows emitted, which the runner has not told its batch yet."""
        sampled, requests, batch, is_read = self._rows
        names = self.names(requests, batch, num_rows)
        lengths = {name: end for name, end in self._lengths.items() if name in requests}
        starts, contexts = [lengths.get(name, 0) for name in names], []
        rows = zip(names, starts, sampled.tolist(), is_read.tolist(), strict=False)
        for name, start, row, has_more in rows:
            news = [token for token in row if 0 <= token < batch.vocab_size]
            prompt = [] if start else requests[name].prompt_token_ids or []
            context = None if has_more or not news else [*prompt, *news]
            lengths[name] = start + len(context or ())
            contexts.append(context)
        self._lengths = lengths
        self.sync(contexts, names=names, starts=starts)
        self.tell()


def can_join() -> bool:
    """Whether this version of vLLM has the class of such proposers."""
    return find_spec("vllm.v1.spec_decode.llm_base_proposer") is not None


def join_proposers() -> None:
    """A part of the plug-in's entry point; no version may fail to start for want of the class."""
    if not can_join():
        return
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    load = SpecDecodeBaseProposer.load_model

    def load_model(self: Any, target_model: Any) -> None:
        load(self, target_model)
        if "specds" in (self.vllm_config.additional_config or {}):
            Beside(self)

    SpecDecodeBaseProposer.load_model = load_model
