"""Benchmark of real models and llama.cpp on nine kinds of requests: `make bench-real`.

The kinds of `structured.json` have grammars; they are measured apart from the others.
"""

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path

from real.kinds import every_kind, kinds
from real.measure import CONVERTED, DEFAULT, MODES, NATIVE, NEW_TOKENS, WAYS, undrafted
from real.models import FOLDER, MODELS, gguf_of, with_benches
from real.structured import DRAFTS, GRAMMARS, GUIDED, print_structured, structured_kinds
from real.tables import print_summary, setting_of


def main(arguments=None):
    given = parsed(arguments)
    rows = [json.loads(line) for path in given.rows for line in path.read_text().splitlines()]
    rows = rows or measured(given)
    if any("grammar" in row for row in rows):
        print_structured(rows)
        return int(not all(row["same"] for row in rows))
    print_summary(rows)
    return int(any_differs(rows))


def measured(given):
    """Return the rows of all settings, which are appended to `--out` as they come."""
    rows = []
    shared = ("kinds", "modes", "ways", "limit", "new_tokens", "instructions")
    shared += ("grammars", "drafts", "structured")
    for model, threads in itertools.product(given.models, given.threads):
        setting = {"model": model, "threads": threads, "instructions": given.instructions}
        gguf_of(model)
        child = {**setting, **{name: getattr(given, name) for name in shared}}
        with given.out.open("a") as out:
            for row in written_by_child(child):
                rows.append({**setting, **row})
                print(json.dumps(rows[-1]), file=out, flush=True)
    return rows


def parsed(arguments):
    parser = argparse.ArgumentParser(prog="bench-real", description=__doc__)
    several = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--models", default=[*MODELS], choices=[*MODELS], **several)
    of_grammars = structured_kinds()
    parser.add_argument("--kinds", default=kinds(), choices=every_kind() + of_grammars, **several)
    parser.add_argument("--modes", default=["greedy"], choices=[*MODES], **several)
    parser.add_argument("--ways", choices=[*WAYS], **several)
    parser.add_argument("--grammars", default=[*GRAMMARS], choices=[*GRAMMARS], **several)
    parser.add_argument("--drafts", default=[*DRAFTS], choices=[*DRAFTS], **several)
    parser.add_argument("--threads", default=[1, 2], type=int, nargs="+", metavar="N")
    parser.add_argument("--limit", default=10, type=int, help="requests of each kind")
    parser.add_argument("--new-tokens", default=NEW_TOKENS, type=int, metavar="N")
    instructions = {"choices": ["auto", "avx512", "avx2", "portable"], "default": "auto"}
    parser.add_argument("--instructions", **instructions, help="of specds")
    of_files = {"type": Path, "metavar": "FILE"}
    rows = FOLDER / "rows.jsonl"
    parser.add_argument("--out", default=rows, **of_files, help="rows are appended to this file")
    shown = "print tables of these rows, and measure nothing"
    parser.add_argument("--rows", default=[], nargs="+", **of_files, help=shown)
    given = parser.parse_args(arguments)
    given.structured = not {*given.kinds}.isdisjoint(of_grammars)
    if given.structured and not {*given.kinds} <= {*of_grammars}:
        parser.error(f"--kinds: {' '.join(of_grammars)} are measured apart from the others")
    usual = [way for way in WAYS[:-2] if not way.startswith(DEFAULT)]
    given.ways = given.ways or ([CONVERTED] if given.structured else usual)
    return given


def written_by_child(settings):
    """Yield the rows of a child process: threads and the cost of a step belong to a process."""
    environment = {**with_benches(), "OMP_NUM_THREADS": str(settings["threads"])}
    module = "real.structured" if settings["structured"] else "real.measure"
    command = [sys.executable, "-W", "ignore", "-m", module, json.dumps(settings)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            row = json.loads(line)
            if row["way"] in (settings["ways"][0], GUIDED):
                print(f"{settings['model']}: {row['kind']} {row['number']}", file=sys.stderr)
            yield row
    if child.returncode:
        raise SystemExit(f"failed: {', '.join(setting_of(settings))}")


def any_differs(rows):
    texts = {
        (*setting_of(row), row["kind"], row["number"], row["way"]): row["texts"] for row in rows
    }
    ours = (key for key in texts if key[-1] in NATIVE)
    return any(texts.get((*key[:-1], undrafted(key[-1])), texts[key]) != texts[key] for key in ours)


if __name__ == "__main__":
    raise SystemExit(main())
