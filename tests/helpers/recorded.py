"""A recording of the operations on tensors, for tests on a CPU of what a GPU does.

A replay does them again on the same memory, and knows of nothing that Python did between them, as a
CUDA graph does.
"""

import torch

from specds.verify import packed, recordings


def record(monkeypatch, *nodes, slots=None):
    """Has a CPU run what a GPU does, by passes of these numbers of nodes."""
    monkeypatch.setattr(recordings, "recorder", lambda _: Recorded)
    monkeypatch.setattr(packed, "NODES", nodes)
    if slots is not None:
        monkeypatch.setattr(packed, "_SLOTS", slots)
    recordings._free.clear()
    Recorded.made = 0


def kept_of(model):
    """What is kept of a model between requests."""
    (kept,) = recordings._free[model]
    return kept


def tensors_in(result):
    found = result if isinstance(result, (tuple, list)) else [result]
    return [item for item in found if isinstance(item, torch.Tensor)]


class Recorded(recordings.ForbidHostSync):
    """Like `CudaRecording`: computed once to warm up, once to record, and again at each replay."""

    made = 0

    def __init__(self, compute, memory, device):
        super().__init__()
        self.operations = []
        compute()
        with self:
            self.output = compute()
        self.output.zero_()  # a recording computes nothing until it is replayed
        type(self).made += 1

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        self.operations.append((operation, args, kwargs or {}, tensors_in(result)))
        return result

    @torch.inference_mode()  # a graph writes where it likes
    def replay(self):
        for operation, args, kwargs, kept in self.operations:
            taken = {item.untyped_storage().data_ptr() for item in tensors_in(args)}
            for old, new in zip(kept, tensors_in(operation(*args, **kwargs)), strict=True):
                if old.untyped_storage().data_ptr() not in taken:
                    old.copy_(new)
