"""Check the pieces of a bundle in this folder, and join them in another. It needs Python alone.

    python3 assemble.py FOLDER

FOLDER/site then belongs on PYTHONPATH, and FOLDER/model is SmolLM2 in transformers' format.
"""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

MANIFEST = "sha256.json"
PYTHON = (3, 12)
"""The version that the wheels of a bundle are for."""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def join(pieces: Path, folder: Path) -> list[Path]:
    """Join the pieces of each file in a folder.

    Raises:
        SystemExit: A piece is missing or damaged.
    """
    sums = json.loads((pieces / MANIFEST).read_text())
    found = {path.name: sha256(path) for path in pieces.iterdir() if path.name in sums}
    if wrong := [name for name, expected in sums.items() if found.get(name) != expected]:
        raise SystemExit(f"missing or damaged: {', '.join(wrong)}")
    folder.mkdir(parents=True)
    for name in sums:  # in the order of their numbers
        with (folder / name).with_suffix("").open("ab") as file:
            file.write((pieces / name).read_bytes())
    return sorted(folder.iterdir())


def main() -> None:
    if sys.version_info[:2] != PYTHON:
        raise SystemExit(f"its wheels are for Python {PYTHON[0]}.{PYTHON[1]}: run it by that")
    folder = Path(sys.argv[1])
    archive, gguf = join(Path(__file__).parent, folder)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    environment = {**os.environ, "PYTHONPATH": str(folder / "site")}
    convert = ["-m", "real.models", str(gguf), str(folder / "model")]
    subprocess.run([sys.executable, *convert], env=environment, check=True)
    print(f"assembled: export PYTHONPATH={folder / 'site'}")


if __name__ == "__main__":
    main()
