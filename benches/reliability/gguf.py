"""Logits of random layers of the shapes of real models, in each mix and by each instruction set."""

import json
import os
import tempfile
from collections import Counter
from pathlib import Path

from model_shapes import MIXES, SHAPES, num_weights
from shaped_models import ShapedFile, differences, is_written
from specds._core import ForwardModel, GgufFile

KEPT = Path(__file__).parents[2] / "target" / "reliability" / "gguf.jsonl"
"""A line for each compared shape, mix and instruction set; those in it are not compared again."""
_INSTRUCTIONS = {"avx512": "AVX-512", "avx2": "AVX2", "portable": "portable"}
_ROOM = "/dev/shm" if Path("/dev/shm").is_dir() else None
# The smallest models of their architectures, as `_ordered` has them, have a whole vocabulary in it.
_WHOLE = "Q4_K_M"


def _available(folder: Path) -> list[str]:
    """Return the instruction sets that this machine has."""
    file = ShapedFile(folder / "small.gguf", SHAPES["SmolLM2-135M"], "Q8_0")
    found = []
    for instructions in _INSTRUCTIONS:
        try:
            ForwardModel(GgufFile(file.path), instructions=instructions)
        except ValueError as error:
            if "does not have" not in str(error):
                raise
        else:
            found.append(instructions)
    return found


def _ordered() -> list[str]:
    """Return the names of all shapes, those of small layers first."""
    return sorted(SHAPES, key=lambda name: num_weights(SHAPES[name]) / SHAPES[name]["layers"])


def _kept() -> dict[tuple[str, str, str], list[str]]:
    """Return what was wrong, by shape, mix and instruction set."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    return {tuple(row["of"]): row["wrong"] for row in map(json.loads, lines)}


def _compare(name: str, mix: str, instructions: list[str], folder: Path) -> None:
    """Compare the logits of a shape in a mix, and keep what was wrong."""
    order, shape = _ordered(), SHAPES[name]
    alike = [each for each in order if SHAPES[each]["architecture"] == shape["architecture"]]
    is_whole = mix == _WHOLE and name == alike[0]
    file = ShapedFile(folder / "model.gguf", shape, mix, vocab=shape["vocab"] if is_whole else 512)
    expected = file.expected()
    file.release()
    for of in instructions:
        turn = order.index(name) + list(MIXES).index(mix) + 2 * list(_INSTRUCTIONS).index(of)
        try:
            wrong = [*differences(file, of, expected, turn)]
        except Exception as error:
            wrong = [repr(error)]
        print(name, mix, of, "whole vocabulary" if is_whole else "", *wrong, flush=True)
        with KEPT.open("a") as kept:
            kept.write(json.dumps({"of": [name, mix, of], "wrong": wrong}) + "\n")
    file.path.unlink()


def figures() -> list[str]:
    """Return the lines of the section, a row for each mix, of what was ever compared.

    `MODELS` are names of shapes, by default all: several processes can share the work.
    """
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    only = os.environ.get("MODELS", "").split() or _ordered()
    with tempfile.TemporaryDirectory(dir=_ROOM) as folder:
        available = _available(Path(folder))
        for name in filter(only.__contains__, _ordered()):
            for mix in MIXES:
                left = [of for of in available if (name, mix, of) not in _kept()]
                if left and is_written(SHAPES[name], mix):
                    _compare(name, mix, left, Path(folder))
    kept = _kept()
    rows = ["| types | models | " + " | ".join(_INSTRUCTIONS.values()) + " | wrong |"]
    rows.append("| --- " + "| ---: " * (2 + len(_INSTRUCTIONS)) + "|")
    for mix in MIXES:
        of_mix = {(name, of): wrong for (name, mixed, of), wrong in kept.items() if mixed == mix}
        counts = Counter(of for _, of in of_mix)
        numbers = [len({name for name, _ in of_mix}), *(counts[of] for of in _INSTRUCTIONS)]
        numbers.append(sum(map(bool, of_mix.values())))
        rows.append(f"| {mix} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
    return rows
