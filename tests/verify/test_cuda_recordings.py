"""Recording of CUDA graphs, with substitutes for the CUDA functions of torch."""

from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from specds.generation.noise import DRAWING
from specds.transformers.verify.recordings import CudaRecording, ForbidHostSync


class Generator:
    """A CUDA generator, which cannot draw while its state belongs to a recording."""

    def __init__(self, device=None):
        self.state = SimpleNamespace(recording=False, numbers=None)

    def set_state(self, numbers):
        self.state.numbers = numbers

    def graphsafe_get_state(self):
        return self.state

    def graphsafe_set_state(self, state):
        self.state = state

    def draw(self):
        assert not self.state.recording
        return self.state.numbers


class StubStream:
    """A stream without weak references, which crash in torch 2.11."""

    __slots__ = ("cuda_stream",)

    def __init__(self, number):
        self.cuda_stream = number


@pytest.fixture
def generator(monkeypatch):
    default, streams = Generator(), iter([*range(3), *range(3)])
    default.set_state("before")

    class Graph:
        def __init__(self, graph, pool, **mode):
            self.is_left = False

        def __enter__(self):
            assert DRAWING.locked()
            default.state.recording = True

        def __exit__(self, kind, *_):
            default.state.recording = kind is not None  # the end of a capture that failed fails too

    for name, stand_in in {
        "CUDAGraph": MagicMock,
        "graph": Graph,
        "device": nullcontext,
        "stream": nullcontext,
        "current_stream": lambda: None,
        "Stream": lambda _: StubStream(next(streams)),
        "get_rng_state": lambda _: default.state.numbers,
        "default_generators": [default],
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch, "Generator", Generator)
    return default


DEVICE = SimpleNamespace(index=0)


def test_failed_recording_leaves_a_working_generator(generator):
    calls = iter(range(9))

    def compute():
        if next(calls) == 2:
            raise RuntimeError("not permitted")
        return torch.ones(1)

    with pytest.raises(RuntimeError, match="not permitted"):
        CudaRecording(compute, None, DEVICE)
    assert generator.draw() == "before"
    assert not DRAWING.locked()
    state = generator.state
    CudaRecording(compute, None, DEVICE)
    assert (generator.draw(), generator.state) == ("before", state)


WAITS = {
    "a number": lambda of: of.sum().item(),
    "places": torch.nonzero,
    "a mask": lambda of: of[of > 0],
    "writing by a mask": lambda of: of.clone().index_put_((of > 0,), torch.zeros(())),
    "a copy": lambda of: of.to("meta"),
    "no wait": lambda of: of[torch.tensor([0])].masked_fill(of > 0, 1).to(torch.float64),
}


@pytest.mark.parametrize("name", WAITS)
def test_host_synchronization_is_detected_before_recording(name, generator):
    ones, waits = torch.ones(3), name != "no wait"
    with pytest.raises(RuntimeError, match="waits for the device") if waits else nullcontext():
        CudaRecording(lambda: WAITS[name](ones), None, DEVICE)
    assert not generator.state.recording
    with nullcontext() if not waits else pytest.raises(RuntimeError), ForbidHostSync():
        WAITS[name](ones)


def test_workspaces_record_on_separate_streams(generator):
    def record(other=None):
        return CudaRecording(lambda: torch.ones(1), other, DEVICE)

    first = record()
    same, second = record(first), record()
    assert same.shared[1] is first.shared[1]
    assert [each.shared[1].of_torch.cuda_stream for each in (first, second)] == [0, 1]
    third = record()
    del second
    # torch returns 0 next, which is in use, and then 1, which is free again.
    assert [made.shared[1].of_torch.cuda_stream for made in (third, record())] == [2, 1]
