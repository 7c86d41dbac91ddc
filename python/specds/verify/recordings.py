"""How does a GPU not wait for the host: passes of few shapes, each recorded once and kept."""

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

# Only one recording can be made at a time.
_recording = Lock()


class CudaRecording:
    """A CUDA graph: a computation on tensors that stay where they are, and its `outputs`.

    It shares its memory with another, and the stream on which it is made and nothing is computed:
    so the workspace that cuBLAS keeps for a stream lies in that memory too.
    """

    def __init__(
        self, compute: Callable[[], Outputs], other: CudaRecording | None, device: torch.device
    ) -> None:
        graph, new_stream = torch.cuda.CUDAGraph(), cast("Any", torch.cuda.Stream)
        pool, stream = (None, new_stream(device)) if other is None else other.shared
        # What other threads do on the device is no part of it.
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
    """What records passes on a device; None where there is nothing to gain."""
    return CudaRecording if device.type == "cuda" else None


def event(device: torch.device) -> torch.cuda.Event | None:
    """Tells when all that was asked of a device so far is done; None where it already is."""
    if device.type != "cuda":
        return None
    with torch.cuda.device(device):
        made = torch.cuda.Event()  # type: ignore[no-untyped-call]
        made.record()
    return made


class Pass:
    """The inputs of a pass of one shape, here and on the device; its recordings by `told`."""

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        # The next request may be made outside of an inference mode that this one is made in.
        with torch.inference_mode(False):
            self._host = Inputs.on_host(num_rows, width, pinned=device.type == "cuda")
            self.inputs = self._host.to(device)
        self.recordings: dict[tuple[int, int] | None, CudaRecording] = {}

    def fill(self, *rows: Any) -> None:
        """As `Inputs.fill`, on the device."""
        self._host.fill(*rows)
        self.inputs.numbers.copy_(self._host.numbers, non_blocking=True)


class Kept:
    """What the requests of one model hand on: a cache and the passes recorded over it.

    Recordings are right for what `fingerprint` saw and for slots that lie where they did.
    """

    def __init__(self, seen: tuple[Any, ...]) -> None:
        self.seen = seen
        self.cache = TreeCache(0)
        self._storage = self.cache.storage
        # By shape, and the slots that a row has.
        self.passes: dict[tuple[Shape, int], Pass] = {}
        self.records = True
        self.forward: LeanForward | None = None
        # Whether kernels were tried, and the memory of `tree_attention` where it runs.
        self.is_tried = False
        self.scratch: torch.Tensor | None = None
        # Why passes are slower than they might be.
        self.reason = ""

    def slow_down(self, reason: str) -> None:
        """Notes why passes are slower from now on, and warns of it."""
        self.reason = "; ".join(filter(None, (self.reason, reason)))
        warnings.warn(f"drafts are verified slower: {reason}", stacklevel=2)

    def pass_of(self, shape: Shape, device: torch.device) -> Pass:
        """The tensors of a pass; those of other addresses are forgotten where the cache moved."""
        if self.cache.storage != self._storage:
            self.passes.clear()
            self._storage = self.cache.storage
        key = shape, self.cache.capacity
        if key not in self.passes:
            self.passes[key] = Pass(*shape[:2], device)
        return self.passes[key]

    def outputs(
        self,
        of_shape: Pass,
        told: tuple[int, int] | None,
        compute: Callable[[], Outputs],
        device: torch.device,
    ) -> Outputs:
        """What `compute` gives, with what is `told` of acceptance, by its recording: new or old."""
        record = recorder(device)
        if not self.records or record is None:
            return compute()
        if told not in of_shape.recordings:
            others = chain.from_iterable(of.recordings.values() for of in self.passes.values())
            try:
                of_shape.recordings[told] = record(compute, next(others, None), device)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as failure:
                if isinstance(failure.__context__, torch.OutOfMemoryError):
                    raise failure.__context__ from None  # what ended the recording
                self.records = False
                self.slow_down(f"passes are not recorded as CUDA graphs: {failure}")
                return compute()
        recording = of_shape.recordings[told]
        recording.replay()
        return recording.outputs


# Those that no request uses at present.
_free: WeakKeyDictionary[torch.nn.Module, list[Kept]] = WeakKeyDictionary()
_looking = Lock()


def take(model: PreTrainedModel) -> Kept:
    """What an earlier request left, if it is still right and no other request has it; else new."""
    seen = fingerprint(model)
    with _looking:
        free = [kept for kept in _free.pop(model, []) if kept.seen == seen]
        kept = free.pop() if free else Kept(seen)
        _free[model] = free
    return kept


def give_back(model: PreTrainedModel, kept: Kept) -> None:
    """Leaves it to the next request."""
    with _looking:
        if model in _free:  # else it was released meanwhile
            _free[model].append(kept)


def release(model: PreTrainedModel) -> None:
    """Frees what requests of a model have left: key-value cache, CUDA graphs, copied weights.

    Call it too when a model was changed in a way that its modules do not show, such as a global
    variable that its code reads.
    """
    with _looking:
        _free.pop(model, None)


def fingerprint(model: PreTrainedModel) -> tuple[Any, ...]:
    """All that a recorded pass depends on besides its inputs and the values of the weights."""
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
    """What operations compute in on a device at present, whatever they are given; None: that."""
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
