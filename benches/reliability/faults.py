"""Faults at every call that changes a file: the process is killed there, or the call fails.

With faults.c preloaded, `python faults.py JOB FAULT STEP` prints a record as JSON.
"""

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
JOBS = ("build", "add", "merge", "compact", "save")
FAULTS = {"kill": (0, 0), "I/O error": (errno.EIO, 0), "disk full from then on": (errno.ENOSPC, 1)}
_EXPECTED, _UNEXPECTED = 3, 4


def sweep(job: str, fault: str, step: int = 1) -> dict[str, Any]:
    """Inject a fault at every `step`-th call of a job; return the problems."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "faults.so")
        source = str(HERE / "faults.c")
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), source, "-ldl"]
        subprocess.run(command, check=True)
        found = {"LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, __file__, job, fault, str(step)]
        ran = subprocess.run(command, env=os.environ | found, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return dict(json.loads(ran.stdout))


def _files(folder: Path) -> dict[str, bytes]:
    paths = [folder] if folder.is_file() else sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


class _KilledJob:
    """Folder in which a job is repeated from the same state."""

    def __init__(self, job: str, root: Path) -> None:
        import writer

        self._writer, self._job = writer, job
        self._before, self.folder = root / "before", root / "victim"
        self._library = ctypes.CDLL(None)
        self._before.mkdir()
        # A process of its own, because threads do not survive a fork.
        child = os.fork()
        if child == 0:
            writer.prepare(job, self._before)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._before, self.folder)

    def run(self, at: int = 0, error: int = 0, stays: int = 0) -> tuple[int, int]:
        """Run the job in a child; return its wait status and its number of calls."""
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            status = _UNEXPECTED
            try:
                below = ctypes.c_char_p(str(self.folder).encode())
                self._library.faults_arm(below, ctypes.c_long(at), error, stays)
                self._writer.run(self._job, self.folder)
                status = 0
            except (OSError, RuntimeError, ValueError):
                status = _EXPECTED
            finally:
                calls = self._library.faults_calls()
                self._library.faults_arm(None, ctypes.c_long(0), 0, 0)
                os.write(writable, b"%d" % calls)
                os._exit(status)
        os.close(writable)
        status = os.waitpid(child, 0)[1]
        with os.fdopen(readable) as counted:
            return status, int(counted.read() or 0)

    def content(self) -> dict[str, bytes]:
        out = self.folder / "out"
        return self._writer.saved(out) if self._job == "save" else _files(out)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def is_whole(self) -> bool:
        """Return whether the result opens and passes `verify`, or does not exist."""
        out = self.folder / "out"
        if self._job == "save" or not out.exists():
            return True
        child = os.fork()
        if child == 0:
            from specds import Datastore

            Datastore(out).verify()
            os._exit(0)
        return os.waitpid(child, 0)[1] == 0


def _sweep(job: str, fault: str, step: int, root: Path) -> dict[str, Any]:
    victim = _KilledJob(job, root)
    victim.reset()
    old = victim.content()
    status, num_calls = victim.run()
    assert status == 0
    new, names = victim.content(), victim.names()
    problems = []
    tried = range(1, num_calls + 1, max(min(step, num_calls // 8), 1))
    error, stays = FAULTS[fault]
    for at in tried:
        victim.reset()
        status, _ = victim.run(at, error, stays)
        ended = os.waitstatus_to_exitcode(status)
        if ended not in (0, _EXPECTED, -9):
            problems.append(f"{at}: ended by {ended}")
        if ended == 0 and victim.content() != new:
            problems.append(f"{at}: said done, and is not")
        if victim.content() not in (old, new) and (job == "save" or not victim.is_whole()):
            problems.append(f"{at}: neither old nor new")
        if victim.run()[0] != 0 or victim.content() != new or victim.names() != names:
            problems.append(f"{at}: another result when done again")
    return {"calls": num_calls, "tried": len(tried), "problems": problems}


def figures() -> list[str]:
    """Return the lines of the section: a table of jobs and faults."""
    step = int(os.environ.get("STEP", "1"))
    rows = ["| job | calls that change files | " + " | ".join(FAULTS) + " | problems |"]
    rows.append("| --- " + "| ---: " * (len(FAULTS) + 2) + "|")
    for job in JOBS:
        swept = [sweep(job, fault, step) for fault in FAULTS]
        counts = " | ".join(str(one["tried"]) for one in swept)
        problems = sum(len(one["problems"]) for one in swept)
        rows.append(f"| {job} | {swept[0]['calls']} | {counts} | {problems} |")
    return rows


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=os.environ.get("SWEEP_DIR")) as made:
        json.dump(_sweep(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(made)), sys.stdout)
