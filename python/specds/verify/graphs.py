"""How does a GPU not wait for the host: passes of few shapes, each recorded once."""

from __future__ import annotations

import warnings
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch

from specds.verify.batch_inputs import Inputs
from specds.verify.cache import TreeCache
from specds.verify.packed_runner import PackedRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from specds.accept.on_device import PassRequest

    Shape = tuple[int, int, int]
    Outputs = tuple[torch.Tensor, torch.Tensor | None]

_NODES = (0, 8, 16, 32, 64)
# What is rounded up is read: of Llama-2-7B, 1,024 slots take as long as 4 % of the weights.
_SLOTS = (512, 1024, 2048)


def bucket(number: int, sizes: tuple[int, ...]) -> int:
    """The smallest of `sizes`, or multiple of the largest, that is not below `number`."""
    fitting = next((size for size in sizes if size >= number), None)
    return -(-number // sizes[-1]) * sizes[-1] if fitting is None else fitting


# Only one recording can be made at a time.
_recording = Lock()


class SharedMemory:
    """What recordings share that come and go together: they are replayed one after the other.

    Attributes:
        pool: Of the device's memory. It may not be used again when all that used it are gone.
        stream: They are made on it, and nothing is computed there: so the workspace that cuBLAS
            keeps for a stream lies in the pool too, and lives as long as they do.
    """

    def __init__(self, device: torch.device) -> None:
        self.pool: Any = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class CudaRecording:
    """A CUDA graph: a computation on tensors that stay where they are, and its `outputs`.

    Args:
        compute: What to record; it is run a few times.
        memory: Shared with the recordings that it takes turns with.
        device: Where the tensors are.
    """

    def __init__(
        self, compute: Callable[[], Outputs], memory: SharedMemory, device: torch.device
    ) -> None:
        self._graph = torch.cuda.CUDAGraph()
        # What other threads do on the device is no part of it.
        mode: Any = {"stream": memory.stream, "capture_error_mode": "thread_local"}
        with _recording, torch.cuda.device(device):
            # Libraries set themselves up in the first runs, which must not be recorded.
            for _ in range(2):
                compute()
            # A recording that fails does not leave its stream.
            with (
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(self._graph, memory.pool, **mode),
            ):
                self.outputs = compute()

    def replay(self) -> None:
        """Computes again, from what the tensors hold now, into `outputs`."""
        self._graph.replay()


class _Pass:
    """The tensors of a pass of one shape, and its recordings.

    Attributes:
        host: Its inputs in the host's memory, from where a device can copy by itself.
        numbers: The same on the device.
        recordings: The pass, by what of its acceptance is in it.
    """

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        # The next request may be made outside of an inference mode that this one is made in.
        with torch.inference_mode(False):
            self.host = Inputs.on_host(num_rows, width, pinned=pinned)
            self.numbers = torch.zeros_like(self.host.numbers, device=device)
        self.recordings: dict[tuple[int, int] | None, CudaRecording] = {}


class _Kept:
    """What the requests of one model hand on: a cache and the passes recorded over it.

    Attributes:
        weights: Where the weights lie and of what kind they are; recordings are right for these.
        in_use: Held by the request that uses it.
        cache: Its slots stay where they are until a request needs more.
        storage: Where they were when the passes were recorded.
        passes: By shape.
        records: Whether passes can be recorded.
        memory: Of the recordings; None where there is none, or no CUDA device.
    """

    def __init__(self, weights: tuple[Any, ...], num_layers: int) -> None:
        self.weights = weights
        self.in_use = Lock()
        self.cache = TreeCache(num_layers, 0)
        self.storage = self.cache.storage
        self.passes: dict[Shape, _Pass] = {}
        self.records = True
        self.memory: SharedMemory | None = None

    def forget_passes(self) -> None:
        """Makes room for those of other addresses."""
        self.passes.clear()
        self.memory = None

    def memory_on(self, device: torch.device) -> SharedMemory | None:
        """What the next recording shares with those that there are."""
        if device.type != "cuda":
            return None
        if self.memory is None or not any(made.recordings for made in self.passes.values()):
            self.memory = SharedMemory(device)
        return self.memory


_kept: WeakKeyDictionary[torch.nn.Module, _Kept] = WeakKeyDictionary()
_looking = Lock()


def _weights(model: PreTrainedModel) -> tuple[Any, ...]:
    tensors = chain(model.parameters(), model.buffers())
    return tuple((_address(tensor), tensor.dtype, tensor.shape) for tensor in tensors)


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # quantised tensors may be made of several others
        return id(tensor)


def _take(model: PreTrainedModel, num_layers: int) -> _Kept:
    """What an earlier request left; new where there is none, it is in use, or weights moved."""
    weights = _weights(model)
    with _looking:
        kept = _kept.get(model)
        if kept is None or kept.weights != weights or not kept.in_use.acquire(blocking=False):
            kept = _kept[model] = _Kept(weights, num_layers)
            kept.in_use.acquire()
        return kept


class GraphRunner(PackedRunner):
    """`PackedRunner` whose passes have few shapes, each recorded as a CUDA graph at first use.

    Widths, rows and the slots that are seen are rounded up; what is added sees itself alone and
    writes where nothing is. The cache stays for the model's next request, since the recordings hold
    its addresses: they are made again when it grows, and when the model's weights have moved. A
    pass that cannot be recorded is computed each time, after one warning.
    """

    _static = True
    _record: ClassVar[Callable[..., CudaRecording]] = CudaRecording

    def __init__(self, model: PreTrainedModel, **sizes: int) -> None:
        super().__init__(model, **sizes)
        num_rows = sizes.get("num_rows", 1)
        self._kept = _take(model, self._config.num_hidden_layers)
        self.cache = self._kept.cache
        self.cache.restart(num_rows, 1 << (num_rows - 1).bit_length(), bucket(self._slots, _SLOTS))

    @property
    def decides(self) -> bool:
        """As `PackedRunner.decides`: always."""
        return True

    def close(self) -> None:
        """As `Runner.close`."""
        self._kept.in_use.release()

    def _shape(self, num_rows: int, width: int, length: int) -> Shape:
        rows = 1 << (num_rows - 1).bit_length()
        width = 1 + bucket(width - 1, _NODES)
        return rows, width, bucket(length + width, _SLOTS)

    def _host_inputs(self, shape: Shape) -> Inputs:
        return self._pass_of(shape).host

    def _pass_of(self, shape: Shape) -> _Pass:
        # Before anything is recorded, so that it is not moved within a recording.
        self.cache.reserve(shape[2])
        if self.cache.storage != self._kept.storage:
            self._kept.forget_passes()
            self._kept.storage = self.cache.storage
        made = self._kept.passes.get(shape)
        if made is None:
            made = self._kept.passes[shape] = _Pass(*shape[:2], self._model.device)
        return made

    def _compute(self, host: Inputs, shape: Shape, request: PassRequest | None) -> Outputs:
        of_shape = self._pass_of(shape)
        of_shape.numbers.copy_(host.numbers, non_blocking=True)
        inputs = Inputs.of(of_shape.numbers, *shape[:2])
        # Samples have settings, so they are drawn from the logits of a recording.
        recorded = request if request is not None and request.choose.is_argmax else None

        def compute() -> Outputs:
            logits = self._pass(inputs, shape[2])
            return logits, None if recorded is None else self._accept(inputs, logits, recorded)

        logits, reported = self._outputs(of_shape, recorded, compute)
        if request is not None and reported is None:
            reported = self._accept(inputs, logits, request)
        return logits, reported

    def _outputs(
        self, of_shape: _Pass, recorded: PassRequest | None, compute: Callable[[], Outputs]
    ) -> Outputs:
        if not self._kept.records:
            return compute()
        # Greedy choices are the same for all requests, whoever makes them.
        accepts = None if recorded is None else (recorded.num_predictions, recorded.known_tokens)
        recording = of_shape.recordings.get(accepts)
        if recording is None:
            try:
                device = self._model.device
                recording = type(self)._record(compute, self._kept.memory_on(device), device)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as failure:
                if isinstance(failure.__context__, torch.OutOfMemoryError):
                    raise failure.__context__ from None  # what ended the recording
                self._kept.records = False
                warnings.warn(
                    f"passes are not recorded as CUDA graphs, which makes them slower: {failure}",
                    stacklevel=2,
                )
                return compute()
            of_shape.recordings[accepts] = recording
        recording.replay()
        return recording.outputs
