"""vLLM's V2 model runner: chains in place of its n-gram speculation.

    vllm serve MODEL \
        --speculative-config '{"method": "ngram_gpu", "num_speculative_tokens": 8,
            "enable_adaptive_verification": true}' \
        --additional-config '{"specds": {"datastore": "chat.specds"}}'

This is vLLM's default runner. It accepts no external class, so our plug-in replaces its factory of
speculators if the configuration has ``specds``. It was never run on a GPU: tests run it on a CPU,
with Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specds.integrations.adapter import IncompatibleError, guarded
from specds.integrations.vllm import VllmAdapter
from specds.integrations.vllm_grammars import Grammars

if TYPE_CHECKING:
    import torch


NewRequest = tuple[str, Any, "Sequence[int] | None", "Sequence[int] | None"]
"""Name, sampling parameters, prompt and whole text of a request that begins or resumes."""


class ChainSpeculator(VllmAdapter):
    """Drafter for the V2 runner; `init_speculator` makes it a subclass of the runner's own type.

    The scheduler, which waits for each step, gets drafts of the sizes that pay off. vLLM has
    FULL CUDA graphs for rows of any sizes with adaptive verification, else for rows of one of the
    sizes of its schedule, to which all drafts of a step are then padded.

    Args:
        req_states: The runner's tokens and lengths of all requests.

    Attributes:
        draft_token_confidence_probs: Conditional probability of each token of the last batch,
            float32 `(max_num_reqs, k)`, by which adaptive verification cuts drafts. It is 1 here,
            because vLLM would cut by the probabilities of the step before.
        draft_sizes: The sizes to one of which all drafts of a step are padded; None if each draft
            has its own.
    """

    has_tenants = True
    supports_mm_inputs = False
    draft_logits = None
    _times_steps = True

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        import torch

        super().__init__(vllm_config, times_steps=self._times_steps)
        self.grammars = Grammars(vllm_config, self.log, self.max_nodes)
        config = vllm_config.speculative_config
        self.num_speculative_steps = self.max_nodes
        self.enable_adaptive_verification = bool(
            getattr(config, "enable_adaptive_verification", False)
        )
        schedule = getattr(config, "num_speculative_tokens_per_batch_size", None)
        is_uniform = schedule and self._times_steps and not self.enable_adaptive_verification
        sizes = {0, *(entry[2] for entry in schedule or ())}
        self.draft_sizes = sorted(sizes) if is_uniform else None
        self._compilation = getattr(vllm_config, "compilation_config", None)
        self.drafter.set_graph_sizes([], self.draft_sizes)
        self.device, self.req_states = device, req_states
        self.draft_token_confidence_probs = torch.ones(
            vllm_config.scheduler_config.max_num_seqs, self.max_nodes, device=device
        )
        self._lengths: dict[str, int] = {}
        self._prompts: dict[str, Sequence[int]] = {}
        self._draft_lengths: dict[str, int] = {}
        self._step: Any = None

    @guarded(lambda *_: None)
    def begin_step(self, scheduler_output: Any) -> None:
        """Read the options of new requests, and end requests; the runner calls this first.

        Raises:
            IncompatibleError: A name has moved: options such as `specds_off` would be ignored.
        """
        self._step = scheduler_output
        try:
            news = [
                (new.req_id, new.sampling_params, new.prompt_token_ids, new.prefill_token_ids)
                for new in scheduler_output.scheduled_new_reqs
            ]
            self._take(scheduler_output.finished_req_ids, news)
        except AttributeError as error:
            raise IncompatibleError(f"specds cannot draft: {error}") from error

    def _take(self, ended: Iterable[str], news: Iterable[NewRequest]) -> None:
        """End requests, and begin others."""
        ended = list(ended)
        self.end_requests(ended)
        for name in ended:
            self._lengths.pop(name, None)
            self._prompts.pop(name, None)
        for name, sampling, prompt_ids, text in news:
            self._lengths.pop(name, None)
            self._prompts[name] = text or ()
            self.begin_request(name, sampling, prompt_ids)

    def cut(self, drafts: Any) -> Any:
        """Cut the drafts that the scheduler gets: the others of their tokens are padding."""
        rows = zip(drafts.req_ids, drafts.draft_token_ids, strict=True)
        drafts.draft_token_ids = [row[: self._draft_lengths.get(name, 0)] for name, row in rows]
        return drafts

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Learn the sizes of the model's CUDA graphs; drafting captures none."""
        sizes = getattr(self._compilation, "cudagraph_capture_sizes", None)
        if sizes and cudagraph_mode.has_full_cudagraphs():
            self.drafter.set_graph_sizes(sizes, self.draft_sizes)

    def capture(self) -> None:
        """Do nothing: drafting captures no CUDA graph."""

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
        """Draft for the batch: int64 `(num_reqs, max_nodes)`, filled up with the last tokens.

        Raises:
            IncompatibleError: The runner did not call `begin_step`.
        """
        if self._step is None and not dummy_run:
            raise IncompatibleError("specds cannot draft: vLLM passed no options of requests")
        self._draft_lengths = {}
        places = input_batch.idx_mapping[: input_batch.num_reqs]
        drafts = last_sampled.view(-1)[places, None].expand(-1, self.max_nodes).long().clone()
        if dummy_run:
            return drafts
        most = kwargs.get("num_speculative_tokens")
        return self._proposed(
            input_batch, num_sampled, drafts, self.max_nodes if most is None else most
        )

    def _proposed(
        self, batch: Any, num_sampled: torch.Tensor, drafts: torch.Tensor, most: int
    ) -> torch.Tensor:
        """Return the drafts of all ranks, given those that are filled up."""
        if self.drafts:
            drafts = self._drafted(batch, num_sampled, drafts, most)
        if self.group is not None:
            # All ranks must verify the same drafts.
            self.group.broadcast(drafts)
        return drafts

    @guarded(lambda _, __, ___, drafts, ____: drafts)
    def _drafted(
        self, batch: Any, num_sampled: torch.Tensor, drafts: torch.Tensor, most: int
    ) -> torch.Tensor:
        names = list(batch.req_ids[: batch.num_reqs])
        packed = self._copied(self._last_tokens(batch, num_sampled))
        parts, starts, totals = self._synced(names, packed, self._step)
        left = [min(max(number - 1, 0), most) for number in self.num_left(names, totals)]
        with self.timed_draft(is_decoding=bool(packed[:, -1].all())):
            self.choose_allowed(map(self.constraint, names, parts, starts))
            token_ids, lengths, _ = self.drafter.draft_chains(self.max_nodes, max_nodes=left)
        longest = int(lengths.max(initial=0))
        if self.draft_sizes is not None and longest:
            size = next(
                (size for size in self.draft_sizes if size >= longest), self.draft_sizes[-1]
            )
            self._draft_lengths = dict.fromkeys(names, size)
        else:
            self._draft_lengths = dict(zip(names, lengths.tolist(), strict=True))
        drafted = self._on_device(token_ids)
        return drafts.where(drafted < 0, drafted)

    def _synced(
        self, names: Sequence[str], packed: NDArray[np.int32], step: Any
    ) -> tuple[list[NDArray[np.uint32] | None], list[int], list[int]]:
        """Pass the tokens of a step to the drafter, and return those of `_contexts`."""
        parts, starts, totals = self._contexts(names, packed)
        scheduled, cut = step.scheduled_spec_decode_tokens, step.num_invalid_spec_tokens
        kept = [len(scheduled.get(name, ())) - (cut or {}).get(name, 0) for name in names]
        if not self._times_steps:
            # A draft ahead is compared with the tokens of a step that verified another.
            rows = zip(kept, parts, strict=True)
            kept = [max(number, 0 if part is None else len(part)) for number, part in rows]
        self.sync(parts, names, starts, num_verified=kept)
        return parts, starts, totals

    def _last_tokens(self, batch: Any, num_sampled: torch.Tensor) -> torch.Tensor:
        """Return the last tokens of each row, its length and its number of sampled tokens.

        A step adds at most a draft and a token. The result is int32 `(rows, max_nodes + 3)`.
        """
        import torch

        places = batch.idx_mapping[: batch.num_reqs]
        totals = self.req_states.total_len.gpu[places]
        columns = torch.arange(-self.max_nodes - 1, 0, device=totals.device) + totals[:, None]
        tokens = self.req_states.all_token_ids.gpu[places[:, None], columns.clamp(min=0)]
        parts = tokens, totals[:, None], num_sampled[: len(places), None]
        return torch.cat([part.int() for part in parts], 1)

    def _copied(self, packed: torch.Tensor) -> NDArray[np.int32]:
        """Copy an array to the host, and wait for the device."""
        import torch

        host = torch.empty(packed.shape, dtype=torch.int32, pin_memory=packed.is_cuda)
        host.copy_(packed, non_blocking=True)
        if packed.is_cuda:
            torch.cuda.current_stream().synchronize()
        return host.numpy()

    def _contexts(
        self, names: Sequence[str], packed: NDArray[np.int32]
    ) -> tuple[list[NDArray[np.uint32] | None], list[int], list[int]]:
        """Return the new tokens of each row, the position of the first, and the row's length.

        A row has None while its prompt is being read, or if it grew by more than was copied. The
        tokens of its prompt are those of the scheduler.
        """
        parts: list[NDArray[np.uint32] | None] = []
        starts = []
        tokens, totals = packed[:, :-2].astype(np.uint32), packed[:, -2].tolist()
        for name, last, total, sampled in zip(names, tokens, totals, packed[:, -1], strict=True):
            start = self._lengths.get(name, 0)
            prompt = np.array(() if start else self._prompts.get(name, ()), np.uint32)
            number = total - start - len(prompt)
            new = None
            if sampled and 0 < number <= len(last):
                new = np.concatenate([prompt, last[-number:]])
                self._lengths[name] = total
                self._prompts.pop(name, None)
            parts.append(new)
            starts.append(start)
        return parts, starts, totals

    def _on_device(self, array: NDArray[Any]) -> torch.Tensor:
        import torch

        tensor = torch.from_numpy(array)
        is_cuda = self.device.type == "cuda"
        return (tensor.pin_memory() if is_cuda else tensor).to(self.device, non_blocking=True)


def widen_candidates(manager: Any) -> None:
    """Let a dispatcher of CUDA graphs choose the next larger graph of each draft size.

    For a number of tokens, vLLM considers only the graphs of the next captured number, also if
    these are of another draft size. Where it keeps them in another way, nothing changes.
    """
    kept = getattr(manager, "_candidates", None)
    if not isinstance(kept, dict) or getattr(manager, "specds_has_widened", False):
        return
    manager.specds_has_widened = True
    graphs = {graph for found in kept.values() for graph in found if _draft_size(graph)}
    ordered = sorted(graphs, key=lambda graph: (graph.num_tokens, graph.num_reqs))
    for (tokens, loras), found in kept.items():
        larger: dict[Any, Any] = {}
        for graph in ordered:
            if graph.num_tokens >= tokens and graph.num_active_loras == loras:
                larger.setdefault((_draft_size(graph), graph.num_ubatches), graph)
        kept[tokens, loras] = [*larger.values(), *(it for it in found if not _draft_size(it))]


def _draft_size(graph: Any) -> int | None:
    """Return the tokens of each row of a graph in which all rows have the same number."""
    return getattr(graph, "uniform_token_count", None)
