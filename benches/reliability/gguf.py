"""Logits of random layers of the shapes of real models, in each mix and by each instruction set."""

import os
import tempfile
from collections import Counter
from pathlib import Path

from model_shapes import MIXES, SHAPES, num_weights
from shaped_models import differences, expected_logits, is_written, write_shaped
from specds._core import ForwardModel, GgufFile

_INSTRUCTIONS = {"avx512": "AVX-512", "avx2": "AVX2", "portable": "portable"}
_ROOM = "/dev/shm" if Path("/dev/shm").is_dir() else None


def _available(path: Path) -> list[str]:
    """Return the instruction sets that this machine has."""
    found = []
    for instructions in _INSTRUCTIONS:
        try:
            ForwardModel(GgufFile(path), instructions=instructions)
        except ValueError as error:
            if "does not have" not in str(error):
                raise
        else:
            found.append(instructions)
    return found


def figures() -> list[str]:
    """Return the lines of the section: each mix, smallest models first."""
    rows = ["| types | models | " + " | ".join(_INSTRUCTIONS.values()) + " | wrong |"]
    rows.append("| --- " + "| ---: " * (2 + len(_INSTRUCTIONS)) + "|")
    only = os.environ.get("MODELS", "").split()
    shapes = {name: shape for name, shape in SHAPES.items() if not only or name in only}
    ordered = sorted(shapes, key=lambda name: num_weights(shapes[name]) / shapes[name]["layers"])
    with tempfile.TemporaryDirectory(dir=_ROOM) as folder:
        path = Path(folder) / "model.gguf"
        write_shaped(path, SHAPES["SmolLM2-135M"], "Q8_0")
        available = _available(path)
        compared: dict[str, Counter[str]] = {mix: Counter() for mix in MIXES}
        for name in ordered:
            for mix in MIXES:
                if not is_written(shapes[name], mix):
                    continue
                write_shaped(path, shapes[name], mix)
                expected = expected_logits(path)
                compared[mix]["models"] += 1
                for instructions in available:
                    wrong = [*differences(path, instructions, expected)]
                    compared[mix][instructions] += 1
                    compared[mix]["wrong"] += bool(wrong)
                    for of in wrong:
                        print(f"{name} {mix} {instructions}: {of}", flush=True)
                path.unlink()
            print(f"{name}: compared", flush=True)
    for mix, of in compared.items():
        if of["models"]:
            numbers = (of[key] for key in ("models", *_INSTRUCTIONS, "wrong"))
            rows.append(f"| {mix} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
    return rows
