"""A recording of the operations on tensors, for tests on a CPU of what a GPU does.

A replay does them again on the same memory, and knows of nothing that Python did between them, as a
CUDA graph does.
"""

import torch

from models import decodes_alike
from specds.transformers.verify import packed, recordings


def record(monkeypatch, *nodes, slots=None):
    """Make a CPU record passes as a GPU does, with these numbers of nodes."""
    monkeypatch.setattr(recordings, "recorder", lambda _: Recorded)
    monkeypatch.setattr(packed, "NODES", nodes)
    if slots is not None:
        monkeypatch.setattr(packed, "_SLOTS", slots)
    recordings._free.clear()
    Recorded.made = 0


def kept_of(model):
    """Return the state that is retained of a model between requests."""
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


# Changes of a model in Python.


def put_a_hook(model):
    return model.model.layers[0].register_forward_hook(lambda _, args, output: -output)


def put_a_hook_on_all(model):
    def negate(module, args, output):
        return -output if type(module).__name__ == "LlamaMLP" else None

    return torch.nn.modules.module.register_module_forward_hook(negate)


def change_an_attribute(model):
    for layer in model.model.layers:
        layer.self_attn.scaling = 1.5


class Adapted(torch.nn.Module):
    """A projection with an adapter, and a switch for it as PEFT has."""

    def __init__(self, base):
        super().__init__()
        self.base, self.is_on = base, True

    def forward(self, states):
        return self.base(states) * (2 if self.is_on else 1)


def switch_an_adapter(model):
    model.model.layers[1].mlp.up_proj.is_on ^= True


CHANGES = (put_a_hook, put_a_hook_on_all, change_an_attribute, switch_an_adapter)


def texts_follow(change, model):
    """Check the texts of a model before and after a change that recordings must notice."""
    mlp = model.model.layers[1].mlp
    mlp.up_proj = Adapted(mlp.up_proj)
    before = decodes_alike(model, verification="packed").sequences
    hook = change(model)
    try:
        assert not torch.equal(decodes_alike(model, verification="packed").sequences, before)
        made = Recorded.made
        decodes_alike(model, verification="packed")
        assert Recorded.made == made
    finally:
        if hook is not None:
            hook.remove()
