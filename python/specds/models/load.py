"""Loading of models and tokenizers by name: the demo's, local folders, names on the hub."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stderr,
    suppress,
)
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from specds._core import ForwardModel, GgufFile, UnsupportedFileError
from specds._lazy import advice, imported
from specds.models.gguf import CONVERTED, GgufVocabulary, architecture_of, field
from specds.models.gguf_model import GgufModel, model_class
from specds.models.gguf_tokenizer import UnknownTokenizerError, pretrained_tokenizer
from specds.models.gguf_writer import write_llama
from specds.models.packing import packed
from specds.models.resolve import (
    OF_DEMO,
    LoadingError,
    ModelRef,
    may_have_gpu,
    require_placement,
    whole_dtype,
)
from specds.models.tokenization import FastTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Framework: TypeAlias = Literal["transformers", "numpy"]


def load_tokenizer(name: str | ModelRef) -> PreTrainedTokenizerBase:
    """Load a tokenizer: ``demo``, a local folder, a GGUF file, or a name on the hub."""
    ref = ModelRef.resolve(name, "tokenizer")
    if ref.kind == "gguf":
        with suppress(UnknownTokenizerError):
            return pretrained_tokenizer(GgufFile(ref.path), ref.path)
    tokenizer: PreTrainedTokenizerBase = _load("AutoTokenizer", "tokenizer", ref)
    return tokenizer


def load_encoder(name: str | ModelRef) -> PreTrainedTokenizerBase:
    """Load a tokenizer for text: a `FastTokenizer`, without torch, if its files allow it."""
    ref = ModelRef.resolve(name, "tokenizer")
    fast = None
    if find_spec("tokenizers"):
        read = FastTokenizer.read_gguf if ref.kind == "gguf" else FastTokenizer.read
        fast = read(Path(ref.path))
    elif not find_spec("torch"):  # which needs ten times the disk
        raise ImportError(advice("tokenizers"))
    return load_tokenizer(ref) if fast is None else cast("PreTrainedTokenizerBase", fast)


def load_vocabulary(name: str | ModelRef) -> PreTrainedTokenizerBase:
    """Load a model's vocabulary and chat template, without torch if possible.

    The fields of a GGUF file are read directly; other names are loaded by `load_encoder`.
    """
    ref = ModelRef.resolve(name, "tokenizer")
    if ref.kind != "gguf":
        return load_encoder(ref)
    return cast("PreTrainedTokenizerBase", GgufVocabulary.read(ref.path))


def load_model(
    name: str | ModelRef,
    *,
    device: str = "auto",
    dtype: str = "auto",
    tokenizer: PreTrainedTokenizerBase | None = None,
    activations: str | None = None,
    framework: Framework = "transformers",
    context_length: int | None = None,
    cache_type: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[Any, Any]:
    """Load a causal language model, ready to generate, and its tokenizer.

    Args:
        name: ``demo``, ``demo-small``, ``demo-tiny``, ``smollm2``, a local folder, a GGUF file, or
            a name on the hub. A GGUF file is computed as it is on a CPU (see `load_gguf`) if its
            architecture and types are supported; otherwise, its weights are converted.
        device: ``auto`` selects the first GPU if there is one, else the CPU.
        dtype: ``auto`` is float32 on a CPU, where half precision does not help and makes ties,
            and the checkpoint's dtype on other devices.
        tokenizer: The model's tokenizer, if it is already loaded.
        activations: Activations of a GGUF file on a CPU, by default `int8`; see `load_gguf`.
        framework: `numpy` returns a `GgufModel` if the core can compute the model on a CPU: a GGUF
            file or one of the demo's models.
        context_length: Most tokens of a text of a GGUF file on a CPU; see `load_gguf`.
        cache_type: Precision of the keys and values of a GGUF file on a CPU; see `load_gguf`.
        progress: Is called several times a second with the bytes of a GGUF file's weights that are
            packed, and those of all.

    Raises:
        ImportError: A package is missing.
        LoadingError: The name, the device or the dtype does not exist.
    """
    require_placement(device, dtype)
    ref = ModelRef.resolve(name)
    if framework == "transformers":
        require_packages(ref, "torch", "transformers")
    reason = ""
    if ref.kind == "gguf":
        wanted = device, whole_dtype(dtype), activations or "int8", context_length, cache_type
        native = _load_native(ref, *wanted, tokenizer, framework, progress)
        if isinstance(native, tuple):
            return native
        reason = native
    elif framework == "numpy" and ref.name in OF_DEMO:
        try:
            return _load_demo(Path(ref.path), activations or "float32", context_length, cache_type)
        except UnsupportedFileError as error:
            reason = f"native cannot compute it: {error}"
    given = {"context_length": context_length, "cache_type": cache_type}
    for name, value in {"activations": activations, **given}.items():
        if value is not None and (name, value) != ("activations", "float32"):
            why = f": {reason}" if reason else ""
            raise LoadingError(f"{name}={value!r} is for GGUF files on a CPU{why}")
    if ref.kind == "gguf":
        _require_one_file(ref, "model", reason)
    try:
        require_packages(ref)
    except ImportError as error:
        if ref.kind == "gguf" and (named := architecture_of(ref.path)) not in CONVERTED:
            raise LoadingError(
                f"no model `{ref.name}`: neither specds nor transformers computes the "
                f'architecture "{named}": run it with llama.cpp'
            ) from None
        raise ImportError(f"{reason}; {error}" if reason else str(error)) from error
    device, dtype = resolve_placement(device, whole_dtype(dtype))
    if tokenizer is None or isinstance(tokenizer, (FastTokenizer, GgufVocabulary)):
        tokenizer = _load("AutoTokenizer", "model", ref)
    if dtype == "auto" and device == "cpu":
        dtype = "float32"
    model: PreTrainedModel = _load("AutoModelForCausalLM", "model", ref, dtype=dtype)
    if ref.kind == "gguf":
        # transformers marks the model as quantized, but the weights were converted to `dtype`.
        for attribute, value in _PLAIN.items():
            setattr(model, attribute, value)
        vars(model.config).pop("quantization_config", None)
        vars(model)["not_native"] = reason
    return model.to(device).eval(), cast("PreTrainedTokenizerBase", tokenizer)  # type: ignore[arg-type]


def _load_native(
    ref: ModelRef,
    device: str,
    dtype: str,
    activations: Any,
    context_length: int | None,
    cache_type: Any,
    tokenizer: PreTrainedTokenizerBase | None,
    framework: Framework,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[Any, Any] | str:
    """Load a GGUF file for the backend `native`, or return why that cannot compute it."""
    if dtype not in ("auto", "float32"):
        return f"native computes in float32, not {dtype}"
    if device not in ("auto", "cpu"):
        return f"native computes on a CPU, not on {device}"
    file = GgufFile(ref.path)
    # Neither torch, which takes seconds to import, nor packed weights without need.
    is_auto = device == "auto" and may_have_gpu()
    if is_auto and (chosen := resolve_placement(device, dtype)[0]) != "cpu":
        return f"native computes on a CPU, not on {chosen}"
    try:
        weights = packed(file, ref.path, progress)
        if framework == "numpy":
            fast = FastTokenizer.of_gguf(file, ref.path)
        elif tokenizer is None or isinstance(tokenizer, (FastTokenizer, GgufVocabulary)):
            tokenizer = pretrained_tokenizer(file, ref.path)
    except (UnsupportedFileError, UnknownTokenizerError) as error:
        return f"native cannot compute it: {error}"
    made = file, weights, ref.path, activations, context_length, cache_type
    return model_class(framework).of(*made), fast if framework == "numpy" else tokenizer


def _load_demo(
    folder: Path, activations: Any, context_length: int | None, cache_type: Any
) -> tuple[Any, Any]:
    """Load a built-in model by the core, which computes its weights as they are."""
    with TemporaryDirectory() as temporary:
        path = Path(temporary, "model.gguf")
        write_llama(folder, path)
        weights = ForwardModel(GgufFile(path))
    settings = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    eos = {"eos_token_id": settings["eos_token_id"]}
    model = GgufModel(weights, activations, eos, str(folder), context_length, cache_type)
    # Its passes are so short that a second thread would only wait.
    model.threads = 1
    return model, FastTokenizer.read(folder)


_PLAIN: dict[str, Any] = {"hf_quantizer": None, "is_quantized": False, "quantization_method": None}


def one_thread_for(name: str) -> None:
    """Run the demo's models on one thread, unless `OMP_NUM_THREADS` is set.

    Their forward passes are short: on busy cores, two threads that wait for each other are 25 times
    slower.
    """
    if name.startswith("demo") and not os.environ.get("OMP_NUM_THREADS"):
        import_module("torch").set_num_threads(1)


def resolve_placement(device: str, dtype: str) -> tuple[str, str]:
    """Return the device of a name, for ``auto`` the first GPU or else the CPU, and `dtype`."""
    torch = imported("torch")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise LoadingError(f"no device `{device}`: try auto, cpu or cuda") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise LoadingError(f"no device `{device}` on this machine: try auto or cpu")
    return device, dtype


def require_packages(ref: ModelRef, *packages: str) -> None:
    """Raise ImportError for the first package that is missing: of these, or of all for a model."""
    of_gguf = ("gguf", "accelerate") * (ref.kind == "gguf")
    for package in packages or ("torch", "transformers", *of_gguf):
        if find_spec(package) is None:
            raise ImportError(advice(package))


def _require_one_file(ref: ModelRef, kind: str, reason: str = "") -> None:
    """Reject a split GGUF file, of which transformers reads the first part alone."""
    if field(GgufFile(ref.path), "split.count", 1) != 1:
        why = f"{reason}, and " if reason else ""
        raise LoadingError(
            f"no {kind} `{ref.name}`: {why}transformers reads no split files: join the parts with "
            "llama-gguf-split --merge"
        )


def _load(auto_class: str, kind: str, ref: ModelRef, **arguments: Any) -> Any:
    path = ref.path
    if ref.kind == "gguf":
        _require_one_file(ref, kind)
        path, arguments["gguf_file"] = map(str, (Path(path).parent, Path(path).name))
    require_packages(ref)
    loader = getattr(import_module("transformers"), auto_class)
    try:
        # Downloads show their progress; local files load at once.
        with _no_bars() if Path(path).is_dir() else nullcontext(), _no_others(arguments):
            return loader.from_pretrained(path, **arguments)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise LoadingError(f"no {kind} `{ref.name}`: {reason}") from error


def _no_others(arguments: dict[str, Any]) -> AbstractContextManager[Any]:
    """Hide the progress bar of the GGUF reader, which has no option for it."""
    return redirect_stderr(StringIO()) if "gguf_file" in arguments else nullcontext()


@contextmanager
def _no_bars() -> Iterator[None]:
    logging = import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
