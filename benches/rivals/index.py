"""The index beside others over the text of a datastore: time to build, bytes, time of a query.

Each index is built in a process of its own, in turn. Its counts are compared with a scan, and ours
must be right. Queries are patterns of 1 to 8 tokens of recorded answers.
"""

import json
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rivals.answers import differences, random_patterns, scan
from rivals.corpus import RivalCorpus, corpus_of
from specds import Datastore
from specds.bench.transcripts import read_files
from specds.loading import load_encoder

OWN = {"specds": 1, "specds, two shards": 2}
"""How many shards each of our own ways to build makes."""

RIVALS = ("tokengrams", "infini-gram")
NUM_PATTERNS, NUM_QUERIES = 200, 10_000
COLUMNS = {
    "cpu_s": "processor s",
    "wall_s": "s",
    "bytes": "bytes a token",
    "count_us": "count, µs",
    "follows_us": "what follows, µs",
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--datastore", type=Path, required=True, help="whose text is indexed")
    parser.add_argument("--transcripts", type=Path, nargs="+", required=True)
    parser.add_argument("--rivals-python", type=Path, help="the interpreter that rivals are in")
    parser.add_argument("--runs", type=int, default=2, help="the least of each time counts")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args(arguments)
    datastore = Datastore(given.datastore)
    answers = read_files(given.transcripts, load_encoder(datastore.tokenizer_name))
    corpus = corpus_of(datastore)
    said = [ids for each in answers for ids in (each.prompt_ids, each.completion_ids)]
    save_queries(corpus, np.concatenate(said))
    found = measure(corpus, given.rivals_python, given.runs)
    table = Table("", *COLUMNS.values(), title=f"{datastore.num_tokens:,} tokens")
    for name, row in found.items():
        cells = [f"{row[key]:.1f}" for key in COLUMNS if key in row] or [row["absent"]]
        table.add_row(name, *cells)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


def save_queries(corpus: RivalCorpus, text: np.ndarray) -> None:
    """Patterns without separators, at random places."""
    text = text[text != corpus.separator]
    random = np.random.default_rng(0)
    lengths = np.minimum(random.integers(1, 9, NUM_QUERIES), len(text))
    starts = random.integers(0, len(text) - lengths + 1)
    patterns = [text[start : start + size] for start, size in zip(starts, lengths, strict=True)]
    path = corpus.path.with_name("queries.npz")
    np.savez(path, tokens=np.concatenate(patterns), lengths=lengths)


def measure(corpus: RivalCorpus, python: Path | None, runs: int) -> dict[str, dict[str, Any]]:
    """The figures of each index; one that is absent says why."""
    text = np.memmap(corpus.path, dtype=f"<u{corpus.token_bytes}", mode="r")
    patterns = random_patterns(text, corpus.vocab_size, corpus.separator, NUM_PATTERNS)
    truth = scan(text, patterns)
    pythons = dict.fromkeys(OWN, Path(sys.executable)) | dict.fromkeys(RIVALS if python else ())
    found: dict[str, dict[str, Any]] = {}
    for name in list(pythons) * runs:
        row = run(corpus, name, patterns, pythons[name] or Path(str(python)))
        if "absent" not in row:
            row["bytes"] = row.pop("num_bytes") / len(text)
            if wrong := differences(patterns, row.pop("counts"), truth):
                raise RuntimeError(f"{name} counts otherwise than a scan: {wrong[0]}")
        before = found.setdefault(name, row)
        found[name] = {key: min(value, row[key]) for key, value in before.items()}
    return found


def run(corpus: RivalCorpus, name: str, patterns: list[list[int]], python: Path) -> dict[str, Any]:
    """Indexes in a process of its own, so that the time it takes is its own."""
    folder, answer = corpus.path.with_name("index"), corpus.path.with_name("answer.json")
    request = corpus.request(folder) | {
        "name": name,
        "num_shards": OWN.get(name, 0),
        "patterns": patterns,
        "queries": str(corpus.path.with_name("queries.npz")),
    }
    script = Path(__file__).with_name("indexing.py")
    command = [str(python), str(script), json.dumps(request), str(answer)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(folder)
    row: dict[str, Any] = json.loads(answer.read_text())
    return row


if __name__ == "__main__":
    main()
