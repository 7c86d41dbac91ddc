"""Shapes, trees, acceptance requests and allocation counts for tests of forward passes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models import SHAPE, VOCAB_SIZE
from specds._core import TokenTree
from specds.transformers.verify.packed import PackedRunner

WIDE_SHAPE = SHAPE | {"max_position_embeddings": 4096}


def rows_tree(num_rows, width):
    """A tree of `num_rows` paths that part at once."""
    token_ids, parents = [], []
    for row in range(num_rows):
        for depth in range(width):
            parents.append(len(token_ids) - 1 if depth else -1)
            token_ids.append((row + 7 * depth) % VOCAB_SIZE)
    return TokenTree(token_ids, parents, [0.0] * len(token_ids))


class Accepting(PackedRunner):
    """Accepts by tensors on a CPU too; a way to verify."""

    def __init__(self, *arguments, **sizes):
        super().__init__(*arguments, **sizes)
        self.accepts = True


class Allocations(TorchDispatchMode):
    """The size of each storage that an operation makes."""

    def __init__(self):
        super().__init__()
        self.num_bytes = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        result = operation(*args, **(kwargs or {}))
        for made in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in known:
                self.num_bytes.append(made.untyped_storage().nbytes())
        return result
