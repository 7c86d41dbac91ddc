"""Speed of llama-server without drafts, with its n-grams, and with specds."""

import argparse
import json
import re
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from engines.llama_server import LlamaServer, drafting
from real.kinds import kinds, log, messages, parser
from real.models import MODELS
from real.tables import AS_ON_A_GPU, print_tables
from specds.bench.turns import in_turns


def _ngrams(name, **switches):
    words = (f"--spec-{name}-{switch.replace('_', '-')}" for switch in switches)
    pairs = zip(words, map(str, switches.values()), strict=True)
    return ["--spec-type", name, *(word for pair in pairs for word in pair)]


WAYS = {
    "plain": [],
    "plain again": [],  # the noise of a measurement
    "ngram-simple": _ngrams("ngram-simple", size_n=4, size_m=7),
    "ngram-mod": _ngrams("ngram-mod", n_match=6, n_min=0, n_max=7),
    "specds": {"memory_scope": "shared"},
    "specds, a GPU's costs": {
        "memory_scope": "shared",
        "step_cost": [[1, 1], [101, 1 + 100 * AS_ON_A_GPU]],
    },
}


def main():
    options = parser(__doc__, WAYS, kinds(), limit=10)
    options.add_argument("--model", default="smollm2", choices=MODELS)
    options.add_argument("--threads", default=1, type=int, metavar="N")
    options.add_argument("--server", default="", help="more arguments of the servers, in one text")
    options.add_argument("--out", default=sys.stderr, type=argparse.FileType("a"))
    asked, rows, servers = options.parse_args(), [], {}
    more = asked.server.split()
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for way in asked.ways:
            arguments = WAYS[way]
            if isinstance(arguments, dict):
                arguments = drafting({**arguments, **asked.options})
            about = {"model": asked.model, "threads": asked.threads}
            server = LlamaServer(
                "extern", [*arguments, *more], logs / way.replace(" ", ""), **about
            )
            servers[way] = stack.enter_context(server)
            for line in server.log.read_text().splitlines():
                if "a pass over" in line:
                    print(f"{way}: {line}", file=sys.stderr)
            for conversation in (one for kind in asked.kinds for one in log(kind)):
                servers[way].chat(conversation, asked.new_tokens)
        for number in range(asked.limit):
            for kind in asked.kinds:
                given = messages(kind)[number % len(messages(kind))], asked.new_tokens
                calls = {way: partial(of.measured, *given) for way, of in servers.items()}
                for way, timed in in_turns(calls, number).items():
                    about = {"kind": kind, "way": way, "number": number, "model": asked.model}
                    rows.append(timed.result | about)
                    print(json.dumps(rows[-1]), file=asked.out, flush=True)
        for way, server in servers.items():
            if durations := re.findall(r"dur\(b,g,a\) = ([\d., ]+) ms", server.log.read_text()):
                print(f"{way}: drafts took {durations[-1]} ms in all", file=sys.stderr)
    print_tables(rows)


if __name__ == "__main__":
    main()
