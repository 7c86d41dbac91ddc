"""vLLM's V1 runner with EAGLE, MTP or a draft model: its drafts and those of specds combined.

    vllm serve MODEL \
        --speculative-config '{"method": "eagle", "model": HEAD, "num_speculative_tokens": 5}' \
        --additional-config '{"specds": {"datastore": "chat.specds"}}'

Each such proposer is wrapped when it has loaded its model. Its chain is an external proposal to
specds, and vLLM verifies the best chain of both.
"""

from __future__ import annotations

from typing import Any

from specds.integrations.adapter import IncompatibleError, guarded, resolve
from specds.integrations.vllm import VllmAdapter, patch_cpu_sampling


class CombinedProposer(VllmAdapter):
    """Wrapper of a proposer of vLLM, which keeps it in its attribute `specds`."""

    has_tenants = True

    def __init__(self, proposer: Any) -> None:
        super().__init__(proposer.vllm_config)
        patch_cpu_sampling()
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
            if logits is not None:  # only one rank has them
                self._probs.append(logits.float().softmax(-1).amax(-1))
            return logits

        def proposed(*args: Any, **kwargs: Any) -> Any:
            self._probs = []
            drafts = self._combined(propose(*args, **kwargs))
            if self.group is not None:
                self.group.broadcast(drafts)  # all ranks must verify the same
            proposer._last_draft_probs = None  # the chains are not samples of them
            return drafts

        proposer.prepare_next_token_ids_padded, proposer.propose = prepared, proposed
        proposer.model.compute_logits, proposer.specds = computed, self

    @guarded(lambda _, drafts: drafts)
    def _combined(self, drafts: Any) -> Any:
        """Return the best chains, filled up with the proposer's own tokens."""
        import torch

        if not self.drafts:
            return drafts
        self._sync(len(drafts))
        probs = torch.full(drafts.shape, 0.5)
        if self._probs:
            probs = torch.stack(self._probs, 1).view(drafts.shape).cpu()
        self.drafter.suggest(drafts.cpu().numpy(), probs.numpy())
        token_ids, _, _ = self.drafter.draft_chains(drafts.shape[1], min_prob=0.0)
        combined = torch.from_numpy(token_ids).to(drafts)
        return drafts.where(combined < 0, combined)

    def _sync(self, num_rows: int) -> None:
        """Pass the new tokens of the rows to the drafter; the runner's batch lacks them as yet."""
        sampled, requests, batch, is_read = self._rows
        names = self.names(requests, batch, num_rows)
        lengths = {name: end for name, end in self._lengths.items() if name in requests}
        starts, contexts = [lengths.get(name, 0) for name in names], []
        rows = zip(names, starts, sampled.tolist(), is_read.tolist(), strict=False)
        for name, start, row, has_more in rows:
            new = [token for token in row if 0 <= token < batch.vocab_size]
            prompt = [] if start else requests[name].prompt_token_ids or []
            context = None if has_more or not new else [*prompt, *new]
            lengths[name] = start + len(context or ())
            contexts.append(context)
        self._lengths = lengths
        self.sync(contexts, names=names, starts=starts)
        self.publish_stats()


HEADS = "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer"


def is_supported() -> bool:
    """Return whether vLLM's proposers that run a head or a draft model are wrapped."""
    try:
        return bool(resolve(f"{HEADS}.load_model").__module__ == __name__)
    except IncompatibleError:
        return False


def wrap_proposers() -> None:
    """Wrap vLLM's proposers that run a head or a draft model.

    Raises:
        IncompatibleError: This version has no such class.
    """
    load = resolve(f"{HEADS}.load_model")
    if load.__module__ == __name__:
        return

    def load_model(self: Any, target_model: Any) -> None:
        load(self, target_model)
        if "specds" not in (self.vllm_config.additional_config or {}):
            return
        try:
            CombinedProposer(self)
        except AttributeError as error:  # a name of the proposer has moved
            VllmAdapter.log.warning("specds cannot draft in this version of vLLM: %s", error)

    resolve(HEADS).load_model = load_model
