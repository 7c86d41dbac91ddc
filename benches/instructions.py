"""Instructions that a weight and token take on emulated processors.

    make bench-arm ARGS="--types Q4_K,Q6_K"
    make bench-x86

Products of matrices of 512 columns are counted, the layout of states included. Processors execute
several instructions at once.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np

import bochs

TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_XS": 23}
NUM_ROWS = {"arm": 96, "x86": 768}  # full tiles; a trace of more takes long
NUM_COLUMNS = 512
NUM_TOKENS = (1, 4, 9, 32)
_NUM_PRODUCTS = 9  # of a run on x86-64, where the system's own instructions count too
INSTRUCTIONS = {"arm": "neon,portable", "x86": "avxvnni,avx2"}

ProgramArguments = tuple[str, ...]
"""The arguments of the program but for the last one: how many times it multiplies."""


def of_arm(program: Path, runs: list[ProgramArguments]) -> list[int]:
    """Return the instructions of a product in each of these runs, by the trace of qemu."""

    def count(*arguments: str) -> int:
        command = ["qemu-aarch64", "-singlestep", "-d", "exec,nochain", "-D", "/dev/stderr"]
        command += [str(program), *arguments]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            assert process.stderr is not None
            number = sum(line.startswith(b"Trace") for line in process.stderr)
        if process.returncode:
            sys.exit(f"{' '.join(command)} ended with {process.returncode}")
        return number

    return [count(*run, "2") - count(*run, "1") for run in runs]


def of_x86(program: Path, runs: list[ProgramArguments]) -> list[int]:
    """Return the least instructions of a product in each of these runs, by time stamps of Bochs."""
    lines = [f"/program {' '.join(run)} {_NUM_PRODUCTS} || exit 1" for run in runs]
    counts = [int(line) for line in bochs.run(program, lines).splitlines() if line.isdigit()]
    least: list[int] = np.reshape(counts, (len(runs), _NUM_PRODUCTS)).min(axis=1).tolist()
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("processor", choices=("arm", "x86"))
    parser.add_argument("program", type=Path, help="the example `product`")
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--instructions", help="those to count")
    arguments = parser.parse_args()
    instructions = (arguments.instructions or INSTRUCTIONS[arguments.processor]).split(",")
    rows = [
        (kind, isa, activations)
        for kind, isa in product(arguments.types.split(","), instructions)
        for activations in (("float32", "int8") if kind != "F16" else ("float32",))
    ]
    num_rows = NUM_ROWS[arguments.processor]
    count = {"arm": of_arm, "x86": of_x86}[arguments.processor]
    counts = iter(
        count(
            arguments.program,
            [
                (str(TYPES[kind]), str(num_rows), str(number), activations, isa)
                for kind, isa, activations in rows
                for number in NUM_TOKENS
            ],
        )
    )
    cells = [f"{number} tokens" for number in NUM_TOKENS]
    print(f"| type | instructions | activations | {' | '.join(cells)} |")
    print("| --- " * 3 + "| ---: " * len(NUM_TOKENS) + "|")
    for row in rows:
        cells = [f"{next(counts) / num_rows / NUM_COLUMNS / number:.2f}" for number in NUM_TOKENS]
        print(f"| {' | '.join([*row, *cells])} |", flush=True)


if __name__ == "__main__":
    main()
