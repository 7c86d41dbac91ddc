"""vLLM's V2 model runner: chains in place of its n-gram speculation.

    vllm serve MODEL --speculative-config '{"method": "ngram_gpu", "num_speculative_tokens": 8}' \
        --additional-config '{"specds": {"datastore": "chat.specds"}}'

This is vLLM's default runner. It accepts no external class, so our plug-in replaces its factory of
speculators if the configuration has ``specds``. It was never run on a GPU: tests run it on a CPU,
with Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specds.integrations.adapter import IncompatibleError, guarded
from specds.integrations.vllm import VllmAdapter
from specds.integrations.vllm_grammars import Grammars

if TYPE_CHECKING:
    import torch


class ChainSpeculator(VllmAdapter):
    """Drafter for the V2 runner; `init_speculator` makes it a subclass of the runner's own type.

    Without asynchronous scheduling, the scheduler gets drafts of the sizes that pay off. vLLM has
    FULL CUDA graphs for rows of any sizes with adaptive verification, else for rows of one of the
    sizes of its schedule, to which all drafts of a step are then padded. With asynchronous
    scheduling, vLLM chooses one size for all rows before they are drafted.

    Args:
        req_states: The runner's tokens and lengths of all requests.

    Attributes:
        draft_token_confidence_probs: Conditional probability of each token of the last batch,
            float32 `(max_num_reqs, k)`, by which adaptive verification cuts drafts. It is 1 if
            their sizes are ours: vLLM would cut by the probabilities of the step before.
        draft_sizes: The sizes to one of which all drafts of a step are padded; None if each draft
            has its own.
    """

    has_tenants = True
    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        import torch

        self._has_fixed_size = bool(vllm_config.scheduler_config.async_scheduling)
        super().__init__(vllm_config, times_steps=not self._has_fixed_size)
        self.grammars = Grammars(vllm_config, self.log, self.max_nodes)
        config = vllm_config.speculative_config
        self.num_speculative_steps = self.max_nodes
        self.enable_adaptive_verification = bool(
            getattr(config, "enable_adaptive_verification", False)
        )
        schedule = getattr(config, "num_speculative_tokens_per_batch_size", None)
        is_uniform = schedule and not (self.enable_adaptive_verification or self._has_fixed_size)
        self.draft_sizes = sorted({0, *(entry[2] for entry in schedule)}) if is_uniform else None
        self._compilation = getattr(vllm_config, "compilation_config", None)
        self.drafter.set_graph_sizes([], self.draft_sizes)
        self.device, self.req_states = device, req_states
        self.draft_token_confidence_probs = torch.zeros(
            vllm_config.scheduler_config.max_num_seqs, self.max_nodes, device=device
        )
        self._lengths: dict[str, int] = {}
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
            for new in scheduler_output.scheduled_new_reqs:
                self._lengths.pop(new.req_id, None)
                self.begin_request(new.req_id, new.sampling_params, new.prompt_token_ids)
            self.end_requests(scheduler_output.finished_req_ids)
        except AttributeError as error:
            raise IncompatibleError(f"specds cannot draft: {error}") from error

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
        is_chosen = not self._has_fixed_size
        self.draft_token_confidence_probs[: len(places)] = float(is_chosen)
        drafts = last_sampled.view(-1)[places, None].expand(-1, self.max_nodes).long().clone()
        if self.drafts and not dummy_run:
            most = kwargs.get("num_speculative_tokens")
            most = self.max_nodes if most is None else most
            drafts = self._drafted(input_batch, num_sampled, drafts, most)
        if self.group is not None and not dummy_run:
            # All ranks must verify the same drafts.
            self.group.broadcast(drafts)
            if self.enable_adaptive_verification and not is_chosen:
                self.group.broadcast(self.draft_token_confidence_probs)
        return drafts

    @guarded(lambda _, __, ___, drafts, ____: drafts)
    def _drafted(
        self, batch: Any, num_sampled: torch.Tensor, drafts: torch.Tensor, most: int
    ) -> torch.Tensor:
        names = list(batch.req_ids[: batch.num_reqs])
        starts = [self._lengths.get(name, 0) for name in names]
        parts, totals, is_decoding = self._new_tokens(batch, starts, num_sampled)
        served = zip(names, totals, parts, strict=True)
        seen = self._lengths | {name: total for name, total, new in served if new is not None}
        alive = self.req_states.req_id_to_index
        self._lengths = {name: total for name, total in seen.items() if name in alive}
        scheduled, cut = self._step.scheduled_spec_decode_tokens, self._step.num_invalid_spec_tokens
        kept = [len(scheduled.get(name, ())) - (cut or {}).get(name, 0) for name in names]
        self.sync(parts, names, starts, num_verified=kept)
        left = [min(max(number - 1, 0), most) for number in self.num_left(names, totals)]
        with self.timed_draft(is_decoding=is_decoding):
            self.choose_allowed(map(self.constraint, names, parts, starts))
            token_ids, lengths, probs = self.drafter.draft_chains(
                self.max_nodes, max_nodes=left, min_prob=0.0 if self._has_fixed_size else None
            )
        longest = int(lengths.max(initial=0))
        if self.draft_sizes is not None and longest:
            size = next(
                (size for size in self.draft_sizes if size >= longest), self.draft_sizes[-1]
            )
            self._draft_lengths = dict.fromkeys(names, size)
        else:
            self._draft_lengths = dict(zip(names, lengths.tolist(), strict=True))
        if self._has_fixed_size:
            probs[:, 1:] /= probs[:, :-1].clip(min=1e-30)
            is_drafted = np.arange(self.max_nodes) < lengths[:, None]
            confidences = self._on_device(np.where(is_drafted, probs, np.float32(0)))
            self.draft_token_confidence_probs[: len(names)] = confidences
        drafted = self._on_device(token_ids)
        return drafts.where(drafted < 0, drafted)

    def _new_tokens(
        self, batch: Any, starts: Sequence[int], num_sampled: torch.Tensor
    ) -> tuple[list[NDArray[np.uint32] | None], list[int], bool]:
        """Return the tokens of each row from its start, its length, and whether all rows decode.

        All are in one copy, which waits for the device.

        A row has None while its prompt is being read, or if it grew by more than was copied.
        """
        import torch

        rows = len(starts)
        # A step adds at most a draft and a token; a new row has a prompt before these.
        prompts = batch.prefill_len_np[:rows] * (np.array(starts) == 0)
        widths = prompts + self.max_nodes + 1
        ends = widths.cumsum()
        columns = np.arange(ends[-1]) + np.repeat(starts - (ends - widths), widths)
        columns = self._on_device(columns.clip(max=self.max_length - 1))
        places = batch.idx_mapping[:rows]
        slots = places.repeat_interleave(self._on_device(widths), output_size=int(ends[-1]))
        states = self.req_states
        parts = states.all_token_ids.gpu[slots, columns], states.total_len.gpu[places], num_sampled
        copied = torch.cat([part.int() for part in parts])
        host = torch.empty(copied.shape, dtype=torch.int32, pin_memory=copied.is_cuda)
        host.copy_(copied, non_blocking=True)
        if copied.is_cuda:
            torch.cuda.current_stream().synchronize()
        tokens, totals, sampled = np.split(host.numpy(), [ends[-1], ends[-1] + rows])
        rows_of_tokens = np.split(tokens.view(np.uint32), ends[:-1])
        new = [
            part[: total - start] if number and 0 < total - start <= len(part) else None
            for part, start, total, number in zip(
                rows_of_tokens, starts, totals, sampled, strict=True
            )
        ]
        return new, totals.tolist(), bool(sampled.all())

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
        larger = {}
        for graph in ordered:
            if graph.num_tokens >= tokens and graph.num_active_loras == loras:
                larger.setdefault((_draft_size(graph), graph.num_ubatches), graph)
        kept[tokens, loras] = [*larger.values(), *(it for it in found if not _draft_size(it))]


def _draft_size(graph: Any) -> int | None:
    """Return the tokens of each row of a graph in which all rows have the same number."""
    return getattr(graph, "uniform_token_count", None)
