"""Speed of llama-server without drafts, with its n-grams, and with specds."""

import argparse
import json
import re
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import mean

from engines.llama_server import Server, drafting
from real.kinds import every_kind, kinds, log, messages

AS_ON_A_GPU = 0.03  # cost of a drafted token there, in passes
NGRAMS = "--spec-type ngram-mod --spec-ngram-mod-n-match 6 --spec-ngram-mod-n-min 0"
COSTS = {"step_cost": [[1, 1], [101, 1 + 100 * AS_ON_A_GPU]]}
WAYS = {
    "plain": ("plain", []),
    "plain again": ("plain", []),  # the noise of a measurement
    "ngram-mod": ("plain", [*NGRAMS.split(), "--spec-ngram-mod-n-max", "8"]),
    "specds": ("extern", drafting({"memory_scope": "shared"})),
    "specds, a GPU's costs": ("extern", drafting({"memory_scope": "shared", **COSTS})),
}


def main(arguments=None):
    asked = parsed(arguments)
    rows = []
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {}
        for way, (build, options) in ways(asked).items():
            server = Server(build, options, logs / way.replace(" ", ""), threads=asked.threads)
            servers[way] = stack.enter_context(server)
            for conversation in (one for kind in asked.kinds for one in log(kind)):
                servers[way].chat(conversation, asked.new_tokens)
        for number in range(asked.limit):
            for kind in asked.kinds:
                names = [*servers][number % len(servers) :] + [*servers][: number % len(servers)]
                conversation = messages(kind)[number % len(messages(kind))]
                for way in names:
                    row = written(servers[way], conversation, asked.new_tokens)
                    rows.append({"kind": kind, "way": way, "number": number, **row})
                    print(json.dumps(rows[-1]), file=asked.out, flush=True)
        for way, server in servers.items():
            if durations := re.findall(r"dur\(b,g,a\) = ([\d., ]+) ms", server.log.read_text()):
                print(f"{way}: drafts took {durations[-1]} ms in all", file=sys.stderr)
    print_table(rows, [*servers])


def parsed(arguments):
    parser = argparse.ArgumentParser(prog="bench-llama-server", description=__doc__)
    several = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--kinds", default=kinds(), choices=every_kind(), **several)
    parser.add_argument("--ways", default=[*WAYS], choices=[*WAYS], **several)
    parser.add_argument("--limit", default=10, type=int, help="requests of each kind")
    parser.add_argument("--new-tokens", default=64, type=int, metavar="N")
    parser.add_argument("--threads", default=1, type=int, metavar="N")
    parser.add_argument("--options", default="{}", help="more of specds' configuration, as JSON")
    parser.add_argument("--out", default=sys.stderr, type=argparse.FileType("a"))
    return parser.parse_args(arguments)


def ways(asked):
    """Return the selected ways, with more options for specds."""
    found = {way: WAYS[way] for way in asked.ways}
    for way, (build, options) in found.items():
        if build == "extern":
            config = {**json.loads(options[-1]), **json.loads(asked.options)}
            found[way] = (build, [*options[:-1], json.dumps(config)])
    return found


def written(server, conversation, new_tokens):
    """Measure the decoding of a request without its prompt and first token."""
    start = server.cpu_seconds()
    first = None
    parts = []
    for event in server.events(conversation, new_tokens):
        for choice in event.get("choices", []):
            if text := choice["delta"].get("content"):
                first = first or server.cpu_seconds()
                parts.append(text)
        timings = event.get("timings", {})
    end = server.cpu_seconds()
    drafted, accepted = (timings.get(name, 0) for name in ("draft_n", "draft_n_accepted"))
    return {
        "cpu_s": end - (first or start),
        "prompt_cpu_s": (first or start) - start,
        "wall_s": timings["predicted_ms"] / 1e3,
        "tokens": timings["predicted_n"] - 1,
        "drafted": drafted,
        "accepted": accepted,
        "text": "".join(parts),
    }


def print_table(rows, names):
    texts = {(row["kind"], row["number"]): row["text"] for row in rows if row["way"] == names[0]}
    print(f"\n| kind | {' | '.join(names)} |\n|{' --- |' * (1 + len(names))}")
    by_kind = defaultdict(list)
    for row in rows:
        by_kind[row["kind"]].append(row)
    speeds = {way: [] for way in names}
    for kind, found in by_kind.items():
        ways = {way: [row for row in found if row["way"] == way] for way in names}
        plain = seconds_a_token(ways[names[0]])
        for way in names:
            speeds[way].append(plain / seconds_a_token(ways[way]))
        cells = (f"{speeds[way][-1]:.2f} ({about(ways[way])})" for way in names)
        print(f"| {kind} | {' | '.join(cells)} |")
    print(f"| mean | {' | '.join(f'{mean(speeds[way]):.2f}' for way in names)} |")
    print("\nCPU seconds a token of plain over those of a way (accepted/drafted, tokens a step;")
    print("speed if a drafted token cost 0.03 of a pass).")
    for way in names:
        own = [row for row in rows if row["way"] == way]
        same = sum(row["text"] == texts[row["kind"], row["number"]] for row in own)
        print(f"{way}: {same} of {len(own)} texts are those of {names[0]}")


def seconds_a_token(rows):
    return sum(row["cpu_s"] for row in rows) / sum(row["tokens"] for row in rows)


def about(rows):
    names = ("tokens", "drafted", "accepted")
    tokens, drafted, accepted = (sum(row[of] for row in rows) for of in names)
    steps = tokens - accepted
    on_gpu = tokens / (steps + AS_ON_A_GPU * drafted)
    return f"{accepted}/{drafted}, {tokens / steps:.2f}; {on_gpu:.2f}"


if __name__ == "__main__":
    main()
