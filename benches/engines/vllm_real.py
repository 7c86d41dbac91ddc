"""A real model in vLLM on a CPU writes requests of nine kinds, plain and with the documented line.

    make bench-vllm ARGS="--limit 2"

Kinds at once, one request of each, then each kind alone, two requests at a time. CPU seconds, the
prompts included.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from time import process_time

from real.kinds import encode, every_kind, log, messages
from real.models import folder_of

WAYS = ("plain", "specds")


def main():
    asked = parsed()
    if asked.way is not None:
        measure(asked)
        return
    rows = defaultdict(dict)
    for way in WAYS:
        command = [sys.executable, "-W", "ignore", "-m", "engines.vllm_real", *sys.argv[1:]]
        run = subprocess.run([*command, "--way", way], stdout=subprocess.PIPE, check=True)
        for line in run.stdout.splitlines():
            if line.startswith(b'{"name"'):
                row = json.loads(line)
                rows[row["name"]][way] = row
    print("| requests | plain, tokens a CPU second | specds | times | accepted | same texts |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, of_ways in rows.items():
        print(line_of(name, *(of_ways[way] for way in WAYS)))


def parsed():
    parser = argparse.ArgumentParser(prog="bench-vllm", description=__doc__)
    several = {"nargs": "+", "metavar": "KIND"}
    parser.add_argument("--kinds", default=every_kind(), choices=every_kind(), **several)
    parser.add_argument("--limit", default=2, type=int, help="requests of each kind")
    parser.add_argument("--new-tokens", default=64, type=int, metavar="N")
    parser.add_argument("--options", default="{}", help="specds' configuration, as JSON")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(asked):
    """Prints a row for each batch that one way wrote."""
    from engines.vllm import Engine, chains
    from specds.integrations import adapter

    adapter.perf_counter = process_time  # other programs then mislead no budget
    specds = {"memory_scope": "shared", **json.loads(asked.options)}
    options = {"additional_config": {"specds": specds}}
    about = {} if asked.way == "plain" else {**chains(8), **options}
    folder = str(folder_of("smollm2"))
    with Engine(model=folder, **{"max_num_seqs": 9, "max_model_len": 2048, **about}) as engine:
        tokenizer = engine.llm.get_tokenizer()

        def write(asks):
            ids = [encode(tokenizer, one) for one in asks]
            return engine.generate(ids, asked.new_tokens, ignore_eos=False)

        write([[{"role": "user", "content": "Hello."}]])  # the first steps cost more
        for name, asks in batches(asked):
            if logged := log(name):
                write(logged)
            before = counts(engine)
            texts = write(asks)
            drafted, accepted = (now - old for now, old in zip(counts(engine), before, strict=True))
            row = {"name": name, "texts": texts, "cpu_s": engine.cpu_seconds}
            print(json.dumps({**row, "drafted": drafted, "accepted": accepted}), flush=True)


def batches(asked):
    """The requests of a kind alone are others than those at once, whose answers the memory has."""
    limit, plain = asked.limit, [kind for kind in asked.kinds if not log(kind)]
    yield "all kinds at once", [messages(kind)[n] for n in range(limit) for kind in plain]
    for kind in asked.kinds:
        yield kind, messages(kind) if log(kind) else messages(kind)[limit : 2 * limit]


def counts(engine):
    """Tokens that were drafted, and accepted."""
    if engine.proposer is None:
        return 0, 0
    stats = engine.proposer.drafter.stats()
    return stats["num_draft_tokens"], stats["num_accepted_tokens"]


def line_of(name, plain, ours):
    speeds = [sum(map(len, row["texts"])) / row["cpu_s"] for row in (plain, ours)]
    share = ours["accepted"] / max(ours["drafted"], 1)
    same = sum(a == b for a, b in zip(plain["texts"], ours["texts"], strict=True))
    times = f"{speeds[1] / speeds[0]:.2f} | {share:.0%} | {same} of {len(plain['texts'])}"
    return f"| {name} | {speeds[0]:.1f} | {speeds[1]:.1f} | {times} |"


if __name__ == "__main__":
    main()
