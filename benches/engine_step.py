"""What a step costs in an engine: sync, draft and observe for a batch of recorded answers.

    python benches/engine_step.py --datastore chat.specds --transcripts *.jsonl [--rows 64]

Each row replays answers one after the other, each step by as many tokens as its draft had right and
one more. Contexts are rows of one array, as vLLM has them. Times are those of the whole batch in
milliseconds, of all threads and by the clock: medians over the steps, and lower quartiles, which
tell more where other work shares the machine.
"""

import json
from argparse import ArgumentParser
from itertools import cycle
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from specds import Datastore, EngineDrafter
from specds.bench.transcripts import read_transcripts
from specds.loading import load_tokenizer

# What follows each token is looked up once.
WARM_UP = 100


class Rows:
    """Rows of one array, each with an answer to replay."""

    def __init__(self, requests, num_rows):
        self.requests = cycle(requests)
        self.contexts = np.zeros((num_rows, 1 << 14), np.uint32)
        self.lengths, self.truths = [0] * num_rows, [np.zeros(0, np.uint32)] * num_rows
        for row in range(num_rows):
            self.begin(row)
            # Not all in the same place of their answers.
            self.emit(row, len(self.truths[row]) * row // num_rows)

    def begin(self, row):
        request = next(self.requests)
        prompt = request.prompt_ids
        self.contexts[row, : len(prompt)] = prompt
        self.lengths[row], self.truths[row] = len(prompt), request.completion_ids
        self.emit(row, 1)

    def emit(self, row, number):
        truth, length = self.truths[row], self.lengths[row]
        number = min(number, len(truth))
        self.contexts[row, length : length + number] = truth[:number]
        self.lengths[row], self.truths[row] = length + number, truth[number:]

    def views(self):
        return [self.contexts[row, :length] for row, length in enumerate(self.lengths)]

    def go_on(self, path_of):
        for row, truth in enumerate(self.truths):
            if len(truth) == 0:
                self.begin(row)
            else:
                self.emit(row, 1 + len(path_of(row, truth)))


def chain_path(token_ids, truth):
    size = min(len(token_ids), len(truth))
    same = token_ids[:size] == truth[:size]
    return range(size if same.all() else int(same.argmin()))


def tree_path(token_ids, mask, truth):
    """The accepted nodes of a packed tree."""
    depths, path, node = mask.sum(axis=1), [], 0
    for child in range(1, len(token_ids)):
        is_next = mask[child, node] and depths[child] == len(path) + 2
        if is_next and len(path) < len(truth) and token_ids[child] == truth[len(path)]:
            node = child
            path.append(child)
    return path


def measure(requests, config, num_rows, shape, size, steps):
    """Milliseconds of each step, of all threads and by the clock, and tokens a row step."""
    drafter, rows, times = EngineDrafter(json.dumps(config)), Rows(requests, num_rows), []
    for _ in range(WARM_UP + steps):
        views = rows.views()
        start = process_time(), perf_counter()
        drafter.sync(views)
        if shape == "chain":
            token_ids, _, _ = drafter.draft_chains(size)
        else:
            token_ids, _, mask = drafter.draft_trees(size)
        times.append((process_time() - start[0], perf_counter() - start[1]))
        if shape == "chain":
            rows.go_on(lambda row, truth: chain_path(token_ids[row], truth))  # noqa: B023
        else:
            rows.go_on(lambda row, truth: tree_path(token_ids[row], mask[row], truth))  # noqa: B023
    stats = drafter.stats()
    tokens = stats["num_emitted_tokens"] / stats["num_row_steps"]
    return np.array(times[WARM_UP:]) * 1e3, tokens


def main():
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--datastore", type=Path, required=True)
    parser.add_argument("--transcripts", type=Path, nargs="+", required=True)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    datastore = Datastore.open(given.datastore)
    tokenizer = load_tokenizer(datastore.tokenizer_name)
    requests = [
        r
        for path in given.transcripts
        for r in read_transcripts(path, tokenizer, datastore.vocab_size)
    ]
    print("| draft | effort | threads | CPU ms: median, quartile | ms: median, quartile | tokens |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for shape, size, effort, threads in (
        ("chain", 8, "low", 1),
        ("chain", 8, "low", 2),
        ("chain", 8, "normal", 1),
        ("tree", 16, "low", 1),
        ("tree", 16, "low", 2),
    ):
        config = {"datastore": str(given.datastore), "effort": effort, "num_threads": threads}
        times, tokens = measure(requests, config, given.rows, shape, size, given.steps)
        (cpu_quartile, quartile), (cpu, clock) = np.percentile(times, (25, 50), axis=0)
        print(
            f"| {shape} of {size} | {effort} | {threads} | {cpu:.2f}, {cpu_quartile:.2f} "
            f"| {clock:.2f}, {quartile:.2f} | {tokens:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
