"""Environments with what `pip install '.[gguf]'` and others install, and nothing else."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def extras():
    """Return the requirements of this package by extra; those of all installs by the empty one."""
    text = (ROOT / "pyproject.toml").read_text()
    part = text[text.index("[project.optional-dependencies]") :].split("\n[")[0]
    lists = re.findall(r"^(\w+) = \[(.*?)\]$", part, re.DOTALL | re.MULTILINE)
    lists.append(("", re.search(r"^dependencies = \[(.*)\]$", text, re.MULTILINE)[1]))
    return {name: re.findall(r'"(.*?)"', listed) for name, listed in lists}


def make_environment(folder, *names):
    """Make a folder with links to the packages of extras, by default of `gguf`."""
    folder.mkdir()
    waiting, known = [*extras()[""], f"specds[{','.join(names or ('gguf',))}]"], set()
    while waiting:
        asked = Requirement(waiting.pop())
        if asked.name == "specds":
            waiting += [each for name in asked.extras for each in extras()[name]]
            continue
        if asked.name in known or (asked.marker and not asked.marker.evaluate({"extra": ""})):
            continue
        known.add(asked.name)
        try:
            found = distribution(asked.name)
        except PackageNotFoundError:  # it is for another system
            continue
        for path in found.files or ():
            top = path.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(Path(found.locate_file(top)))
        waiting += found.requires or ()
    return folder


def run_without_torch(environment, *words, said="", **options):
    """Run Python in it: `-c CODE`, or `-m specds ...`."""
    paths = os.pathsep.join([str(environment), str(ROOT / "python")])
    return subprocess.run(
        [sys.executable, "-S", "-W", "error", *map(str, words)],
        **{"input": said, "capture_output": True, "text": True, "check": False, **options},
        env={**os.environ, "PYTHONPATH": paths},
    )
