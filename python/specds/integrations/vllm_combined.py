"""vLLM's V1 runner with EAGLE, MTP or a draft model: its drafts and those of specds combined.

    vllm serve MODEL \
        --speculative-config '{"method": "eagle", "model": HEAD, "num_speculative_tokens": 5}' \
        --additional-config '{"specds": {"datastore": "chat.specds"}}'

Each such proposer is wrapped when it has loaded its model. Its chain is an external proposal to
specds, and vLLM verifies the best chain of both. Where retrieved chains alone give more tokens a
second, only the first pass of the head runs, which fills its cache.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds.integrations.adapter import IncompatibleError, guarded, resolve
from specds.integrations.vllm import VllmAdapter, patch_cpu_sampling, patch_worker


class HeadChoice:
    """Choice between a head together with retrieved chains, and these chains alone.

    It learns by row how many tokens the retrieved chains are accepted, and how many more are with
    the head, both by the expected number. Times of the head and of the rest of a step are averages.
    """

    def __init__(self, k: int) -> None:
        self._retrieved, self._added = np.arange(k + 1.0), np.zeros(k + 1)
        self._num_observed = np.zeros(k + 1)
        self._seconds: dict[str, float] = {}
        self._num_skipped = 0

    def skips(self, expected: NDArray[np.int64]) -> bool:
        """Return whether a batch skips the head; `expected` are accepted tokens by row."""
        is_known = self._num_observed[expected].min(initial=_NUM_FIRST) >= _NUM_FIRST
        alone = len(expected) + self._retrieved[expected].sum()
        both = alone + self._added[expected].sum()
        rest, head = (self._seconds.get(part, 0.0) for part in ("rest", "head"))
        skipped = self._seconds.get("skipped", head / len(self._added))
        is_better = alone * (rest + head) > both * (rest + skipped)
        skips = bool(is_known and is_better and self._num_skipped < _MAX_SKIPPED)
        self._num_skipped = self._num_skipped + 1 if skips else 0
        return skips

    def observe(self, expected: int, retrieved: int, accepted: int | None) -> None:
        """Learn from a row: accepted tokens of its retrieved chain, and of both if the head ran."""
        self._retrieved[expected] += _AVERAGING * (retrieved - self._retrieved[expected])
        if accepted is not None:
            number = self._num_observed[expected] = self._num_observed[expected] + 1
            error = accepted - retrieved - self._added[expected]
            self._added[expected] += max(_AVERAGING, 1 / number) * error

    def observe_time(self, part: str, seconds: float) -> None:
        """Learn the time of a part of a step: `rest`, `head` or `skipped`."""
        usual = self._seconds.get(part, seconds)
        self._seconds[part] = usual + _AVERAGING * (min(seconds, 3 * usual) - usual)


_AVERAGING = 0.05
_NUM_FIRST, _MAX_SKIPPED = 8, 32
"""Rows of each expected number for which the head runs first, and skips before it runs again."""


class CombinedProposer(VllmAdapter):
    """Wrapper of a proposer of vLLM, which keeps it in its attribute `specds`."""

    has_tenants = True

    def __init__(self, proposer: Any) -> None:
        super().__init__(proposer.vllm_config)
        patch_worker()
        patch_cpu_sampling()
        self.choice = HeadChoice(self.max_nodes)
        # A head that drafts all tokens in its first pass has no others to skip. Ranks of data
        # parallelism, which draft apart, must run the same number of passes.
        ranks = getattr(proposer.vllm_config.parallel_config, "data_parallel_size", 1)
        is_parallel = getattr(proposer, "parallel_drafting", False) or ranks > 1
        self._has_passes = self.max_nodes > 1 and not is_parallel
        self._rows: Any = None
        self._next_token_ids: Any = None
        self._probs: list[Any] = []
        self._lengths: dict[str, int] = {}
        self._names: list[str] = []
        self._retrieved: NDArray[np.int64] | None = None
        self._expected: NDArray[np.int64] = np.zeros(0, np.int64)
        # By name: the retrieved chain, its expected tokens, and whether the head ran.
        self._last: dict[str, tuple[list[int], int, bool]] = {}
        prepare, propose = proposer.prepare_next_token_ids_padded, proposer.propose
        # vLLM would sample by these probabilities if they were not replaced below.
        compute_logits, _ = proposer.model.compute_logits, proposer._last_draft_probs

        def prepared(*rows: Any) -> Any:
            self._rows = rows
            self._next_token_ids, counts = prepare(*rows)
            return self._next_token_ids, counts

        def computed(hidden_states: Any) -> Any:
            logits = compute_logits(hidden_states)
            if logits is not None:  # only one rank has them
                self._probs.append(logits.float().softmax(-1).amax(-1))
            return logits

        def proposed(*args: Any, num_speculative_tokens: int, **kwargs: Any) -> Any:
            k, self._probs = num_speculative_tokens, []
            skips, start = self._skips(k, proposer.device), self._now()
            # vLLM then runs only the first pass, which fills the cache of the head.
            drafts = propose(*args, num_speculative_tokens=0 if skips else k, **kwargs)
            if skips:
                drafts = self._next_token_ids[:, None].expand(-1, k).to(drafts)
            drafts = self._combined(drafts, skips, start)
            if self.group is not None:
                self.group.broadcast(drafts)  # all ranks must verify the same
            proposer._last_draft_probs = None  # the chains are not samples of them
            return drafts

        proposer.prepare_next_token_ids_padded, proposer.propose = prepared, proposed
        proposer.model.compute_logits, proposer.specds = computed, self

    def expect_other_acceptance(self) -> None:
        super().expect_other_acceptance()
        self.choice = HeadChoice(self.max_nodes)

    def _skips(self, k: int, device: Any) -> bool:
        """Retrieve chains, and return whether the batch skips the head: on all ranks or on none."""
        skips = self._retrieve(k)
        if self.group is None:
            return skips
        import torch

        flag = torch.tensor([skips], dtype=torch.int32, device=device)
        self.group.broadcast(flag)
        return bool(flag)

    @guarded(lambda *_: False)
    def _retrieve(self, k: int) -> bool:
        self._retrieved = None
        if not (self.drafts and k):
            return False
        self._sync(k)
        self._retrieved, _, probs = self.drafter.draft_chains(k, min_prob=0.0)
        self._expected = np.rint(probs.sum(1)).astype(np.int64).clip(max=k)
        return self._has_passes and self.choice.skips(self._expected)

    @guarded(lambda _, drafts, *__: drafts)
    def _combined(self, drafts: Any, skips: bool, start: float) -> Any:
        """Return the best chains, filled up with the given tokens."""
        import torch

        if (chains := self._retrieved) is None:
            return drafts
        rows = zip(self._names, chains.tolist(), self._expected.tolist(), strict=True)
        self._last = {name: (chain, expected, not skips) for name, chain, expected in rows}
        if not skips:
            probs = torch.full(drafts.shape, 0.5)
            if self._probs:
                probs = torch.stack(self._probs, 1).view(drafts.shape).cpu()
            self.drafter.suggest(drafts.cpu().numpy(), probs.numpy())
            chains, _, _ = self.drafter.draft_chains(drafts.shape[1], min_prob=0.0)
        combined = torch.from_numpy(chains).to(drafts)
        drafts = drafts.where(combined < 0, combined)
        self._ended_at = self._now()
        self.choice.observe_time("skipped" if skips else "head", self._ended_at - start)
        return drafts

    def _sync(self, k: int) -> None:
        """Pass the new tokens of the rows to the drafter; the runner's batch lacks them as yet."""
        sampled, requests, batch, is_read = self._rows
        rows, now = sampled.tolist(), self._now()  # the copy waits for the step
        names = self.names(requests, batch, len(rows))
        lengths = {name: end for name, end in self._lengths.items() if name in requests}
        starts, contexts = [lengths.get(name, 0) for name in names], []
        verified = [requests[name].prev_num_draft_len for name in names]
        if self._ended_at is not None and all(verified):
            self.choice.observe_time("rest", now - self._ended_at)
        for name, start, row, has_more in zip(names, starts, rows, is_read.tolist(), strict=False):
            new = [token for token in row if 0 <= token < batch.vocab_size]
            prompt = [] if start else requests[name].prompt_token_ids or []
            context = None if has_more or not new else [*prompt, *new]
            lengths[name] = start + len(context or ())
            contexts.append(context)
            if (last := self._last.get(name)) and requests[name].prev_num_draft_len == k and new:
                chain, expected, has_run = last
                is_same = (token == came for token, came in zip(chain, new, strict=False))
                retrieved = sum(takewhile(bool, is_same))
                self.choice.observe(expected, retrieved, len(new) - 1 if has_run else None)
        self._lengths, self._names = lengths, names
        self.sync(contexts, names, starts, num_verified=verified)
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
            CombinedProposer(self).watch_weights(target_model)
        except AttributeError as error:  # a name of the proposer has moved
            VllmAdapter.log.warning("specds cannot draft in this version of vLLM: %s", error)

    resolve(HEADS).load_model = load_model
