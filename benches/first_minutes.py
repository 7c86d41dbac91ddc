"""How long does a user wait: the commands of the first minutes, and a keystroke in `specds view`.

Least and median of the seconds of a whole process, and of its processor time, which other work
disturbs less. `--datastore` and `--tokenizer` are those that `view` would show.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter, process_time

from specds import Datastore, open_corpus
from specds.cli.arguments import tokenizer_name
from specds.loading import load_encoder
from specds.view import Explorer, serve

TYPED = "How does a suffix array find the longest match? It sorts all the suffixes of a text, and"


def spent() -> float:
    """Seconds of the processor that children have taken so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def show(name: str, runs: list[tuple[float, float]]) -> None:
    wall, processor = ([run[place] for run in runs] for place in (0, 1))
    columns = [unit for each in (wall, processor) for unit in (min(each), median(each))]
    print(f"{name:18}", *(f"{1e3 * value:9.1f}" for value in columns), flush=True)


def timed(work: Callable[[], object], clock: Callable[[], float]) -> tuple[float, float]:
    started, before = perf_counter(), clock()
    work()
    return perf_counter() - started, clock() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--datastore", type=Path, help="by default a small one, made on the spot")
    parser.add_argument("--tokenizer", help="by default the one the datastore names")
    parser.add_argument("--demo", action="store_true", help="also the demo, once")
    options = parser.parse_args()
    print(f"{'milliseconds':18}", *(f"{name:>9}" for name in ("least", "median", "cpu", "median")))
    with tempfile.TemporaryDirectory() as folder:
        source, small = Path(folder, "src"), Path(folder, "small.specds")
        source.mkdir()
        for number, document in enumerate(open_corpus("stdlib")):
            if number < 20:
                Path(source, f"{number}.py").write_text(getattr(document, "text", ""))

        def run(*arguments: object) -> None:
            command = [sys.executable, "-m", "specds", *map(str, arguments)]
            subprocess.run(command, check=True, capture_output=True)

        build = ("build", "--corpus", source, "--tokenizer", "demo", "--out")
        run(*build, small)
        outs = iter(range(options.runs))
        commands: dict[str, Callable[[], None]] = {
            "--help": lambda: run("--help"),
            "info": lambda: run("info", small),
            "lookup": lambda: run("lookup", small, "import os"),
            "build, 20 files": lambda: run(*build, Path(folder, f"{next(outs)}.specds")),
        }
        for name, work in commands.items():
            show(name, [timed(work, spent) for _ in range(options.runs)])
        if options.demo:
            show("demo", [timed(lambda: run("demo"), spent)])
        datastore = Datastore(options.datastore or small)
        encoder = load_encoder(tokenizer_name(options.tokenizer, datastore))
        with serve(Explorer(datastore, encoder)) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            connection = HTTPConnection(*server.server_address)

            def explore(text: str) -> None:
                connection.request("POST", "/explore", json.dumps({"text": text, "nodes": 32}))
                connection.getresponse().read()

            explore(TYPED)
            typed = [TYPED[:end] for end in range(20, len(TYPED))]
            show("a keystroke", [timed(lambda t=text: explore(t), process_time) for text in typed])
            server.shutdown()


if __name__ == "__main__":
    main()
