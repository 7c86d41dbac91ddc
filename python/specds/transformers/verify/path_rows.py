"""N-Grammys' verification: each path is a row, and all rows share one prefix."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from specds._core import TokenTree
from specds.transformers.verify.attention import group_size, packed_model, packing_reasons
from specds.transformers.verify.generic import Runner
from specds.transformers.verify.inputs import MaskBuilder


class PathRows(Runner):
    """Verification of each path of the tree as a row of its own: N-Grammys' (k, w + 1) batches.

    A row is the last emitted token and one path from the root to a leaf, padded to the longest, so
    a node is computed once for each leaf below it. All rows read the states of the context from a
    single row, without a copy; commits keep the accepted row. Pass the class to `specds.generate`
    as `verification`.

    Raises:
        ValueError: The request has several prompts.
    """

    @classmethod
    def reasons_against(cls, model: PreTrainedModel) -> list[str]:
        return packing_reasons(model, has_kernel=False)

    @classmethod
    def is_shape_invariant(cls, model: PreTrainedModel) -> bool:
        return False

    def __init__(self, model: PreTrainedModel, **sizes: int) -> None:
        if sizes.get("num_rows", 1) > 1:
            raise ValueError("PathRows verifies one prompt at a time: call once per prompt")
        super().__init__(model, **sizes)
        self._packed, _ = packed_model(model)
        self._masks_of_paths = MaskBuilder(self._config, model.dtype, group_size(self._config))

    def verify_rows(
        self, token_ids: Sequence[int], trees: Sequence[TokenTree]
    ) -> list[torch.Tensor]:
        (token_id,), (tree,) = token_ids, trees
        if not tree:
            return super().verify_rows(token_ids, trees)
        paths = tree.paths()
        width = 1 + max(len(path) for path in paths)
        rows = np.full((len(paths), width), token_id, dtype=np.int64)
        # The first place of the last token and of each node in the pass.
        self._width, self._places_in_pass = width, np.zeros(1 + len(tree), dtype=np.int64)
        for row in reversed(range(len(paths))):
            path = paths[row]
            rows[row, 1 : 1 + len(path)] = tree.token_ids[path]
            self._places_in_pass[1 + path] = row * width + 1 + np.arange(len(path))
        logits = self._forward_rows(rows)
        places = torch.from_numpy(self._places_in_pass).to(logits.device)
        return [logits[0].index_select(0, places)]

    def _forward_rows(self, rows: np.ndarray) -> torch.Tensor:
        num_rows, width = rows.shape
        known, end = self.cache.length, self.cache.length + rows.size
        self.cache.reserve(end)
        self.cache.place(torch.arange(known, end, device=self._device), end)
        visible = np.kron(np.eye(num_rows, dtype=np.bool_), np.tri(width, dtype=np.bool_))
        depths = np.tile(np.arange(width), num_rows)
        arrays = rows.reshape(1, -1), depths[None], np.array([known]), visible[None]
        ids, depths_of, lengths, seen = (torch.from_numpy(of).to(self._device) for of in arrays)
        mask = self._masks_of_paths.build(seen, depths_of, lengths, end)
        return self._forward(ids, known + depths_of, mask, model=self._packed)

    def _places_of(self, path: Sequence[int]) -> Sequence[int]:
        if not path:
            return [0]
        # The first row that has the whole path.
        first = int(self._places_in_pass[1 + path[-1]]) // self._width * self._width
        return range(first, first + 1 + len(path))
