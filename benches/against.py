"""Comparison of this version with a commit on the same recorded answers, in turn.

    make bench-against COMMIT=9e3915c \\
        ARGS="--corpus chat --tokenizer NAME --transcripts FILE --max-nodes 16,64"

Each version runs its own `specds bench acceptance`, so names in the code may differ, and formats of
files: with --corpus each builds a datastore of its own. What is not an option of this script goes
to both replays. Sources, extensions and datastores stay in `target/against`.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from specds.bench.turns import in_turns

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "target" / "against"


@dataclass
class Version:
    """Sources of a version, with its extension."""

    name: str
    root: Path
    arguments: list[str]

    def specds(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "specds", *arguments]
        environment = os.environ | {"PYTHONPATH": str(self.root / "python")}
        return subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, check=True, text=True
        ).stdout

    def replay(self) -> list[dict[str, Any]]:
        """Return the rows of a replay, of all transcripts together where there are several."""
        verb = "acceptance" if "acceptance" in self.specds("bench", "--help") else "replay"
        rows = json.loads(self.specds("bench", verb, "--json", *self.arguments))["rows"]
        return [row for row in rows if row["transcripts"] == rows[-1]["transcripts"]]

    def build(self, corpus: str, tokenizer: str) -> None:
        kept = FOLDER / f"{self.name}-{Path(corpus).stem}.specds"
        if not kept.exists():
            self.specds("build", "--corpus", corpus, "--tokenizer", tokenizer, "--out", str(kept))
        self.arguments += ["--datastore", str(kept)]


def check_out(commit: str) -> Path:
    """Extract the sources of a commit, and compile its extension once."""
    root = FOLDER / commit
    extension = root / "python" / "specds" / "_core.abi3.so"
    if not extension.exists():
        archive = ["git", "archive", commit]
        content = subprocess.run(archive, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        with tarfile.open(fileobj=BytesIO(content)) as sources:
            sources.extractall(root, filter="data")
        environment = os.environ | {"CARGO_TARGET_DIR": str(FOLDER / "cargo")}
        cargo = ["cargo", "build", "--release", "--quiet", "--package", "specds-py"]
        subprocess.run(cargo, cwd=root, env=environment, check=True)
        shutil.copy(FOLDER / "cargo" / "release" / "lib_core.so", extension)
    return root


def time_us(row: dict[str, Any]) -> float:
    """Return the time of the median draft plus that of the median `observe`."""
    return float(row["draft_p50_us"] + row["observe_p50_us"])


def main(
    context: typer.Context,
    commit: Annotated[str, typer.Option(help="What this version is compared with.")],
    tokenizer: Annotated[str, typer.Option(help="Of the transcripts and the corpus.")],
    corpus: Annotated[str | None, typer.Option(help="Each builds a datastore of it.")] = None,
    now: Annotated[str, typer.Option(help="More arguments of this version's replay.")] = "",
    then: Annotated[str, typer.Option(help="More arguments of the commit's replay.")] = "",
    runs: Annotated[int, typer.Option(min=1, help="Replays of each, in turn.")] = 5,
) -> None:
    """Print a row for each cell of the replay: times, their ratios, tokens per forward pass."""
    both = ["--tokenizer", tokenizer, *context.args]
    before = Version(commit, check_out(commit), both + shlex.split(then))
    after = Version("now", ROOT, both + shlex.split(now))
    if corpus:
        for version in (before, after):
            version.build(corpus, tokenizer)
    calls = {"then": before.replay, "now": after.replay}
    turns = [in_turns(calls, turn) for turn in range(runs)]
    pairs = [[each.result for each in turn.values()] for turn in turns]
    print(f"draft and observe, medians of {runs} runs in turn: {commit} -> this version")
    for cell in zip(*(zip(*pair, strict=True) for pair in pairs), strict=True):
        old, new = cell[0]
        ratios = sorted(time_us(later) / time_us(earlier) for earlier, later in cell)
        times = [median(time_us(pair[side]) for pair in cell) for side in (0, 1)]
        lengths = [row["mean_acceptance_length"] for row in (old, new)]
        print(
            f"{old['drafter']} -> {new['drafter']}, {new['max_nodes']} nodes: "
            f"{times[0]:.1f} -> {times[1]:.1f} us, ratio {median(ratios):.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f}); tokens per forward "
            f"{lengths[0]:.3f} -> {lengths[1]:.3f} ({lengths[1] / lengths[0] - 1:+.1%})"
        )


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    app()
