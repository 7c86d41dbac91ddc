"""Tokens a pass of two machines that share a request cache: `make bench-machines`.

Reads recorded requests (JSONL of `prompt` and `completion`), which a router sends to the machines
in turns. Each machine has a cache of its own, both exchange through a store, or both have one.
"""

import argparse
import json
import tempfile
from pathlib import Path

from specds import FusedDrafter, Memory
from specds.models.load import load_encoder
from specds.models.tokenization import vocab_size


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="bench-machines", description=__doc__)
    parser.add_argument("requests", type=Path, metavar="FILE")
    parser.add_argument("--tokenizer", required=True, metavar="FOLDER")
    parser.add_argument("--every", default=[1, 10, 50], type=int, nargs="+", metavar="N")
    parser.add_argument("--in-a-row", default=1, type=int, metavar="N", help="to one machine")
    parser.add_argument("--max-nodes", default=16, type=int)
    parser.add_argument("--limit", type=int, help="requests")
    parser.add_argument("--memory-bytes", default=1 << 28, type=int, help="limit of each cache")
    given = parser.parse_args(arguments)
    tokenizer = load_encoder(given.tokenizer)
    rows = [json.loads(line) for line in given.requests.read_text().splitlines()][: given.limit]
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    requests = [(encode(row["prompt"]), encode(row["completion"])) for row in rows]
    size, way = vocab_size(tokenizer), (given.max_nodes, given.in_a_row)

    def new():
        return Memory(size, max_bytes=given.memory_bytes)

    one = new()
    together = run(requests, [one, one], *way)
    print("| cache of two machines | tokens a pass | over one cache |\n| --- | ---: | ---: |")
    print(f"| one | {together:.3f} | |", flush=True)
    alone = run(requests, [new(), new()], *way)
    print(f"| one each | {alone:.3f} | {alone / together:.3f} |", flush=True)
    for every in given.every:
        with tempfile.TemporaryDirectory() as folder:
            shared = run(requests, [new(), new()], *way, Path(folder, "m"), every)
        name = f"one each, exchanged every {every} requests"
        print(f"| {name} | {shared:.3f} | {shared / together:.3f} |", flush=True)


def run(requests, memories, nodes, in_a_row, store=None, every=1):
    """Return the tokens a pass of requests that machines with these memories get in turns."""
    drafters = [FusedDrafter(memory=memory) for memory in memories]
    passes = tokens = 0
    for number, (prompt, completion) in enumerate(requests):
        passes += replay(drafters[number // in_a_row % 2], prompt, completion, nodes)
        tokens += len(completion)
        if store is not None and number % every == every - 1:
            for memory in memories * 2:
                memory.save(store)
    return tokens / passes


def replay(drafter, prompt, completion, nodes):
    """Return the number of passes for a completion."""
    session, done, passes = drafter.session(prompt), 0, 0
    while done < len(completion):
        tree = session.draft(nodes)
        children = {}
        for node, (token, parent) in enumerate(
            zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True)
        ):
            children.setdefault(parent, {})[token] = node
        node, end = -1, done
        while end < len(completion) - 1 and completion[end] in children.get(node, {}):
            node, end = children[node][completion[end]], end + 1
        session.observe(completion[done : end + 1])
        done, passes = end + 1, passes + 1
    session.finish()
    return passes


if __name__ == "__main__":
    main()
