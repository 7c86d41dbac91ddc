"""Decode steps of an engine while the store of its request cache hangs: `make bench-hanging`.

The store is a bucket of S3 in another process, which answers, answers after 0.5 s, or not at all.
The three take turns, so that other load reaches them alike.
"""

import argparse
import multiprocessing
import os
import time

import numpy as np

from bucket_server import BucketOfS3, running_bucket
from specds._core import EngineDrafter

NUM_ROWS, MAX_TOKENS, VOCAB = 16, 5, 1000
WAITS = {"answers": 0.0, "answers after 0.5 s": 0.5, "hangs": 3600.0}


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="bench-hanging", description=__doc__)
    parser.add_argument("--steps", default=20_000, type=int, help="of each store")
    parser.add_argument("--turns", default=20, type=int)
    given = parser.parse_args(arguments)
    wait, port = multiprocessing.Value("d", 0.0), multiprocessing.Value("i", 0)
    server = multiprocessing.get_context("fork").Process(
        target=serve, args=(wait, port), daemon=True
    )
    server.start()
    while not port.value:
        time.sleep(0.01)
    os.environ.update(BucketOfS3(port=port.value).environment)
    requests = np.random.default_rng(0).integers(0, VOCAB, (NUM_ROWS, 400))
    drafters = {}
    for name, seconds in WAITS.items():
        wait.value = 0.0
        config = {"snapshot": f"s3://bucket/{len(drafters)}", "sync_interval": 0.2}
        drafters[name] = EngineDrafter(**config, memory_scope="shared", vocab_size=VOCAB)
        wait.value = seconds
    times = {name: [] for name in WAITS}
    for turn in range(given.turns):
        for name, seconds in WAITS.items():
            wait.value = seconds
            time.sleep(0.3)  # an exchange begins
            times[name] += steps(drafters[name], requests, turn, given.steps // given.turns)
    wait.value = 0.0
    p99 = {name: np.quantile(each, 0.99) for name, each in times.items()}
    print("| store | p50 of a step, over that of one that answers | p99 |\n| --- | ---: | ---: |")
    for name, each in times.items():
        p50 = np.median(each) / np.median(times["answers"])
        print(f"| {name} | {p50:.2f} | {p99[name] / p99['answers']:.2f} |")
    server.kill()
    os._exit(0)  # the drafters would wait for the store


def serve(wait, port):
    """Answer requests after the present wait."""
    with running_bucket() as bucket:

        def fault(method, key):
            end = time.monotonic() + wait.value
            while time.monotonic() < end and wait.value:
                time.sleep(0.01)

        bucket.fault = fault
        port.value = bucket.port
        time.sleep(3600)


def steps(drafter, requests, turn, number):
    """Return the times of decode steps, whose requests end, and are stored, after 300 tokens."""
    times = []
    names = [f"{turn}-{row}" for row in range(NUM_ROWS)]
    for step in range(number):
        length = 100 + step % 300
        begun = time.perf_counter()
        drafter.sync([row[:length] for row in requests], names)
        drafter.draft_chains(MAX_TOKENS)
        times.append(time.perf_counter() - begun)
        if length == 399:
            drafter.end(names)
            names = [f"{turn}-{step}-{row}" for row in range(NUM_ROWS)]
            requests = np.roll(requests, 1, axis=1)
    return times


if __name__ == "__main__":
    main()
