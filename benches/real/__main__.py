"""Benchmark of real models on nine kinds of requests: `make bench-real`."""

import argparse
import itertools
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from real.kinds import every_kind, kinds
from real.measure import MODES, NEW_TOKENS
from real.models import FOLDER, PACKAGES, folder_of, with_benches
from real.tables import print_tables, setting_of


def main(arguments=None):
    given = parsed(arguments)
    rows = [json.loads(line) for path in given.rows for line in path.read_text().splitlines()]
    rows = rows or measured(given)
    print_tables(rows)
    return int(any_differs(rows))


def measured(given):
    """Return the rows of all settings, which are appended to `--out` as they come."""
    rows, shared = [], ("kinds", "modes", "limit", "new_tokens", "clock")
    for model, dtype, threads in itertools.product(given.models, given.dtypes, given.threads):
        setting = {"model": model, "dtype": dtype, "threads": threads}
        child = {**setting, **{name: getattr(given, name) for name in shared}}
        child["folder"] = str(folder_of(model))
        with given.out.open("a") as out:
            for row in written_by_child(child):
                rows.append({**setting, **row})
                print(json.dumps(rows[-1]), file=out, flush=True)
    return rows


def parsed(arguments):
    parser = argparse.ArgumentParser(prog="bench-real", description=__doc__)
    several = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--models", default=[*PACKAGES], choices=[*PACKAGES], **several)
    parser.add_argument("--kinds", default=kinds(), choices=every_kind(), **several)
    parser.add_argument("--modes", default=[*MODES], choices=[*MODES], **several)
    parser.add_argument("--dtypes", default=["float32", "bfloat16"], **several)
    parser.add_argument("--threads", default=[1, 2], type=int, nargs="+", metavar="N")
    parser.add_argument("--limit", default=10, type=int, help="requests of each kind")
    parser.add_argument("--new-tokens", default=NEW_TOKENS, type=int, metavar="N")
    clocks = {"choices": ["wall", "cpu"], "help": "cpu: the machine does other work"}
    parser.add_argument("--clock", default="wall", **clocks)
    of_files = {"type": Path, "metavar": "FILE"}
    rows = FOLDER / "rows.jsonl"
    parser.add_argument("--out", default=rows, **of_files, help="rows are appended to this file")
    shown = "print tables of these rows, and measure nothing"
    parser.add_argument("--rows", default=[], nargs="+", **of_files, help=shown)
    return parser.parse_args(arguments)


def written_by_child(settings):
    """Yield the rows of a child process: threads and the cost of a step belong to a process."""
    environment = {**with_benches(), "OMP_NUM_THREADS": str(settings["threads"])}
    command = [sys.executable, "-W", "ignore", "-m", "real.measure", json.dumps(settings)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            row = json.loads(line)
            if not row["number"]:
                print(f"{settings['model']}: {row['kind']}, {row['mode']}", file=sys.stderr)
            yield row
    if child.returncode:
        raise SystemExit(f"failed: {', '.join(setting_of(settings))}")


def any_differs(rows):
    """Return whether a text of float32 differs, which rounding does not excuse."""
    texts = defaultdict(set)
    for row in rows:
        if row["dtype"] == "float32" and row["way"] != "transformers-prompt-lookup":
            where = *setting_of(row), row["kind"], row["number"]
            texts[where].add(str(row["texts"]))
    return any(len(of_one) > 1 for of_one in texts.values())


if __name__ == "__main__":
    raise SystemExit(main())
