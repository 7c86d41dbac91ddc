"""What it takes to pull a datastore from a hub on loopback, beside a plain download of its files.

In turn: urllib writes the files to a folder, the hub's client alone and `specds.hub.pull` fill an
empty cache, each in a new process, since what a process did before changes how it allocates; then a
second pull, which must ask for no file, and opening by name, which asks for nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import timeit
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import hub_client
from hub_server import Repository, running_hub
from specds.hub.checks import files_of, manifest_of

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = "org/bench"


def serve(folder: Path, megabits: float | None, pipe: Any) -> None:
    """Serves a datastore until told to end; tells its address, then what was asked for since."""
    files = {file: (folder / file).read_bytes() for file in files_of(manifest_of(folder))}
    with running_hub() as hub:
        hub.bytes_per_s = None if megabits is None else megabits * 1e6 / 8
        hub.repositories[_NAME] = repository = Repository(files)
        # Computed once: it is a checksum of everything.
        type(repository).commit = repository.commit
        pipe.send((hub.endpoint, repository.commit))
        while pipe.recv():
            pipe.send(
                [request for request in hub.requests if "GET" in request and "/resolve/" in request]
            )
            hub.requests.clear()


def download(address: str, files: list[str], folder: Path) -> float:
    """Seconds of a plain download, in blocks of 64 KiB as the hub's client has them."""
    shutil.rmtree(folder, ignore_errors=True)
    started = perf_counter()
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        with urlopen(f"{address}/{file}") as response, path.open("wb") as written:
            shutil.copyfileobj(response, written)
    return perf_counter() - started


def _connect() -> None:
    """Has the client import its parts and connect, before the clock starts."""
    from huggingface_hub import hf_hub_download

    hf_hub_download(_NAME, "manifest.json", repo_type="dataset")


def client_alone(home: str) -> float:
    """Seconds of the hub's client into an empty cache, without anything of specds."""
    from huggingface_hub import snapshot_download

    _connect()
    shutil.rmtree(Path(home) / "hub", ignore_errors=True)
    started = perf_counter()
    snapshot_download(_NAME, repo_type="dataset")
    return perf_counter() - started


def pull(home: str) -> tuple[float, float]:
    """Seconds of a pull into an empty cache, and of the check in it, made once more."""
    from specds.hub import pull
    from specds.hub.checks import check

    _connect()
    shutil.rmtree(Path(home) / "hub", ignore_errors=True)
    started = perf_counter()
    folder = pull(_NAME)
    pulled = perf_counter()
    check(folder)
    return pulled - started, perf_counter() - pulled


def pull_again(runs: int) -> list[float]:
    """Seconds of pulls where everything is there."""
    from specds.hub import pull

    return _repeated(lambda: pull(_NAME), runs)


def open_by_name(runs: int) -> list[float]:
    """Seconds of opening what was pulled."""
    from specds import Datastore

    return _repeated(lambda: Datastore.open(_NAME), runs)


def _repeated(job: Callable[[], object], runs: int) -> list[float]:
    job()  # imports
    return timeit.repeat(job, number=1, repeat=runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datastore", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--megabits", type=float, help="a second, of each connection")
    given = parser.parse_args()
    folder, context = given.datastore.resolve(), get_context("spawn")
    files = files_of(manifest_of(folder))
    num_bytes = sum((folder / file).stat().st_size for file in files)
    pipe, theirs = context.Pipe()
    server = context.Process(target=serve, args=(folder, given.megabits, theirs))
    server.start()
    endpoint, commit = pipe.recv()

    def asked() -> list[str]:
        pipe.send(True)
        requests: list[str] = pipe.recv()
        return requests

    with tempfile.TemporaryDirectory(dir=folder.parent) as home:

        def in_new_process(job: Any, *arguments: Any) -> Any:
            prepare = hub_client.prepare, (endpoint, home)
            with ProcessPoolExecutor(1, context, *prepare) as pool:
                return pool.submit(job, *arguments).result()

        address = f"{endpoint}/datasets/{_NAME}/resolve/{commit}"
        rounds = []
        for _ in range(given.runs):
            plain = download(address, files, Path(home) / "plain")
            alone = in_new_process(client_alone, home)
            rounds.append((plain, alone, *in_new_process(pull, home)))
        asked()
        again = statistics.median(in_new_process(pull_again, given.runs))
        num_sent = len(asked())
        opened = in_new_process(open_by_name, 20)
    pipe.send(False)
    server.join()
    plain, alone, pulled, checked = (
        statistics.median(column) for column in zip(*rounds, strict=True)
    )
    result = {
        "megabytes": round(num_bytes / 1e6, 1),
        "megabits": given.megabits,
        "plain_s": round(plain, 2),
        "client_alone_s": round(alone, 2),
        "pull_s": round(pulled, 2),
        "of_it_check_s": round(checked, 2),
        "plain_over_pull": round(statistics.median(row[0] / row[2] for row in rounds), 2),
        "client_alone_over_pull": round(statistics.median(row[1] / row[2] for row in rounds), 2),
        "second_pull_s": round(again, 3),
        "second_pull_num_files_asked": num_sent,
        "open_by_name_p50_ms": round(statistics.median(opened) * 1e3, 2),
        "open_by_name_worst_ms": round(max(opened) * 1e3, 2),
    }
    print(json.dumps(result, indent=2))
    if num_sent:
        raise SystemExit("a second pull asked for files")


if __name__ == "__main__":
    main()
