"""An environment with what `pip install 'specds[gguf]'` installs, and nothing else."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
INSTALLED = ("numpy", "pathspec", "rich", "typer", "tokenizers", "jinja2")


def make_environment(folder):
    """Make a folder with links to these packages and to their requirements."""
    folder.mkdir()
    waiting, known = [*INSTALLED], set()
    while waiting:
        name = waiting.pop()
        if name in known:
            continue
        known.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # it is for another system
            continue
        for path in found.files or ():
            top = path.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(Path(found.locate_file(top)))
        needed = map(Requirement, found.requires or ())
        waiting += [
            each.name
            for each in needed
            if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return folder


def run_without_torch(environment, *words, said="", **options):
    """Run Python in it: `-c CODE`, or `-m specds ...`."""
    paths = os.pathsep.join([str(environment), str(ROOT / "python")])
    return subprocess.run(
        [sys.executable, "-S", "-W", "error", *map(str, words)],
        **{"input": said, "capture_output": True, "text": True, "check": False, **options},
        env={**os.environ, "PYTHONPATH": paths},
    )
