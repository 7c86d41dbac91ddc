"""Speed of llama-server without drafts, with its n-grams, and with specds."""

import argparse
import json
import re
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from engines.llama_server import Server, drafting
from real.kinds import kinds, log, messages, parser
from real.tables import AS_ON_A_GPU, print_tables

NGRAMS = "--spec-type ngram-mod --spec-ngram-mod-n-match 6 --spec-ngram-mod-n-min 0"
WAYS = {
    "plain": None,
    "plain again": None,  # the noise of a measurement
    "ngram-mod": [*NGRAMS.split(), "--spec-ngram-mod-n-max", "8"],
    "specds": {"memory_scope": "shared"},
    "specds, a GPU's costs": {
        "memory_scope": "shared",
        "step_cost": [[1, 1], [101, 1 + 100 * AS_ON_A_GPU]],
    },
}


def main():
    options = parser(__doc__, WAYS, kinds(), limit=10)
    options.add_argument("--threads", default=1, type=int, metavar="N")
    options.add_argument("--out", default=sys.stderr, type=argparse.FileType("a"))
    asked, rows, servers = options.parse_args(), [], {}
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for way in asked.ways:
            build, arguments = "plain", WAYS[way] or []
            if isinstance(arguments, dict):
                build, arguments = "extern", drafting({**arguments, **asked.options})
            server = Server(build, arguments, logs / way.replace(" ", ""), threads=asked.threads)
            servers[way] = stack.enter_context(server)
            for conversation in (one for kind in asked.kinds for one in log(kind)):
                servers[way].chat(conversation, asked.new_tokens)
        for number in range(asked.limit):
            for kind in asked.kinds:
                conversation = messages(kind)[number % len(messages(kind))]
                shift = number % len(servers)
                for way in [*servers][shift:] + [*servers][:shift]:
                    row = servers[way].measured(conversation, asked.new_tokens)
                    rows.append({"kind": kind, "way": way, "number": number, **row})
                    print(json.dumps(rows[-1]), file=asked.out, flush=True)
        for way, server in servers.items():
            if durations := re.findall(r"dur\(b,g,a\) = ([\d., ]+) ms", server.log.read_text()):
                print(f"{way}: drafts took {durations[-1]} ms in all", file=sys.stderr)
    print_tables(rows)


if __name__ == "__main__":
    main()
