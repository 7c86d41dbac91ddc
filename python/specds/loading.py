"""Models and tokenizers by name: those that ship with specds, local folders, names on the hub."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SHIPPED = Path(__file__).parent / "demo" / "models"


class LoadingError(ValueError):
    """There is no model or tokenizer under this name."""


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Loads a tokenizer: ``demo``, a local folder, or a name on the Hugging Face hub.

    Raises:
        LoadingError: There is none under this name.
        ImportError: transformers is not installed.
    """
    tokenizer: PreTrainedTokenizerBase = _load("AutoTokenizer", "tokenizer", name)
    return tokenizer


def load_model(
    name: str, *, device: str = "auto", dtype: str = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a causal language model, ready to generate, and its tokenizer.

    Args:
        name: ``demo``, ``demo-small``, ``demo-tiny``, a local folder, or a name on the hub.
        device: ``auto`` is the first GPU where there is one, else the CPU.
        dtype: ``auto`` is float32 on a CPU, where half precision gains nothing and costs ties, and
            what the checkpoint says elsewhere.

    Raises:
        LoadingError: There is none under this name, or there is no such dtype.
        ImportError: torch or transformers is not installed.
    """
    tokenizer = load_tokenizer(name)
    device, dtype = resolve_placement(device, dtype)
    if dtype == "auto" and device == "cpu":
        dtype = "float32"
    model: PreTrainedModel = _load("AutoModelForCausalLM", "model", name, dtype=dtype)
    return model.to(device).eval(), tokenizer  # type: ignore[arg-type]


def resolve_placement(device: str, dtype: str) -> tuple[str, str]:
    """The device that `device` names, the first GPU or else the CPU for ``auto``, and `dtype`.

    Raises:
        LoadingError: There is no such dtype.
    """
    torch = import_module("torch")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise LoadingError(f"no dtype `{dtype}`: try float32, bfloat16 or float16")
    return device, dtype


def _load(auto_class: str, kind: str, name: str, **arguments: Any) -> Any:
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise ImportError(f"{package} is not installed: pip install 'specds[transformers]'")
    loader = getattr(import_module("transformers"), auto_class)
    try:
        return loader.from_pretrained(_resolve(name), **arguments)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise LoadingError(f"no {kind} `{name}`: {reason}") from error


def _resolve(name: str) -> str:
    """The folder of a model that ships with specds, or the name unchanged."""
    shipped = {"demo": "main", "demo-small": "small", "demo-tiny": "tiny"}
    return str(_SHIPPED / shipped[name]) if name in shipped else name
