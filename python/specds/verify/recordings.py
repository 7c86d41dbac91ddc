"""CUDA graphs: passes of few shapes, each recorded once and replayed without Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import torch

from specds.verify.cache import TreeCache
from specds.verify.inputs import Inputs
from specds.verify.lean_forward import LeanForward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Shape = tuple[int, int, int]  # rows, their width, the slots that they see
Outputs = tuple[torch.Tensor, torch.Tensor | None]

# Held while a recording is made: there can be one at a time.
_recording = Lock()


class CudaRecording:
    """A CUDA graph of a computation on tensors that do not move, and its `outputs`.

    It shares its memory with another one, and the stream of the recording, on which nothing else
    runs: so the workspace that cuBLAS keeps for a stream lies in that memory too.
    """

    def __init__(
        self, compute: Callable[[], Outputs], other: CudaRecording | None, device: torch.device
    ) -> None:
        graph, new_stream = torch.cuda.CUDAGraph(), cast("Any", torch.cuda.Stream)
        pool, stream = (None, new_stream(device)) if other is None else other.shared
        # Other threads may use the device meanwhile.
        mode: Any = {"stream": stream, "capture_error_mode": "thread_local"}
        with _recording, torch.cuda.device(device):
            # Libraries set themselves up in the first runs, which must not be recorded.
            for _ in range(2):
                compute()
            # A recording that fails does not leave its stream.
            with (
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(graph, pool, **mode),
            ):
                self.outputs = compute()
        self.shared: Any = graph.pool(), stream
        self.replay = graph.replay


def recorder(device: torch.device) -> Callable[..., CudaRecording] | None:
    """The class of recordings on a device; None where there is nothing to gain."""
    return CudaRecording if device.type == "cuda" else None


def launched(device: torch.device) -> Callable[[], None]:
    """A function that waits for what was launched on a device so far, and not for later launches.

    Threads share a stream: one that waited for it would wait for the passes of the others too.
    """
    if device.type != "cuda":
        return lambda: None
    with torch.cuda.device(device):
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
    return done.synchronize


class PassBuffers:
    """The inputs of passes of one shape, on the host and on the device, and their recordings."""

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        # The next request may run outside of the inference mode of this one.
        with torch.inference_mode(False):
            self._host = Inputs.on_host(num_rows, width, pinned=device.type == "cuda")
            self.inputs = self._host.to(device)
        # By what they tell of acceptance: the numbers of predictions and of known tokens.
        self.recordings: dict[tuple[int, int] | None, CudaRecording] = {}

    def fill(self, *rows: Any) -> None:
        """As `Inputs.fill`, on the device."""
        self._host.fill(*rows)
        self.inputs.numbers.copy_(self._host.numbers, non_blocking=True)


class Workspace:
    """What a request of a model leaves to the next one: a cache, and passes recorded over it.

    Recordings are valid for the `fingerprint` of the model and as long as the cache does not move.

    Attributes:
        forward: The lean forward of the model, where it has one.
        scratch: The memory of `tree_attention`, where that runs.
        is_tried: Whether the kernels were tried.
        reason: Why passes are slower than they could be.
    """

    def __init__(self, valid_for: tuple[Any, ...] = ()) -> None:
        self.valid_for = valid_for
        self.cache = TreeCache(0)
        self._storage = self.cache.storage
        # By shape, and the slots of a row.
        self.passes: dict[tuple[Shape, int], PassBuffers] = {}
        self.records = True
        self.forward: LeanForward | None = None
        self.scratch: torch.Tensor | None = None
        self.is_tried = False
        self.reason = ""

    def slow_down(self, reason: str) -> None:
        """Notes why passes are slower from now on, and warns of it."""
        self.reason = "; ".join(filter(None, (self.reason, reason)))
        warnings.warn(f"drafts are verified slower: {reason}", stacklevel=2)

    def buffers(self, shape: Shape, device: torch.device) -> PassBuffers:
        """Those of a shape; when the cache has moved, all are dropped."""
        if self.cache.storage != self._storage:
            self.passes.clear()
            self._storage = self.cache.storage
        key = shape, self.cache.capacity
        if key not in self.passes:
            self.passes[key] = PassBuffers(*shape[:2], device)
        return self.passes[key]

    def outputs(
        self,
        buffers: PassBuffers,
        reported: tuple[int, int] | None,
        compute: Callable[[], Outputs],
        device: torch.device,
    ) -> Outputs:
        """What `compute` gives, by a recording where there can be one, made at first use."""
        record = recorder(device)
        if not self.records or record is None:
            return compute()
        if reported not in buffers.recordings:
            others = chain.from_iterable(of.recordings.values() for of in self.passes.values())
            try:
                buffers.recordings[reported] = record(compute, next(others, None), device)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as failure:
                if isinstance(failure.__context__, torch.OutOfMemoryError):
                    raise failure.__context__ from None  # what ended the recording
                self.records = False
                self.slow_down(f"passes are not recorded as CUDA graphs: {failure}")
                return compute()
        recording = buffers.recordings[reported]
        recording.replay()
        return recording.outputs


# The workspaces that no request uses at present.
_free: WeakKeyDictionary[torch.nn.Module, list[Workspace]] = WeakKeyDictionary()
_looking = Lock()


def take(model: PreTrainedModel) -> Workspace:
    """A workspace that an earlier request left, if it is still valid and free; else a new one."""
    now = fingerprint(model)
    with _looking:
        free = [each for each in _free.pop(model, []) if each.valid_for == now]
        workspace = free.pop() if free else Workspace(now)
        _free[model] = free
    return workspace


def give_back(model: PreTrainedModel, workspace: Workspace) -> None:
    """Leaves a workspace to the next request, unless it was released meanwhile."""
    with _looking:
        if model in _free:
            _free[model].append(workspace)


def release(model: PreTrainedModel) -> None:
    """Frees what requests of a model have left: key-value cache, CUDA graphs, copied weights.

    Call it too after a change that the model's modules do not show, such as one of a global
    variable that its code reads.
    """
    with _looking:
        _free.pop(model, None)


def fingerprint(model: PreTrainedModel) -> tuple[Any, ...]:
    """What a recorded pass depends on besides its inputs and the values of the weights."""
    modules = tuple(
        (
            id(module),
            type(module),
            "forward" in module.__dict__,
            tuple(module._forward_hooks),
            tuple(module._forward_pre_hooks),
            tuple((name, of) for name, of in vars(module).items() if _is_plain(of)),
        )
        for module in model.modules()
    )
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    settings = tuple(repr(config.__dict__) for config in configs.values())
    tensors = chain(model.parameters(), model.buffers())
    weights = tuple((_address(tensor), tensor.dtype, tensor.shape) for tensor in tensors)
    every = torch.nn.modules.module
    hooks = tuple(every._global_forward_hooks), tuple(every._global_forward_pre_hooks)
    return modules, settings, weights, hooks, autocast_dtype(model.device)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype to which autocast now converts on a device; None where it is off."""
    casts = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if casts else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (int, float, str, torch.dtype))


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # quantised tensors may be made of several others
        return id(tensor)
