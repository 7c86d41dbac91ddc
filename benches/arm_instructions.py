"""Instructions that a weight and token take on 64-bit Arm, as an emulator executes them one by one.

    make bench-arm ARGS="--types Q4_K,Q6_K"

A product of 96 x 512 weights runs once and twice; the difference is counted, the layout of states
included. Processors execute several instructions at once.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_XS": 23}
NUM_WEIGHTS = 96 * 512  # of the program
NUM_TOKENS = (1, 4, 9, 32)
PROGRAM = Path("target/aarch64-unknown-linux-musl/release/examples/product")


def num_instructions(*arguments: str) -> int:
    """Return the instructions of a run of the program."""
    command = ["qemu-aarch64", "-singlestep", "-d", "exec,nochain", "-D", "/dev/stderr"]
    command += [str(PROGRAM), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        number = sum(line.startswith(b"Trace") for line in process.stderr)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--instructions", default="neon,portable")
    arguments = parser.parse_args()
    cells = [f"{number} tokens" for number in NUM_TOKENS]
    print(f"| type | instructions | activations | {' | '.join(cells)} |")
    print("| --- " * 3 + "| ---: " * len(NUM_TOKENS) + "|")
    for kind in arguments.types.split(","):
        for instructions in arguments.instructions.split(","):
            for activations in ("float32", "int8") if kind != "F16" else ("float32",):
                cells = [kind, instructions, activations]
                for number in NUM_TOKENS:
                    run = (str(TYPES[kind]), str(number), activations, instructions)
                    more = num_instructions(*run, "2") - num_instructions(*run, "1")
                    cells.append(f"{more / NUM_WEIGHTS / number:.2f}")
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
