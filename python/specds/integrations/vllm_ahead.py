"""vLLM's V2 model runner with asynchronous scheduling: no thread of the runner waits for drafts.

While the device computes a step, the runner launches the next one. The tokens of a step are copied
on a side stream, a thread drafts from them while the device computes the step after, and the drafts
are written to a table on the device. At the end of that step, the device compares its tokens with
the beginning of the draft: the rest is verified in the next step. Where it differs, or the thread
is late, a step has no drafts, which vLLM's adaptive verification then leaves out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specds.integrations.adapter import guarded
from specds.integrations.vllm_v2 import ChainSpeculator, NewRequest

if TYPE_CHECKING:
    import torch


class Copied:
    """A copy of a tensor of the device to the host, on its way."""

    def __init__(self, host: torch.Tensor, event: Any = None) -> None:
        self._host, self._event = host, event

    def is_ready(self) -> bool:
        return self._event is None or bool(self._event.query())

    def wait(self) -> NDArray[np.int32]:
        if self._event is not None:
            self._event.synchronize()
        return self._host.numpy()


class SideStream:
    """A stream for copies while the device computes; on a CPU, all is done at once."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copied(self, tensor: torch.Tensor) -> Copied:
        """Begin to copy a tensor of the current stream."""
        import torch

        if self._stream is None:
            return Copied(tensor.clone())
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._stream)
            # A thread that waits for it sleeps.
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return Copied(host, event)

    def write(self, tables: Sequence[torch.Tensor], rows: Any, values: Sequence[Any]) -> None:
        """Write arrays of the host to rows of tables on the device while it computes."""
        import torch

        if self._stream is None:
            for table, array in zip(tables, values, strict=True):
                table[torch.from_numpy(rows)] = torch.from_numpy(array)
            return
        with torch.cuda.stream(self._stream):
            arrays = [torch.from_numpy(array).pin_memory() for array in (rows, *values)]
            places, *parts = (array.to(tables[0].device, non_blocking=True) for array in arrays)
            for table, part in zip(tables, parts, strict=True):
                table[places] = part


class AheadSpeculator(ChainSpeculator):
    """Drafter that never waits in the thread of the runner.

    Each row of its tables is a draft of the request in this place of the runner's states: its
    tokens from a position on, and their conditional probabilities. It continues after the tokens of
    the step that the device computes, so it has one token more than two drafts.

    A row may be written while the device reads it. It then has tokens of two drafts, of which those
    that the model would not write are rejected as others are.
    """

    _times_steps = False

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        import torch

        super().__init__(vllm_config, device, req_states)
        places = len(self.draft_token_confidence_probs)
        self._width = 2 * self.max_nodes + 1
        self._guesses = torch.full((places, self._width), -1, dtype=torch.int32, device=device)
        self._probs = torch.zeros((places, self._width), device=device)
        self._starts = torch.full((places, 1), -1, dtype=torch.int32, device=device)
        self.stream = SideStream(device)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="specds-drafts")
        self._last: Future[None] | None = None
        self._copies = deque[Copied]()
        self._ended: list[str] = []
        self._news: list[NewRequest] = []

    def _take(self, ended: Iterable[str], news: Iterable[NewRequest]) -> None:
        """Keep what begins and ends for the thread, which alone uses the drafter."""
        if self.drafts:
            self._ended += ended
            self._news += news

    def wait(self) -> None:
        """Wait until the thread has drafted for all steps so far."""
        if self._last is not None:
            self._last.result()

    def cut(self, drafts: Any) -> Any:
        """Return the drafts as they are: vLLM has chosen their size."""
        return drafts

    def _proposed(
        self, batch: Any, num_sampled: torch.Tensor, drafts: torch.Tensor, most: int
    ) -> torch.Tensor:
        import torch

        places = batch.idx_mapping[: batch.num_reqs]
        packed = self._last_tokens(batch, num_sampled)
        probs = self._match(packed, places, drafts)
        if self.group is not None:
            # All ranks must verify the same drafts.
            both = torch.cat([drafts.int(), probs.view(torch.int32)], 1)
            self.group.broadcast(both)
            drafts = both[:, : self.max_nodes].long()
            probs = both[:, self.max_nodes :].contiguous().view(torch.float32)
        self.draft_token_confidence_probs[: len(places)] = probs
        if self.drafts:
            self._submit(batch, packed)
        return drafts

    def _match(
        self, packed: torch.Tensor, places: torch.Tensor, drafts: torch.Tensor
    ) -> torch.Tensor:
        """Write what follows in the guess of each row after its new tokens, on the device.

        Returns:
            The conditional probabilities of the drafts, 0 for those that are filled up.
        """
        import torch

        k = self.max_nodes
        guesses, steps = self._guesses[places], torch.arange(k + 1, device=packed.device)
        passed = packed[:, k + 1, None] - self._starts[places]
        is_near = (passed >= 0) & (passed <= k + 1)
        passed = passed.clamp(0, k + 1).long()
        emitted = packed[:, : k + 1].gather(1, (k + 1 - passed + steps).clamp(max=k))
        agrees = ((emitted == guesses[:, : k + 1]) | (steps >= passed)).all(1, keepdim=True)
        following = passed + steps[:k]
        found = guesses.gather(1, following)
        is_drafted = is_near & agrees & (found >= 0) & (packed[:, -1:] > 0)
        drafts.copy_(torch.where(is_drafted, found.long(), drafts))
        return torch.where(is_drafted, self._probs[places].gather(1, following), 0.0)

    def _submit(self, batch: Any, packed: torch.Tensor) -> None:
        names, step = list(batch.req_ids[: batch.num_reqs]), self._step
        places = batch.idx_mapping_np[: batch.num_reqs].astype(np.int64)
        copied = self.stream.copied(packed)
        self._copies.append(copied)
        ended, news, self._ended, self._news = self._ended, self._news, [], []
        self._last = self._worker.submit(self._draft_ahead, names, places, step, ended, news)

    @guarded(lambda *_: None)
    def _draft_ahead(
        self,
        names: list[str],
        places: NDArray[np.int64],
        step: Any,
        ended: list[str],
        news: list[NewRequest],
    ) -> None:
        """Draft from the tokens of a step as soon as the device has them."""
        copied = self._copies.popleft()
        super()._take(ended, news)
        parts, starts, totals = self._synced(names, copied.wait(), step)
        if self._copies and self._copies[0].is_ready():
            return  # too late: the tokens of the next step are here
        left = [max(number - 1, 0) for number in self.num_left(names, totals)]
        with self.timed_draft():
            self.choose_allowed(map(self.constraint, names, parts, starts))
            token_ids, lengths, probs = self.drafter.draft_chains(
                self._width, max_nodes=left, min_prob=0.0
            )
        probs[:, 1:] /= probs[:, :-1].clip(min=1e-30)
        probs[np.arange(self._width) >= lengths[:, None]] = 0
        values = (token_ids.astype(np.int32), probs, np.array(totals, np.int32)[:, None])
        self.stream.write((self._guesses, self._probs, self._starts), places, values)
