"""CUDA graphs of forward passes: each shape is recorded once and replayed without Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import chain
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from specds.generation.noise import DRAWING
from specds.transformers.verify.cache import TreeCache
from specds.transformers.verify.fused_forward import FusedForward
from specds.transformers.verify.inputs import Inputs

PassShape = tuple[int, int, int]  # rows, width, slots


class _Stream:
    """A stream of torch; in torch 2.11 a weak reference to the stream itself would crash."""

    def __init__(self, stream: Any) -> None:
        self.of_torch = stream


# The streams of recordings by their CUDA handle: torch returns 32 of them in turn.
_streams: WeakValueDictionary[int, _Stream] = WeakValueDictionary()
# The index of each is that of its source among its arguments.
_COPIES = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default
# Attributes of all modules that `fingerprint` reads otherwise, or not at all.
_OF_ALL = vars(torch.nn.Module()).keys() - {"training"}
_PLAIN = type(None), bool, int, float, str, torch.dtype
_BY_INDICES = {"aten::index.Tensor", "aten::index_put", "aten::index_put_"}
_WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class ForbidHostSync(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Error for each operation after which the host waits for the device, in this thread."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        waits = bool(_WAITING & {*operation.tags})
        if operation in _COPIES:
            waits = result.device.type != args[_COPIES.index(operation)].device.type
        if operation.name() in _BY_INDICES:
            waits = any(of is not None and of.dtype == torch.bool for of in args[1])
        if waits:
            raise RuntimeError(f"{operation.name()} waits for the device")
        return result


class CudaRecording:
    """A CUDA graph of a computation on tensors that do not move, and its `output`.

    It shares its memory and its stream with another recording. Nothing else runs on the stream, so
    the workspace that cuBLAS keeps for a stream lies in that memory too.

    Args:
        compute: The computation.
        other: The recording to share with.
        device: The device.
    """

    def __init__(
        self, compute: Callable[[], Tensor], other: CudaRecording | None, device: torch.device
    ) -> None:
        graph = torch.cuda.CUDAGraph()
        pool, stream = (None, _unused_stream(device)) if other is None else other.shared
        # Other threads may use the device meanwhile.
        mode: Any = {"stream": stream.of_torch, "capture_error_mode": "thread_local"}
        with DRAWING, torch.cuda.device(device):
            # Libraries initialize in the first runs, which must not be recorded.
            compute()
            with ForbidHostSync():  # type: ignore[no-untyped-call]
                compute()
            state = torch.cuda.get_rng_state(device)
            try:
                # A failed recording does not leave its stream by itself.
                with (
                    torch.cuda.stream(torch.cuda.current_stream()),
                    torch.cuda.graph(graph, pool, **mode),
                ):
                    self.output = compute()
            except BaseException:
                _reset_default_generator(device, state)
                raise
        self.shared: Any = graph.pool(), stream
        self.replay = graph.replay


def _unused_stream(device: torch.device) -> _Stream:
    """Return a stream of no other workspace, since the end of that one frees cuBLAS's memory."""
    for _ in range(32):
        stream = _Stream(cast("Any", torch.cuda.Stream)(device))
        if _streams.setdefault(stream.of_torch.cuda_stream, stream) is stream:
            break
    return stream


def _reset_default_generator(device: torch.device, state: Tensor) -> None:
    """Replace the state of the default generator, which a failed recording leaves recording."""
    index = torch.cuda.current_device() if device.index is None else device.index
    fresh: Any = torch.Generator(device)
    fresh.set_state(state)
    generator: Any = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def recorder(device: torch.device) -> Callable[..., CudaRecording] | None:
    """Return the class of recordings on a device, or None for devices without them."""
    return CudaRecording if device.type == "cuda" else None


def device_event(device: torch.device) -> Callable[[], None]:
    """Return a function that waits for the launches on a device up to now.

    Threads share a stream: waiting for it would include the later passes of other threads.
    """
    if device.type != "cuda":
        return lambda: None
    with torch.cuda.device(device):
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
    return done.synchronize


class PassBuffers:
    """The inputs of passes of one shape, on the host and on the device, and their recordings.

    Attributes:
        inputs: The inputs on the device.
        recordings: By the numbers of predictions and of known tokens; None for logits.
    """

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        # The next request may run outside of the inference mode of this one.
        with torch.inference_mode(False):
            self._host = Inputs.on_host(num_rows, width, pinned=device.type == "cuda")
            self.inputs = self._host.to(device)
        self.recordings: dict[tuple[int, int] | None, CudaRecording] = {}

    def fill(self, *rows: Any) -> None:
        """Fill the inputs on the device (see `Inputs.fill`)."""
        self._host.fill(*rows)
        self.inputs.numbers.copy_(self._host.numbers, non_blocking=True)


class Workspace:
    """The cache and the recorded passes that a request of a model leaves to the next one.

    Recordings are valid for the `fingerprint` of the model and as long as the cache does not move.

    Attributes:
        valid_for: The `fingerprint` of the model.
        cache: The KV cache.
        passes: The inputs of passes by their shape and the slots of a row.
        records: Whether passes are recorded.
        forward: The fused forward of the model, if it has one.
        has_kernels: Whether the Triton kernels run.
        is_tried: Whether the kernels were probed.
        reason: Why passes are slower than they could be.
    """

    def __init__(self, valid_for: tuple[Any, ...] = ()) -> None:
        self.valid_for = valid_for
        self.cache = TreeCache(0)
        self._storage = self.cache.storage
        self.passes: dict[tuple[PassShape, int], PassBuffers] = {}
        self.records = True
        self.forward: FusedForward | None = None
        self.has_kernels = False
        self.is_tried = False
        self.reason = ""

    def record_fallback(self, reason: str) -> None:
        """Record why passes are slower from now on, and warn of it."""
        self.reason = "; ".join(filter(None, (self.reason, reason)))
        warnings.warn(f"drafts are verified slower: {reason}", stacklevel=2)

    def buffers(self, shape: PassShape, device: torch.device) -> PassBuffers:
        """Return the inputs of a shape; all are dropped when the cache has moved."""
        if self.cache.storage != self._storage:
            self.passes.clear()
            self._storage = self.cache.storage
        key = shape, self.cache.capacity
        if key not in self.passes:
            self.passes[key] = PassBuffers(*shape[:2], device)
        return self.passes[key]

    def output(
        self,
        buffers: PassBuffers,
        reported: tuple[int, int] | None,
        compute: Callable[[], Tensor],
        device: torch.device,
    ) -> Tensor:
        """Return the result of `compute`, from a recording if possible, made at first use."""
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
                    raise failure.__context__ from None  # this error ended the recording
                self.records = False
                self.record_fallback(f"passes are not recorded as CUDA graphs: {failure}")
                return compute()
        recording = buffers.recordings[reported]
        recording.replay()
        return recording.output


# The workspaces that are not in use.
_free: WeakKeyDictionary[torch.nn.Module, list[Workspace]] = WeakKeyDictionary()
_looking = Lock()


def acquire(model: PreTrainedModel) -> Workspace:
    """Return a valid workspace that an earlier request left, or a new one."""
    now = fingerprint(model)
    with _looking:
        free = [each for each in _free.pop(model, []) if each.valid_for == now]
        workspace = free.pop() if free else Workspace(now)
        _free[model] = free
    return workspace


def release_workspace(model: PreTrainedModel, workspace: Workspace) -> None:
    """Leave a workspace to the next request, unless `release` was called meanwhile."""
    with _looking:
        if model in _free:
            _free[model].append(workspace)


def release(model: PreTrainedModel) -> None:
    """Free the resources of a model's requests: KV cache, CUDA graphs and copied weights.

    Call it too after a change that the model's modules do not show, such as the change of a global
    variable that its code reads.
    """
    with _looking:
        _free.pop(model, None)


def fingerprint(model: PreTrainedModel) -> tuple[Any, ...]:
    """Return all that a recorded pass depends on, except its inputs and the weights' values."""
    # One walk, since a request waits for it: 700 modules take the host milliseconds.
    every_module = [*model.modules()]
    modules = tuple(map(_of_module, every_module))
    owned = map(vars, every_module)
    configs = {id(of["config"]): of["config"] for of in owned if "config" in of}
    settings = tuple(repr(config.__dict__) for config in configs.values())
    held = [named.values() for of in every_module for named in (of._parameters, of._buffers)]
    tensors = (tensor for tensor in chain.from_iterable(held) if tensor is not None)
    weights = tuple((*_address(tensor), tensor.dtype, tensor.shape) for tensor in tensors)
    every = torch.nn.modules.module
    hooks = tuple(every._global_forward_hooks), tuple(every._global_forward_pre_hooks)
    return modules, settings, weights, hooks, autocast_dtype(model.device)


def _of_module(module: torch.nn.Module) -> tuple[Any, ...]:
    own = vars(module)
    hooks = tuple(own["_forward_hooks"]), tuple(own["_forward_pre_hooks"])
    others = [(name, of) for name, of in own.items() if name not in _OF_ALL and _is_plain(of)]
    return id(module), type(module), "forward" in own, hooks, tuple(others)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype to which autocast converts on a device; None if it is off."""
    casts = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if casts else None


def _is_plain(value: Any) -> bool:
    if type(value) in _PLAIN:
        return True
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _address(tensor: Tensor) -> tuple[int, ...]:
    """Return where the numbers of a tensor lie: its address and its strides."""
    try:
        return tensor.data_ptr(), *tensor.stride()
    except RuntimeError:  # quantized tensors may consist of several others
        return (id(tensor),)
