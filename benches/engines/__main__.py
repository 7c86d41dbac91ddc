"""Tokens per decode step of each installed engine: without drafts, with n-grams, with specds.

    python -m engines

An engine is installed where `.venv-ENGINE` is, which `make test-ENGINE` makes. The demo's model
generates 128 greedy tokens after each of 12 held-out prompts, four rows at a time.
"""

import json
import os
import subprocess
from pathlib import Path

ENGINES = ("sglang", "vllm", "llama")
ROOT = Path(__file__).parents[2]


def run(engine, *way):
    """Return the last line that `engines.ENGINE` prints, in the engine's own environment."""
    programs = ROOT / f".venv-{engine}" / "bin"
    folders = ("python", "benches", "benches/engines/sglang_cpu")
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(str(ROOT / folder) for folder in folders),
    }
    command = [programs / "python", "-W", "ignore", "-m", f"engines.{engine}", *way]
    output = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(output.stdout.splitlines()[-1])


def main():
    print("| engine | drafts | tokens per decode step | tokens per CPU second |")
    print("| --- | --- | ---: | ---: |")
    for engine in ENGINES:
        if not (ROOT / f".venv-{engine}" / "installed").exists():
            print(f"| {engine} | not installed: `make test-{engine}` | | |")
            continue
        for way in run(engine):
            row = run(engine, way)
            steps, speed = row["tokens_a_step"], row["tokens_a_cpu_s"]
            print(f"| {engine} | {way} | {steps:.2f} | {speed:.0f} |", flush=True)


if __name__ == "__main__":
    main()
