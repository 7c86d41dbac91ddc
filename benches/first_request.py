"""The gain of drafts at the first request of a process over the gain at later requests.

Each process answers the request of the demo that edits a function, again and again, with drafts and
without in turns. Each answer has a new drafter, so that only what the process knows about the costs
of passes differs between the first answer and the last. The first process fills the caches of
weights and of measured passes, and is not counted.

    python benches/first_request.py --processes 6
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import partial
from statistics import median

from specds.bench.generation.target import PLAIN, BenchTarget, baseline_way, drafter_way
from specds.bench.turns import in_turns
from specds.cli.demo import chat_requests
from specds.drafters import FusedDrafter
from specds.models.gguf_model import GgufModel
from specds.models.load import load_model

_FIRST_LATER = 4
"""The first of the later requests, counted from 1, when the measured costs no longer change."""


def gains_of_a_process(activations: str, requests: int, max_new_tokens: int, swap: bool) -> None:
    """Print the CPU seconds without drafts over those with drafts, of each request in order."""
    model, tokenizer = load_model("smollm2", device="cpu", framework="numpy")
    model = GgufModel(model.weights, activations, model.settings, model.name_or_path)
    request = chat_requests(model, tokenizer)[0]
    target, gains = BenchTarget(model), []
    settings = {"max_new_tokens": max_new_tokens, "do_sample": False}
    ways = [baseline_way(PLAIN, target), drafter_way("drafts", target, FusedDrafter, "auto")]
    for _ in range(requests):
        calls = {way.name: partial(way.start(), [request.token_ids], settings) for way in ways}
        rows = in_turns(calls, int(swap))
        gains.append(rows[PLAIN].cpu_seconds / rows["drafts"].cpu_seconds)
    print(json.dumps(gains))


def main() -> None:
    """Run the processes and print a line for each type of activations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--max-new-tokens", type=int, default=140)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        activations, swap = options.child
        gains_of_a_process(activations, options.requests, options.max_new_tokens, swap == "1")
        return
    print("activations | first request | later requests | first over later (each process)")
    for activations in ("float32", "int8"):
        rows = []
        for number in range(options.processes + 1):
            arguments = [*sys.argv, "--child", activations, str(number % 2)]
            output = subprocess.run(
                [sys.executable, *arguments], check=True, stdout=subprocess.PIPE
            )
            rows.append(json.loads(output.stdout))
        pairs = [(row[0], median(row[_FIRST_LATER - 1 :])) for row in rows[1:]]
        first, later = (median(column) for column in zip(*pairs, strict=True))
        each = " ".join(f"{one / other:.2f}" for one, other in pairs)
        print(f"{activations} | {first:.2f}x | {later:.2f}x | {first / later:.2f} ({each})")


if __name__ == "__main__":
    main()
