"""Does a server's log become its corpus in bounded memory? `python benches/log_curve.py --help`.

The documents of datastores are the log. They go into one memory of bounded bytes; whenever it is
three quarters full, `refresh` moves them into a growing datastore. At each of `--tokens`, recorded
answers are replayed beside what there is by then.
"""

import argparse
import tempfile
from pathlib import Path

from specds import Datastore
from specds._core import refit
from specds.bench.replay.measure import replay_all, together
from specds.bench.transcripts import read_files
from specds.build import BuildOptions, refresh
from specds.drafters import FusedDrafter, Memory
from specds.loading import load_encoder

COLUMNS = ("M tokens of log", "tokens a forward", "M in memory", "most MB of memory", "shards")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", nargs="+", type=Path, required=True, help="datastores")
    parser.add_argument("--transcripts", nargs="+", type=Path, required=True)
    parser.add_argument("--tokenizer", help="that of the log by default")
    parser.add_argument(
        "--tokens", default="0,1,4", help="of the log, in millions; 100 is possible"
    )
    parser.add_argument("--memory-bytes", type=int, default=64 << 20)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--limit", type=int, help="of answers")
    given = parser.parse_args()
    logs = [Datastore.open(path) for path in given.log]
    tokenizer = load_encoder(given.tokenizer or logs[0].tokenizer_name)
    answers = read_files(given.transcripts, tokenizer, given.limit)
    points = [float(wanted) * 1e6 for wanted in given.tokens.split(",")]
    print("| " + " | ".join(COLUMNS) + " |\n|" + " ---: |" * len(COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        for row in curve(logs, answers, tokenizer, Path(folder), points, given):
            print("| {:.1f} | {:.3f} | {:.1f} | {:.1f} | {} |".format(*row), flush=True)


def curve(logs, answers, tokenizer, folder: Path, points, given):
    """What `COLUMNS` say, at each number of tokens, or where the log ends before the last."""
    memory_file, store = folder / "memory", folder / "log.specds"
    size = logs[0].vocab_size
    told = {"tokenizer": logs[0].tokenizer_fingerprint, "max_bytes": given.memory_bytes}
    memory, most, num_tokens = Memory(size, **told), 0, 0
    texts = (log.document(number).token_ids for log in logs for number in range(log.num_documents))
    for wanted in points:
        while num_tokens < wanted and (text := next(texts, None)) is not None:
            memory.insert("", text)
            num_tokens += len(text)
            most = max(most, memory.num_bytes)
            if memory.num_bytes > 0.75 * given.memory_bytes:
                memory.save(memory_file)
                refresh(store, memory_file, "", BuildOptions(prior_tokens=0), tokenizer=tokenizer)
                memory = Memory.open(memory_file, size, **told)
        # A copy: the answers are no part of the log.
        memory.save(memory_file)
        beside = Memory.open(memory_file, size, **told)
        if store.exists():
            refit(store)
        datastore = Datastore.open(store) if store.exists() else None
        drafter = FusedDrafter(datastore, memory=beside)
        traces = replay_all(lambda drafter=drafter: drafter, given.nodes, answers)
        length = together(traces.values()).stats.mean_acceptance_length
        shards = 0 if datastore is None else datastore.num_shards
        yield num_tokens / 1e6, length, memory.num_tokens / 1e6, most / 1e6, shards


if __name__ == "__main__":
    main()
