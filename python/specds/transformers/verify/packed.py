"""Verification backend `packed`: all rows as one sequence, in forward passes of few shapes."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from specds._core import TokenTree, read_outcomes
from specds.drafters.session import EMPTY_TREE
from specds.transformers.accept.on_device import PassRequest, follow, likeliest, report
from specds.transformers.kernels.operations import kernel_reason, power_of_two
from specds.transformers.verify import recordings
from specds.transformers.verify.attention import Tree, group_size, packed_model, packing_reasons
from specds.transformers.verify.cache import TreeCache
from specds.transformers.verify.fused_forward import FusedForward, unfused_reason
from specds.transformers.verify.generic import Runner, of_rows
from specds.transformers.verify.inputs import (
    Inputs,
    MaskBuilder,
    Masks,
    layer_types,
    local_attention,
)
from specds.transformers.verify.recordings import PassBuffers, Workspace

Outcome = tuple[list[int], list[int], NDArray[np.int64]]

# With the last token, these are whole tiles of matrix multiplication units.
NODES = (0, 7, 15, 31, 63)
"""Numbers of nodes of recorded passes; larger passes have multiples of 64 tokens."""
# A pass moves the accepted states down to this depth. Deeper ones are moved by the commit, which
# takes the host 75 us.
_MOVED = 16
# Few sizes need few recordings, but all slots are read: 1,024 of them take as long as 4 % of the
# weights of Llama-2-7B.
_SLOTS = (512, 1024, 2048)


def bucket(number: int, sizes: tuple[int, ...], step: int) -> int:
    """Round up to one of `sizes`, or to the largest plus a multiple of `step`."""
    fitting = next((size for size in sizes if size >= number), None)
    return -(-(number - sizes[-1]) // step) * step + sizes[-1] if fitting is None else fitting


class PackedRunner(Runner):
    """Verification of all rows as one sequence, which reads each prefix once.

    On a CUDA device widths and rows are rounded up, so that passes have few shapes, and each shape
    is recorded at first use. The cache stays for the model's next request, since recordings hold
    its addresses. `tree_attention` reads the ancestors of each token from the device: with it no
    mask is made, and shapes do not depend on lengths. Without it the slots are rounded up too.
    """

    name = "packed"
    needs_mask = False

    @classmethod
    def reasons_against(cls, model: PreTrainedModel) -> list[str]:
        return packing_reasons(model, has_kernel=cls.has_kernel(model))

    @classmethod
    def has_kernel(cls, model: PreTrainedModel) -> bool:
        return kernel_reason(model.device, model.dtype) is None

    @classmethod
    def is_shape_invariant(cls, model: PreTrainedModel) -> bool:
        return model.device.type == "cpu"

    def __init__(self, model: PreTrainedModel, **sizes: int) -> None:
        super().__init__(model, **sizes)
        self._records = recordings.recorder(model.device) is not None
        self.node_steps = NODES if self._records else ()
        # Not on a CPU, where choosing at the visited nodes alone is cheaper.
        self.accepts = self._records or self._device.type != "cpu"
        self._masks = MaskBuilder(self._config, model.dtype, group_size(self._config))
        # A recording sees more slots than are filled.
        self._always_masks = self._records or self._masks.has_windows
        self._limits = [local_attention(of, self._config) for of in layer_types(self._config)]
        self._compute: Callable[..., Tensor]
        self._work = recordings.acquire(model) if self._records else Workspace()
        if self._records:
            num_rows, self.cache = len(self.cache.lengths), self._work.cache
            slots = bucket(self._slots, _SLOTS, _SLOTS[-1])
            try:
                self.cache.restart(num_rows, power_of_two(num_rows), slots)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        self.reason = "; ".join(filter(None, (self._work.reason, self.reason)))
        if self._records:
            recordings.release_workspace(self._model, self._work)

    def prefill_rows(self, prompts: Sequence[Tensor], chunk_size: int | None = None) -> Tensor:
        logits = super().prefill_rows(prompts, chunk_size)
        # Head sizes are known now. Tensors of recordings must outlive an inference mode.
        with torch.inference_mode(False) if self._records else nullcontext(), torch.no_grad():
            if not self._work.is_tried:
                self._try_kernels()
            self._compute = self._chosen()
        return logits

    def _try_kernels(self) -> None:
        """Enable the Triton kernels if a probe pass, which commits nothing, succeeds."""
        work, num_rows = self._work, len(self.cache.lengths)
        work.is_tried = True
        if kernel_reason(self._device, self._model.dtype, self.cache.head_sizes) is not None:
            return
        work.has_kernels = True
        try:
            self._compute = self._chosen()
            buffers, end = self._filled([0] * num_rows, [EMPTY_TREE] * num_rows)
            self._pass(buffers.inputs, end)
        except torch.OutOfMemoryError:
            raise
        except Exception as failure:
            work.record_fallback(f"Triton's kernels failed: {failure}")
            work.has_kernels, work.forward = False, None

    def _chosen(self) -> Callable[..., Tensor]:
        work = self._work
        if not work.has_kernels:
            return self._by_packed_model()
        if why := unfused_reason(self._model):
            self.reason = f"no fused forward: {why}"
            return self._by_packed_model()
        if work.forward is None:
            work.forward = FusedForward(self._model)
        else:
            work.forward.refresh()
        return work.forward

    def _by_packed_model(self) -> Callable[..., Tensor]:
        packed, of_pass = packed_model(self._model)

        def compute(ids: Tensor, positions: Tensor, seen: Masks | Tree, _: TreeCache) -> Tensor:
            of_pass["tree"], mask = (seen, None) if isinstance(seen, Tree) else (None, seen)
            return self._forward(ids, positions, mask, model=packed)

        return compute

    def verify_rows(self, token_ids: Sequence[int], trees: Sequence[TokenTree]) -> list[Tensor]:
        return of_rows(self._run(token_ids, trees, None)[0], trees)

    def launch(
        self, token_ids: Sequence[int], trees: Sequence[TokenTree], request: PassRequest
    ) -> Callable[[], list[Outcome]]:
        """Launch `verify_rows` and the acceptance, without waiting for the device.

        Returns:
            A function that waits, and returns for each row the accepted nodes, their tokens and
            the bonus token, and the likeliest tokens at each place.
        """
        reported, width = self._run(token_ids, trees, request)
        on_host = reported.to("cpu", non_blocking=True)
        synchronize = recordings.device_event(self._device)

        def wait() -> list[Outcome]:
            synchronize()
            return read_outcomes(on_host.numpy(), width)[: len(trees)]

        return wait

    def _run(
        self, token_ids: Sequence[int], trees: Sequence[TokenTree], request: PassRequest | None
    ) -> tuple[Tensor, int]:
        """Return the logits of a pass, or with a request its `report`; and the places of a row."""
        self._num_moved = 0 if request is None else 1 + _MOVED
        buffers, end = self._filled(token_ids, trees)
        inputs = buffers.inputs
        # Greedy choices are the same in all requests. Samples depend on a request's settings, so
        # they are drawn from the logits of a recording.
        recorded = request if request is not None and request.sampler.is_argmax else None

        # A recording keeps its output: a report, or logits, which take a gigabyte in large batches.
        def compute() -> Tensor:
            logits = self._pass(inputs, end)
            return logits if recorded is None else self._accept(inputs, logits, recorded)

        key = None if recorded is None else (recorded.num_predictions, recorded.known_tokens)
        found = self._work.output(buffers, key, compute, self._device)
        if request is not recorded and request is not None:
            found = self._accept(inputs, found, request)
        return found, inputs.token_ids.shape[1]

    def _filled(
        self, token_ids: Sequence[int], trees: Sequence[TokenTree]
    ) -> tuple[PassBuffers, int]:
        """Return the inputs of a pass, their sizes rounded up, and the slots that it sees."""
        work, lengths = self._work, self.cache.lengths
        num_rows, width = len(trees), self._num_places(trees)
        if self._records:
            num_rows = power_of_two(num_rows)
            width = 1 + bucket(width - 1, NODES, 64)
        end = self.num_seen or max(lengths) + width
        if self._records and not work.has_kernels:
            end = bucket(end, _SLOTS, _SLOTS[-1])
        # The cache must not move within a recording.
        self.cache.reserve(end)
        if work.has_kernels:
            end = self.cache.capacity
        buffers = work.buffers((num_rows, width, end if self._records else 0), self._device)
        buffers.fill(token_ids, trees, lengths)
        return buffers, end

    def _accept(self, inputs: Inputs, logits: Tensor, request: PassRequest) -> Tensor:
        choices = request.sampler.sample_all(logits, inputs.depths, request.noise)
        counts, path = follow(
            inputs.token_ids, inputs.depths, inputs.parents, inputs.visible(), choices
        )
        self._move(inputs, path)
        predictions = likeliest(logits, request.num_predictions, request.known_tokens)
        return report(counts, path, choices, predictions)

    def _move(self, inputs: Inputs, path: Tensor) -> None:
        """Move the states of a path to the places where the commit expects them."""
        places, moved = self._places(inputs), slice(1, 1 + _MOVED)
        self.cache.move(places.gather(1, path[:, moved]).flatten(), places[:, moved].flatten())

    def _logits(self, inputs: Inputs, positions: Tensor, end: int) -> Tensor:
        seen: Masks | Tree
        if self._work.has_kernels:
            seen = Tree(inputs.lengths, positions, inputs.ancestors, self._limits)
        else:
            seen = self._mask(inputs, end)
        return self._compute(inputs.token_ids.view(1, -1), positions.view(1, -1), seen, self.cache)
