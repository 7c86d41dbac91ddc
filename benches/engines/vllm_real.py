"""A real model in vLLM on a CPU writes requests of nine kinds, plain and with the documented line.

    make bench-vllm ARGS="--limit 2"

Kinds at once, one request of each, then each kind alone, two requests at a time. CPU seconds, the
prompts included.
"""

import json
import subprocess
import sys
from time import process_time

from real.kinds import encode, every_kind, log, messages, parser
from real.models import folder_of
from real.tables import print_tables

WAYS = ("plain", "specds")


def main():
    asked = parser(__doc__, WAYS, every_kind(), limit=2).parse_args()
    if len(asked.ways) == 1:
        measure(asked)
        return
    rows = []
    for way in asked.ways:  # each in a process of its own
        command = [sys.executable, "-W", "ignore", "-m", "engines.vllm_real", *sys.argv[1:]]
        run = subprocess.run([*command, "--ways", way], stdout=subprocess.PIPE, check=True)
        rows += [json.loads(line) for line in run.stdout.splitlines() if line.startswith(b"{")]
    print_tables(rows)


def measure(asked):
    """Print a row for each batch that one way writes."""
    from engines.vllm import Engine, chains
    from specds.integrations import adapter

    adapter.perf_counter = process_time  # other programs then mislead no budget
    [way] = asked.ways
    specds = {"additional_config": {"specds": {"memory_scope": "shared", **asked.options}}}
    about = {} if way == "plain" else {**chains(8), **specds}
    folder = str(folder_of("smollm2"))
    with Engine(model=folder, **{"max_num_seqs": 9, "max_model_len": 2048, **about}) as engine:
        tokenizer = engine.llm.get_tokenizer()

        def write(asks):
            ids = [encode(tokenizer, one) for one in asks]
            return engine.generate(ids, asked.new_tokens, ignore_eos=False)

        write([[{"role": "user", "content": "Hello."}]])  # the first steps cost more
        for kind, asks in batches(asked):
            if logged := log(kind):
                write(logged)
            before = counts(engine)
            texts = write(asks)
            drafted, accepted = (now - old for now, old in zip(counts(engine), before, strict=True))
            row = {"kind": kind, "way": way, "number": 0, "texts": texts}
            row |= {"seconds": engine.cpu_seconds, "tokens": sum(map(len, texts))}
            row |= {"drafted": drafted, "accepted": accepted, "passes": row["tokens"] - accepted}
            print(json.dumps(row), flush=True)


def batches(asked):
    """The requests of a kind alone are others than those at once, whose answers the memory has."""
    limit, plain = asked.limit, [kind for kind in asked.kinds if not log(kind)]
    yield "all kinds at once", [messages(kind)[n] for n in range(limit) for kind in plain]
    for kind in asked.kinds:
        yield kind, messages(kind) if log(kind) else messages(kind)[limit : 2 * limit]


def counts(engine):
    """Return the numbers of drafted and of accepted tokens."""
    stats = engine.proposer.drafter.stats() if engine.proposer is not None else {}
    return [stats.get(name, 0) for name in ("num_draft_tokens", "num_accepted_tokens")]


if __name__ == "__main__":
    main()
