"""How are drafts checked fast: rows of a few shapes, packed attention, nothing made anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from specds._core import TokenTree, read_outcomes
from specds.accept.on_device import PassRequest, follow, likeliest, report
from specds.drafters.session import EMPTY_TREE
from specds.kernels.operations import kernel_reason, make_scratch, power_of_two
from specds.verify import recordings
from specds.verify.attention import Tree, group_size, packed_model
from specds.verify.cache import TreeCache
from specds.verify.generic import Runner, of_rows
from specds.verify.inputs import Inputs, MaskBuilder, Masks, layer_types, sight_of
from specds.verify.lean_forward import LeanForward, is_lean
from specds.verify.recordings import Outputs, Pass

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Outcome = tuple[list[int], list[int], NDArray[np.int64]]

# With the last token, whole tiles of what multiplies matrices.
NODES = (0, 7, 15, 31, 63)
"""Numbers of nodes that recorded passes have; multiples of 64 tokens where these are too few."""
# So deep a pass moves what it accepts, of each row as many states; deeper ones are moved when they
# are committed, which takes the host 75 us.
_MOVED = 16
# What is rounded up is read: of Llama-2-7B, 1,024 slots take as long as 4 % of the weights.
_SLOTS = (512, 1024, 2048)


def bucket(number: int, sizes: tuple[int, ...], step: int) -> int:
    """The smallest of `sizes`, or what `step` times some number adds to the largest, not below."""
    fitting = next((size for size in sizes if size >= number), None)
    return -(-(number - sizes[-1]) // step) * step + sizes[-1] if fitting is None else fitting


class StaticRunner(Runner):
    """The static path: the model sees the rows as one sequence, and reads each prefix once.

    On a CUDA device passes have few shapes: widths and rows are rounded up; what is added sees
    itself alone and writes where nothing is. Each is recorded at first use; the cache stays for the
    model's next request, since recordings hold its addresses. Where its kernel runs,
    `tree_attention` reads from the device which tokens see which: no mask is made, and shapes do
    not depend on lengths. Elsewhere the slots that are seen are rounded up too.
    """

    def __init__(self, model: PreTrainedModel, **sizes: int) -> None:
        super().__init__(model, **sizes)
        self._records = recordings.recorder(model.device) is not None
        self.node_steps = NODES if self._records else ()
        # On a CPU not: there the rows that are visited cost less than all of them.
        self.accepts = self._records or self._device.type != "cpu"
        self._masks = MaskBuilder(self._config, model.dtype, group_size(self._config))
        # The slots that a recording sees are more than there are.
        self._always_masks = self._records or self._masks.has_windows
        self._sights = [sight_of(kind, self._config) for kind in layer_types(self._config)]
        self._compute: Callable[..., torch.Tensor]
        self._kept = recordings.take(model) if self._records else recordings.Kept(())
        if self._records:
            num_rows, self.cache = len(self.cache.lengths), self._kept.cache
            slots = bucket(self._slots, _SLOTS, _SLOTS[-1])
            try:
                self.cache.restart(num_rows, power_of_two(num_rows), slots)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """As `Runner.close`."""
        self.reason = self._kept.reason
        if self._records:
            recordings.give_back(self._model, self._kept)

    def prefill_rows(
        self, prompts: Sequence[torch.Tensor], chunk_size: int | None = None
    ) -> torch.Tensor:
        """As `Runner.prefill_rows`."""
        logits = super().prefill_rows(prompts, chunk_size)
        # What heads are like is known now. What recordings use is made to last.
        with torch.inference_mode(False) if self._records else nullcontext(), torch.no_grad():
            self._choose()
        return logits

    def _choose(self) -> None:
        """Chooses how passes are computed: with kernels, if they do not fail in one."""
        kept, is_new = self._kept, not self._kept.is_tried
        kept.is_tried = True
        sizes = self.cache.head_sizes
        if is_new and kernel_reason(self._device, self._model.dtype, sizes) is None:
            kept.scratch = make_scratch(self._device)
            self._compute, num_rows = self._chosen(), len(self.cache.lengths)
            try:  # by a pass that commits nothing
                of_shape, end = self._filled([0] * num_rows, [EMPTY_TREE] * num_rows)
                self._pass(of_shape.inputs, end)
            except torch.OutOfMemoryError:
                raise
            except Exception as failure:
                kept.slow_down(f"Triton's kernels fail, masks are made: {failure}")
                kept.scratch = kept.forward = None
        self._compute = self._chosen()

    def _chosen(self) -> Callable[..., torch.Tensor]:
        kept = self._kept
        if not is_lean(self._model):
            return self._by_packed_model()
        if kept.forward is None:
            kept.forward = LeanForward(self._model, has_kernels=kept.scratch is not None)
        else:
            kept.forward.refresh()
        # Operations that are noted for no gradient cost less: a tenth of a pass of a small model.
        # A recording is written to later on, which what comes of inference mode cannot be.
        return kept.forward if self._records else torch.inference_mode()(kept.forward)

    def _by_packed_model(self) -> Callable[..., torch.Tensor]:
        packed, told = packed_model(self._model)

        def compute(
            ids: torch.Tensor, positions: torch.Tensor, seen: Masks | Tree, _: TreeCache
        ) -> torch.Tensor:
            told["tree"], mask = (seen, None) if isinstance(seen, Tree) else (None, seen)
            return self._forward(ids, positions, mask, model=packed)

        return compute

    def verify_rows(
        self, token_ids: Sequence[int], trees: Sequence[TokenTree]
    ) -> list[torch.Tensor]:
        """As `Runner.verify_rows`."""
        return of_rows(self._run(token_ids, trees, None)[0], trees)

    def launch(
        self,
        token_ids: Sequence[int],
        trees: Sequence[TokenTree],
        request: PassRequest,
    ) -> Callable[[], list[Outcome]]:
        """Starts `verify_rows` and the acceptance, and leaves the device to it.

        Returns:
            Waits for the device and tells, of each row, the accepted nodes, their tokens and the
            bonus token, and the likeliest tokens at every place.
        """
        logits, reported = self._run(token_ids, trees, request)
        on_host = reported.to("cpu", non_blocking=True)
        done = recordings.event(self._device)

        def wait() -> list[Outcome]:
            if done is not None:
                done.synchronize()
            return read_outcomes(on_host.numpy(), logits.shape[1])[: len(trees)]

        return wait

    def _run(
        self,
        token_ids: Sequence[int],
        trees: Sequence[TokenTree],
        request: PassRequest | None,
    ) -> tuple[torch.Tensor, Any]:
        """The logits of a pass, and its `report` where that is asked."""
        self._num_moved = 0 if request is None else 1 + _MOVED
        of_shape, end = self._filled(token_ids, trees)
        inputs = of_shape.inputs
        # Samples have settings, so they are drawn from the logits of a recording.
        recorded = request if request is not None and request.sampler.is_argmax else None

        def compute() -> Outputs:
            logits = self._pass(inputs, end)
            return logits, None if recorded is None else self._accept(inputs, logits, recorded)

        # Greedy choices are the same for all requests, whoever makes them.
        told = None if recorded is None else (recorded.num_predictions, recorded.known_tokens)
        logits, reported = self._kept.outputs(of_shape, told, compute, self._device)
        if request is not None and reported is None:
            reported = self._accept(inputs, logits, request)
        return logits, reported

    def _filled(self, token_ids: Sequence[int], trees: Sequence[TokenTree]) -> tuple[Pass, int]:
        """The inputs of a pass, whose sizes may be rounded up, and the slots that it sees."""
        kept, lengths = self._kept, self.cache.lengths
        num_rows, width = len(trees), self._num_places(trees)
        if self._records:
            num_rows = power_of_two(num_rows)
            width = 1 + bucket(width - 1, NODES, 64)
        end = max(lengths) + width
        if self._records and kept.scratch is None:
            end = bucket(end, _SLOTS, _SLOTS[-1])
        # Before anything is recorded, so that it is not moved within a recording.
        self.cache.reserve(end)
        if kept.scratch is not None:
            end = self.cache.capacity
        of_shape = kept.pass_of((num_rows, width, end if self._records else 0), self._device)
        of_shape.fill(token_ids, trees, lengths)
        return of_shape, end

    def _accept(self, inputs: Inputs, logits: torch.Tensor, request: PassRequest) -> torch.Tensor:
        choices = request.sampler.everywhere(logits, inputs.depths, request.noise)
        counts, path = follow(
            inputs.token_ids, inputs.depths, inputs.parents, inputs.visible(), choices
        )
        self._move(inputs, path)
        predictions = likeliest(logits, request.num_predictions, request.known_tokens)
        return report(counts, path, choices, predictions)

    def _move(self, inputs: Inputs, path: torch.Tensor) -> None:
        """Brings the states of a path, as of `follow`, to where a commit has them."""
        places, moved = self._places(inputs), slice(1, 1 + _MOVED)
        self.cache.move(places.gather(1, path[:, moved]).flatten(), places[:, moved].flatten())

    def _logits(self, inputs: Inputs, positions: torch.Tensor, end: int) -> torch.Tensor:
        seen: Masks | Tree
        if self._kept.scratch is None:
            seen = self._mask(inputs, end)
        else:
            where = inputs.lengths, positions, inputs.ancestors
            seen = Tree(*where, self._sights, self._kept.scratch)
        return self._compute(inputs.token_ids.view(1, -1), positions.view(1, -1), seen, self.cache)


RUNNERS: dict[str, type[Runner]] = {"fast": StaticRunner, "tree": Runner}
"""The ways to verify a draft, by name."""
