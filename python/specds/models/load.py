"""Models and tokenizers by name: those of the demo, local folders, names on the hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from specds._lazy import advice, imported
from specds.models.gguf import GgufVocabulary
from specds.models.resolve import LoadingError, require_loadable, resolve, whole_dtype
from specds.models.tokenization import FastTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Loads a tokenizer: ``demo``, a local folder, or a name on the Hugging Face hub."""
    require_loadable("tokenizer", name)
    tokenizer: PreTrainedTokenizerBase = _load("AutoTokenizer", "tokenizer", name)
    return tokenizer


def load_encoder(name: str) -> PreTrainedTokenizerBase:
    """Loads a tokenizer for text alone: a `FastTokenizer`, without torch, where its files allow it.

    Every other one is `load_tokenizer`'s.
    """
    fast = FastTokenizer.read(Path(resolve(name))) if find_spec("tokenizers") else None
    return load_tokenizer(name) if fast is None else cast("PreTrainedTokenizerBase", fast)


def load_vocabulary(name: str) -> PreTrainedTokenizerBase:
    """What tells the tokenizer of a model from another, its tokens and its template.

    It is read without torch where it can be: as by `load_encoder`, or from a GGUF file.
    """
    path = resolve(name)
    if not path.endswith(".gguf"):
        return load_encoder(name)
    require_loadable("tokenizer", name)
    return cast("PreTrainedTokenizerBase", GgufVocabulary.read(path))


def load_model(
    name: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a causal language model, ready to generate, and its tokenizer.

    Args:
        name: ``demo``, ``demo-small``, ``demo-tiny``, ``smollm2``, a local folder, a GGUF file, or
            a name on the hub.
        device: ``auto`` is the first GPU where there is one, else the CPU.
        dtype: ``auto`` is float32 on a CPU, where half precision gains nothing and costs ties, and
            what the checkpoint says elsewhere.
        tokenizer: That of the model, where it is loaded already.

    Raises:
        LoadingError: There is none under this name, or no such device or dtype.
    """
    require_loadable("model", name, device, dtype)
    device, dtype = resolve_placement(device, whole_dtype(dtype))
    if tokenizer is None or isinstance(tokenizer, (FastTokenizer, GgufVocabulary)):
        tokenizer = _load("AutoTokenizer", "model", name)
    if dtype == "auto" and device == "cpu":
        dtype = "float32"
    model: PreTrainedModel = _load("AutoModelForCausalLM", "model", name, dtype=dtype)
    if resolve(name).endswith(".gguf"):
        # The weights are of `dtype` now, though transformers still takes them for quantised ones.
        for attribute, value in _PLAIN.items():
            setattr(model, attribute, value)
        vars(model.config).pop("quantization_config", None)
    return model.to(device).eval(), cast("PreTrainedTokenizerBase", tokenizer)  # type: ignore[arg-type]


_PLAIN: dict[str, Any] = {"hf_quantizer": None, "is_quantized": False, "quantization_method": None}


def one_thread_for(name: str) -> None:
    """Has a model of the demo run on one thread, unless `OMP_NUM_THREADS` says how many.

    Its passes are too short for two, which on busy cores wait for each other: 25 times slower.
    """
    if name.startswith("demo") and not os.environ.get("OMP_NUM_THREADS"):
        import_module("torch").set_num_threads(1)


def resolve_placement(device: str, dtype: str) -> tuple[str, str]:
    """The device that `device` names, the first GPU or else the CPU for ``auto``, and `dtype`."""
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


def _load(auto_class: str, kind: str, name: str, **arguments: Any) -> Any:
    path, needed = resolve(name), ["torch", "transformers"]
    if path.endswith(".gguf"):
        needed += ["gguf", "accelerate"]
        path, arguments["gguf_file"] = map(str, (Path(path).parent, Path(path).name))
    for package in needed:
        if find_spec(package) is None:
            raise ImportError(advice(package))
    loader = getattr(import_module("transformers"), auto_class)
    try:
        # A download shows how far it is; what lies here is read in a moment.
        with _no_bars() if Path(path).is_dir() else nullcontext(), _no_others(arguments):
            return loader.from_pretrained(path, **arguments)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise LoadingError(f"no {kind} `{name}`: {reason}") from error


def _no_others(arguments: dict[str, Any]) -> AbstractContextManager[Any]:
    """Hides the bar of a GGUF file's reader, which asks nobody."""
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
