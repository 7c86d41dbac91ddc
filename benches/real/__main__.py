"""`make bench-real`: real models write requests of nine kinds; see `--help` for parts of it."""

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
from real.tables import SETTING, figures, print_tables


def main(arguments=None):
    asked = parsed(arguments)
    rows = [json.loads(line) for path in asked.rows for line in path.read_text().splitlines()]
    if not rows:
        rows = measured(asked)
    print_tables(rows)
    if asked.figures is not None:
        lines = ",\n".join(map(json.dumps, figures(rows, asked.conditions)))
        asked.figures.write_text(f'{{"rows": [\n{lines}\n]}}\n')
    return int(any_differs(rows))


def measured(asked):
    """The rows of all settings that are asked for, which are written as they come."""
    rows, shared = [], ("kinds", "modes", "limit", "new_tokens", "clock")
    for model, dtype, threads in itertools.product(asked.models, asked.dtypes, asked.threads):
        setting = {"model": model, "dtype": dtype, "threads": threads}
        plan = {**setting, **{name: getattr(asked, name) for name in shared}}
        plan["folder"] = str(folder_of(model))
        with asked.out.open("a") as out:
            for row in written_by_child(plan):
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
    parser.add_argument("--out", default=rows, **of_files, help="rows are added here")
    given = "tables of these rows: measures nothing"
    parser.add_argument("--rows", default=[], nargs="+", **of_files, help=given)
    parser.add_argument("--figures", **of_files, help="writes the tables as JSON, too")
    parser.add_argument("--conditions", default="", help="a note in each row of that")
    return parser.parse_args(arguments)


def written_by_child(plan):
    """The rows of a process of its own, since threads and what a step costs belong to a process."""
    environment = {**with_benches(), "OMP_NUM_THREADS": str(plan["threads"])}
    command = [sys.executable, "-W", "ignore", "-m", "real.measure", json.dumps(plan)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            row = json.loads(line)
            print(f"{plan['model']}: {row['kind']}, {row['mode']}, {row['way']}", file=sys.stderr)
            yield row
    if child.returncode:
        raise SystemExit(f"a part failed: {' '.join(str(plan[name]) for name in SETTING[:3])}")


def any_differs(rows):
    """Whether a text of float32 differs, for which rounding is no excuse."""
    texts = defaultdict(set)
    for row in rows:
        if row["dtype"] == "float32" and row["way"] != "prompt lookup":
            where = *(row[name] for name in SETTING), row["kind"], row["number"]
            texts[where].add(tuple(row["text"]))
    return any(len(of_one) > 1 for of_one in texts.values())


if __name__ == "__main__":
    raise SystemExit(main())
