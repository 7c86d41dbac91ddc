"""Number of forged inputs of each reader: the fuzz test of the core, a thousand times as many."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]

SOURCES = ("core/tests/core/fuzz.rs", "forward/tests/forward/fuzz.rs")
_TEST = r"fn (\w+)\(\) \{\n.*?(?:inputs\(|0\.\.)(\d+)(?:\)| \* times)"


def figures() -> list[str]:
    """Return the lines of the section: a table of readers."""
    times = int(os.environ.get("SPECDS_FUZZ", "1000"))
    source = "".join((ROOT / "rust" / path).read_text() for path in SOURCES)
    rows = ["| read | inputs | panics |", "| --- | ---: | ---: |"]
    for name, inputs in re.findall(_TEST, source, re.DOTALL):
        subprocess.run(["make", "fuzz", f"READER={name}", f"TIMES={times}"], check=True, cwd=ROOT)
        rows.append(f"| {name.replace('_', ' ')} | {times * int(inputs):,} | 0 |")
    return rows
