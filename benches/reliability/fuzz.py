"""Number of forged inputs of each reader: the fuzz tests, many times as many."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]

SOURCES = ("core/tests/core/fuzz.rs", "forward/tests/forward/fuzz.rs")
_TEST = r"fn (\w+)\(\) \{\n.*?(?:inputs\(|0\.\.)(\d+)(?:\)| \* times)"
_OF_PYTHON = ROOT / "tests/models/test_forged_gguf.py"
_TEST_OF_PYTHON = r"def test_(\w+)\(\w*\):\n.*?in seeds\((\d+)\)"


def figures() -> list[str]:
    """Return the lines of the section: a table of readers."""
    times = int(os.environ.get("SPECDS_FUZZ", "1000"))
    source = "".join((ROOT / "rust" / path).read_text() for path in SOURCES)
    rows = ["| read | inputs | panics |", "| --- | ---: | ---: |"]
    for name, inputs in re.findall(_TEST, source, re.DOTALL):
        subprocess.run(["make", "fuzz", f"READER={name}", f"TIMES={times}"], check=True, cwd=ROOT)
        rows.append(f"| {name.replace('_', ' ')} | {times * int(inputs):,} | 0 |")
    few = max(times // 10, 1)
    for name, inputs in re.findall(_TEST_OF_PYTHON, _OF_PYTHON.read_text(), re.DOTALL):
        command = ["make", "fuzz-python", f"READER={name}", f"TIMES={few}"]
        subprocess.run(command, check=True, cwd=ROOT)
        rows.append(f"| {name.replace('_', ' ')} | {few * int(inputs):,} | 0 |")
    return rows
