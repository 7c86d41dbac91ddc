"""How are drafts checked fast: packed attention, many sequences in a pass, nothing made anew."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch

from specds.accept.on_device import decisions, follow, likeliest, report
from specds.verify.attention import group_size
from specds.verify.batch_inputs import Inputs
from specds.verify.lean_forward import LeanForward, lean_reason
from specds.verify.masks import packed
from specds.verify.packed_model import packed_model_of
from specds.verify.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel

    from specds._core import TokenTree
    from specds.accept.on_device import Decision, PassRequest

    Shape = tuple[int, int, int]


class PackedRunner(Runner):
    """`Runner` for several rows at once, with an attention that reads each prefix once.

    The model sees the rows as one sequence: only the attention and the cache know whose a token is.
    A row of its own length has no padding before it, and one that is finished costs no more.
    """

    takes_rows: ClassVar[bool] = True
    # Whether a pass may depend on nothing but what is in its tensors, as in a CUDA graph.
    _static: ClassVar[bool] = False

    def __init__(self, model: PreTrainedModel, **sizes: int) -> None:
        super().__init__(model, **sizes)
        self._lean = self._lean_forward() if lean_reason(model) is None else None
        self._inputs: dict[tuple[int, int], Inputs] = {}
        self._group = group_size(self._config)

    def _lean_forward(self) -> Callable[..., torch.Tensor]:
        lean = LeanForward(self._model)
        # Operations that are noted for no gradient cost less: a tenth of a pass of a small model.
        # A recording is written to later on, which what comes of inference mode cannot be.
        return lean if self._static else torch.inference_mode()(lean)

    @cached_property
    def _packed_model(self) -> PreTrainedModel:
        return packed_model_of(self._model)

    @property
    def decides(self) -> bool:
        """Whether `accept_rows` is to be preferred to `verify_rows`.

        On a CPU it is not: there the rows that are visited cost less than all of them.
        """
        return self._model.device.type != "cpu"

    def verify_rows(
        self, token_ids: Sequence[int], trees: Sequence[TokenTree | None]
    ) -> list[torch.Tensor]:
        """As `Runner.verify_rows`."""
        return self._run(token_ids, trees, [()] * len(trees), None)[0]

    def accept_rows(
        self,
        token_ids: Sequence[int],
        trees: Sequence[TokenTree | None],
        forced: Sequence[Sequence[int]],
        request: PassRequest,
    ) -> tuple[list[torch.Tensor], list[Decision]]:
        """`verify_rows`, acceptance and the moves in the cache, with one copy to the host.

        What was accepted lies in place then, and `keep_rows` says how much of it counts.

        Args:
            token_ids: As for `verify_rows`.
            trees: As for `verify_rows`.
            forced: What each row emits whatever is chosen, from its next token on; empty where
                it is free.
            request: How tokens are chosen, and what else to tell.
        """
        return self._run(token_ids, trees, forced, request)

    def keep_rows(self, counts: Sequence[int]) -> None:
        """Commits the last token and what was accepted after it, `counts` tokens in each row."""
        for row, count in enumerate(counts):
            self.cache.use_row(row)
            self.cache.advance(count)

    def _run(
        self,
        token_ids: Sequence[int],
        trees: Sequence[TokenTree | None],
        forced: Sequence[Sequence[int]],
        request: PassRequest | None,
    ) -> tuple[list[torch.Tensor], list[Decision]]:
        sizes = [1 if tree is None else 1 + len(tree) for tree in trees]
        shape = self._shape(len(trees), max(sizes), max(self.cache.lengths))
        host = self._host_inputs(shape)
        host.fill(token_ids, trees, self.cache.lengths, forced)
        logits, reported = self._compute(host, shape, request)
        rows = [row[:size] for row, size in zip(logits, sizes, strict=False)]
        return rows, [] if reported is None else decisions(reported, shape[1])[: len(trees)]

    def _shape(self, num_rows: int, width: int, length: int) -> Shape:
        """Rows of a pass, their width, and the slots that they see: as asked, or rounded up."""
        return num_rows, width, length + width

    def _host_inputs(self, shape: Shape) -> Inputs:
        """Memory for what a pass takes, used again by the next pass of the shape."""
        inputs = self._inputs.get(shape[:2])
        if inputs is None:
            inputs = self._inputs[shape[:2]] = Inputs.on_host(*shape[:2])
        return inputs

    def _compute(
        self, host: Inputs, shape: Shape, request: PassRequest | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The logits of a pass and, with `request`, what `decisions` takes.

        Args:
            host: What the pass takes, in the host's memory.
            shape: As of `_shape`.
            request: What the host wants; None where it will decide.
        """
        inputs = host.on(self._model.device)
        logits = self._pass(inputs, shape[2])
        return logits, None if request is None else self._accept(inputs, logits, request)

    def _accept(self, inputs: Inputs, logits: torch.Tensor, request: PassRequest) -> torch.Tensor:
        choices = request.choose(logits.flatten(0, 1)).view_as(inputs.forced)
        choices = torch.where(inputs.forced < 0, choices, inputs.forced)
        counts, path = follow(
            inputs.token_ids, inputs.depths, inputs.parents, inputs.visible, choices
        )
        self.cache.move_rows(inputs.lengths, path)
        predictions = likeliest(logits, request.num_predictions, request.known_tokens)
        return report(counts, path, choices, predictions)

    def _pass(self, inputs: Inputs, end: int) -> torch.Tensor:
        num_rows, width = inputs.token_ids.shape
        positions = inputs.lengths[:, None] + inputs.depths
        if num_rows > 1 or self._static:
            rows = torch.arange(num_rows, device=positions.device)[:, None].expand(-1, width)
            slots = inputs.lengths[:, None] + torch.arange(width, device=positions.device)
            self.cache.place_rows(num_rows, rows.flatten(), slots.flatten(), end)
        else:
            self.cache.use_row(0)
        mask = self._mask(inputs, positions, end)
        arguments = inputs.token_ids.view(1, -1), positions.view(1, -1), mask
        if self._lean is not None:
            logits = self._lean(*arguments, self.cache)
        else:
            logits = self._forward(*arguments, model=self._packed_model)
        return logits.view(num_rows, width, -1)

    def _mask(
        self, inputs: Inputs, positions: torch.Tensor, end: int
    ) -> torch.Tensor | dict[str, torch.Tensor] | None:
        masks, (num_rows, width) = self._masks, positions.shape
        if num_rows > 1 or self._static:
            made = masks.build(inputs.visible, positions, inputs.lengths, end)
            return masks.as_argument(
                {name: packed(found, self._group) for name, found in made.items()}
            )
        # A single token sees all that there is, which attention does faster without a mask.
        if width == 1 and not masks.has_windows:
            return None
        return masks.of_row(inputs.visible, inputs.depths, end - width, self._group)
