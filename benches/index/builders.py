"""Who indexes tokens, and how: run in a child of the interpreter that has the builder installed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.child import metered
from index.tokens import TokenCorpus

if TYPE_CHECKING:
    from collections.abc import Callable

    Count = Callable[[list[int]], int]
    """How often a pattern occurs."""

    Builder = Callable[[TokenCorpus, Path], Count]
    """Indexes a corpus into a folder."""


def build_specds(corpus: TokenCorpus, out: Path, **options: Any) -> Count:
    from specds import DatastoreBuilder

    facts = corpus.facts
    with DatastoreBuilder(
        out / "corpus.specds", vocab_size=facts.vocab_size, separator=facts.separator, **options
    ) as builder:
        for tokens, lengths in corpus.batches():
            builder.add_documents(tokens, lengths)
        datastore = builder.finish()
    return datastore.count


def build_tokengrams(corpus: TokenCorpus, out: Path) -> Count:
    from tokengrams import MemmapIndex

    tokens = out / "tokens.bin"
    tokens.symlink_to(corpus.stream().resolve())
    vocab = 1 << 16 if corpus.tokens.itemsize == 2 else 1 << 17
    return MemmapIndex.build(str(tokens), str(out / "index.idx"), vocab=vocab).count


def build_infini_gram(corpus: TokenCorpus, out: Path, cpus: int | None = None) -> Count:
    """Its own indexing program, which takes files that are tokenised already as they are."""
    from infini_gram.engine import InfiniGramEngine

    (out / "tokenized.0").symlink_to(corpus.stream().resolve())
    width = corpus.tokens.itemsize
    starts = np.cumsum(np.append(0, corpus.lengths[:-1] + 1)).astype(np.uint64) * width
    starts.tofile(out / "offset.0")
    dtype = f"u{8 * width}"
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    command = [sys.executable, "-m", "infini_gram.indexing", "--data_dir", out, "--save_dir", out]
    command += ["--token_dtype", dtype, "--mem", 8, "--ulimit", limit]
    command += ["--cpus", cpus or os.cpu_count()]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    facts = corpus.facts
    engine = InfiniGramEngine(
        index_dir=str(out),
        eos_token_id=facts.separator,
        vocab_size=facts.vocab_size,
        token_dtype=dtype,
    )
    return lambda pattern: int(engine.count(input_ids=pattern)["count"])


LOW_MEMORY = "specds, low memory"


def build_in_low_memory(corpus: TokenCorpus, out: Path) -> Count:
    """With what sorting takes at least: two bytes a token, and a little."""
    return build_specds(corpus, out, max_memory=int(2.1 * corpus.num_tokens) + (1 << 16))


OWN: dict[str, Builder] = {"specds": build_specds, LOW_MEMORY: build_in_low_memory}
"""Our own ways to build."""

RIVALS: dict[str, tuple[str, Builder]] = {
    "tokengrams": ("tokengrams", build_tokengrams),
    "infini-gram": ("infini-gram", build_infini_gram),
}
"""The package of each rival, and how it indexes."""


def build(name: str, corpus: str, out: str, patterns: list[list[int]]) -> dict[str, Any]:
    """The job of a child: indexes, says what it took, then counts patterns."""
    package, builder = RIVALS[name] if name in RIVALS else ("specds", OWN[name])
    opened, folder = TokenCorpus.open(Path(corpus)), Path(out)
    _import(package)
    with metered() as cost:
        count = builder(opened, folder)
    return {
        "version": version(package),
        "cost": cost,
        "num_bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "counts": [count(pattern) for pattern in patterns],
    }


def _import(package: str) -> None:
    """What importing takes is no part of a build."""
    __import__(package.replace("-", "_"))


def probe() -> dict[str, str | None]:
    """The job that says which version of each rival an interpreter has; None where it has none."""
    found: dict[str, str | None] = {}
    for name, (package, _) in RIVALS.items():
        try:
            _import(package)
            found[name] = version(package)
        except ImportError:
            found[name] = None
    return found
