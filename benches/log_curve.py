"""Does a server's log become its corpus in bounded memory? `python benches/log_curve.py --help`.

The documents of a datastore are the log. They go into one memory of bounded bytes; whenever it is
three quarters full, `refresh` moves them into a growing datastore. At each of `--tokens`, recorded
answers are replayed beside what there is by then.
"""

import argparse
import tempfile
from pathlib import Path

from specds import Datastore
from specds.bench.engines import documents
from specds.bench.replay.measure import replay_all, together
from specds.bench.transcripts import read_files
from specds.build import BuildOptions, refresh
from specds.drafters import FusedDrafter, Memory
from specds.loading import load_encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", required=True, help="a datastore")
    parser.add_argument("--transcripts", nargs="+", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--tokens", default="0,1,4,16", help="of the log, in millions")
    parser.add_argument("--memory-bytes", type=int, default=64 << 20)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    tokenizer, log = load_encoder(given.tokenizer), Datastore.open(given.log)
    answers = read_files(given.transcripts, tokenizer, given.limit)
    with tempfile.TemporaryDirectory() as folder:
        curve(given, log, answers, tokenizer, Path(folder))


def curve(given, log, answers, tokenizer, folder: Path) -> None:
    memory_file, store = folder / "memory", folder / "log.specds"
    told = {"tokenizer": log.tokenizer_fingerprint, "max_bytes": given.memory_bytes}
    memory, most = Memory(log.vocab_size, **told), 0
    num_tokens, texts = 0, documents(log)
    print("M tokens of log | tokens a forward | in memory | most bytes of memory | shards")
    for wanted in map(float, given.tokens.split(",")):
        for text in texts:
            memory.insert("", text)
            num_tokens += len(text)
            most = max(most, memory.num_bytes)
            if memory.num_bytes > 0.75 * given.memory_bytes:
                memory.save(memory_file)
                refresh(store, memory_file, "", BuildOptions(), tokenizer=tokenizer)
                memory = Memory.open(memory_file, log.vocab_size, **told)
            if num_tokens >= wanted * 1e6:
                break
        # A copy: the answers are no part of the log.
        memory.save(memory_file)
        beside = Memory.open(memory_file, log.vocab_size, **told)
        datastore = Datastore.open(store) if store.exists() else None
        drafter = FusedDrafter(datastore, memory=beside)
        traces = replay_all(lambda drafter=drafter: drafter, given.nodes, answers)
        length = together(traces.values()).stats.mean_acceptance_length
        shards = 0 if datastore is None else datastore.num_shards
        print(
            f"{num_tokens / 1e6:.1f} | {length:.3f} | {memory.num_tokens:,} | {most:,} | {shards}",
            flush=True,
        )


if __name__ == "__main__":
    main()
