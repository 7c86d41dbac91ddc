"""How each rival indexes and drafts: run as a script by the interpreter that rivals are in.

Reads one JSON request a line and answers it. It imports nothing of specds, which that interpreter
does not have. The time of a draft is that of the rival's own calls.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import numpy as np

Draft = tuple[list[int], list[int]]
"""Tokens, and the parent of each."""

MAX_MATCH = 16


class Corpus:
    """Raw little-endian tokens, a separator after each document, and the folder of an index."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.path = Path(request["tokens"]).resolve()
        self.folder = Path(request["folder"])
        self.token_bytes: int = request["token_bytes"]
        self.vocab_size: int = request["vocab_size"]
        self.separator: int = request["separator"]

    def text(self) -> np.ndarray:
        """The tokens, mapped."""
        return np.memmap(self.path, dtype=f"<u{self.token_bytes}", mode="r")

    def starts(self) -> np.ndarray:
        """Where documents begin."""
        return np.append(0, np.flatnonzero(self.text() == self.separator)[:-1] + 1)

    def documents(self) -> list[np.ndarray]:
        """Each with the separator after it."""
        return np.split(self.text(), self.starts()[1:])


def as_tree(paths: Sequence[Sequence[int]], max_nodes: int) -> Draft:
    """The tree of some paths from the context on, the first `max_nodes` nodes of it."""
    nodes: dict[tuple[int, int], int] = {}
    for path in paths:
        node = -1
        for token in path:
            if (node, token) not in nodes:
                if len(nodes) == max_nodes:
                    break
                nodes[node, token] = len(nodes)
            node = nodes[node, token]
    return [token for _, token in nodes], [parent for parent, _ in nodes]


class Engine:
    """What a rival does for one request at a time; most need no more than the context."""

    def forget(self) -> None:
        """Drops what earlier requests taught it."""

    def session(self, token_ids: list[int]) -> None:
        self.context = token_ids

    def draft(self, max_nodes: int) -> tuple[Draft, int]:
        """A draft and the nanoseconds that it took."""
        raise NotImplementedError

    def observe(self, token_ids: list[int]) -> None:
        self.context += token_ids

    def finish(self) -> None:
        """Ends the request."""


class Draftretriever(Engine):
    """ADED's retriever: a matrix of tri-grams searched by Monte Carlo.

    It learns from the contexts that it is asked about, of this request and of those before.
    """

    def __init__(self, package: Any, corpus: Corpus) -> None:
        self._package = package
        self._path = str(corpus.folder / "index")
        if not Path(self._path).exists():
            writer = package.Writer(self._path, corpus.vocab_size)
            for document in corpus.documents():
                writer.add_entry(document[:-1].tolist())
            writer.finalize()
        self.forget()

    def forget(self) -> None:
        self._reader = self._package.Reader(self._path)

    def draft(self, max_nodes: int) -> tuple[Draft, int]:
        context = self.context[-MAX_MATCH:]
        start = time.perf_counter_ns()
        paths = self._reader.search(context, choices=max_nodes)[0]
        elapsed = time.perf_counter_ns() - start
        # Paths are padded to one length by a negative number.
        whole = [[token for token in path if token >= 0] for path in paths]
        return as_tree(whole, max_nodes), elapsed


class Tokengrams:
    """A suffix array in two mapped files."""

    def __init__(self, package: Any, corpus: Corpus) -> None:
        tokens, index = corpus.folder / "tokens.bin", corpus.folder / "index.idx"
        vocab = 1 << 16 if corpus.token_bytes == 2 else 1 << 17
        if index.exists():
            self._index = package.MemmapIndex(str(tokens), str(index), vocab=vocab)
        else:
            tokens.symlink_to(corpus.path)
            self._index = package.MemmapIndex.build(str(tokens), str(index), vocab=vocab)
        self.count, self.follows = self._index.count, self._index.count_next


class InfiniGram:
    """Suffix arrays on disk, asked for the tokens after the longest suffix that occurs."""

    def __init__(self, package: Any, corpus: Corpus) -> None:
        folder, dtype = corpus.folder, f"u{8 * corpus.token_bytes}"
        if not (folder / "table.0").exists():
            self._build(corpus, dtype)
        sizes = {"eos_token_id": corpus.separator, "vocab_size": corpus.vocab_size}
        self._engine = package.InfiniGramEngine(index_dir=str(folder), token_dtype=dtype, **sizes)
        self.count = lambda pattern: int(self._engine.count(input_ids=pattern)["count"])
        self.follows = lambda pattern: self._engine.ntd(prompt_ids=pattern)

    @staticmethod
    def _build(corpus: Corpus, dtype: str) -> None:
        """Its own indexing program, which takes files that are tokenised already as they are."""
        folder = corpus.folder
        (folder / "tokenized.0").symlink_to(corpus.path)
        (corpus.starts() * corpus.token_bytes).astype(np.uint64).tofile(folder / "offset.0")
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        command: list[Any] = [sys.executable, "-m", "infini_gram.indexing"]
        command += ["--data_dir", folder, "--save_dir", folder, "--token_dtype", dtype]
        command += ["--mem", 8, "--ulimit", limit, "--cpus", os.cpu_count()]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


class ArcticSuffix(Engine):
    """Arctic's suffix trees of the request and of earlier answers: its default, a chain."""

    options: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, package: Any) -> None:
        self._make = package.SuffixDecodingCache
        self._requests = 0
        self.forget()

    def forget(self) -> None:
        self._cache = self._make()

    def session(self, token_ids: list[int]) -> None:
        super().session(token_ids)
        self._requests += 1
        self._cache.start_request(self._requests, token_ids)

    def draft(self, max_nodes: int) -> tuple[Draft, int]:
        start = time.perf_counter_ns()
        draft = self._cache.speculate(
            self._requests, self.context, max_spec_tokens=max_nodes, **self.options
        )
        elapsed = time.perf_counter_ns() - start
        return (list(draft.token_ids), list(draft.parents)), elapsed

    def observe(self, token_ids: list[int]) -> None:
        super().observe(token_ids)
        self._cache.add_active_response(self._requests, token_ids)

    def finish(self) -> None:
        self._cache.stop_request(self._requests)


class ArcticSuffixTree(ArcticSuffix):
    """The same, drafting a tree as large as the budget allows."""

    options = {"use_tree_spec": True, "max_spec_factor": 64.0, "min_token_prob": 0.0}  # noqa: RUF012


class ArcticSuffixCorpus(ArcticSuffixTree):
    """The same, with documents of the corpus, a million tokens, among the answers before."""

    def __init__(self, package: Any, corpus: Corpus) -> None:
        documents = corpus.documents()
        stride = max(len(corpus.text()) // 1_000_000, 1)
        self._documents = [document.tolist() for document in documents[::stride]]
        super().__init__(package)

    def forget(self) -> None:
        super().forget()
        for document in self._documents:
            self.session(document[:1])
            self.observe(document[1:])
            self.finish()


ENGINES: dict[str, tuple[str, Callable[..., Any]]] = {
    "draftretriever": ("draftretriever", Draftretriever),
    "tokengrams": ("tokengrams", Tokengrams),
    "infini-gram": ("infini_gram.engine", InfiniGram),
    "arctic-suffix": ("arctic_inference.suffix_decoding", ArcticSuffix),
    "arctic-suffix-tree": ("arctic_inference.suffix_decoding", ArcticSuffixTree),
    "arctic-suffix-corpus": ("arctic_inference.suffix_decoding", ArcticSuffixCorpus),
}
"""The module of each rival, and its engine; the second and third are indexes that draft nothing."""


def start(request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The engine of a name and, where it is not installed, what is said of it."""
    module, make = ENGINES[request["name"]]
    try:
        package = import_module(module)
    except ImportError as error:
        return None, {"absent": f"not installed for {sys.executable}: {error}"}
    if "tokens" not in request:
        return make(package), {}
    Path(request["folder"]).mkdir(exist_ok=True)
    return make(package, Corpus(request)), {}


def answer(engine: Engine, operation: str, request: dict[str, Any]) -> dict[str, Any]:
    """What an engine answers to a request."""
    if operation == "draft":
        (token_ids, parents), elapsed = engine.draft(**request)
        return {"token_ids": token_ids, "parents": parents, "elapsed_ns": elapsed}
    begun = time.perf_counter_ns()
    getattr(engine, operation)(**request)
    return {"elapsed_ns": time.perf_counter_ns() - begun}


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answers until there are no more requests; the first starts an engine."""
    engine: Engine | None = None
    for line in requests:
        request = json.loads(line)
        operation = request.pop("operation")
        if engine is None:
            engine, reply = start(request)
        else:
            reply = answer(engine, operation, request)
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    # Rivals print to standard output as they like: that is no answer.
    with os.fdopen(os.dup(1), "w") as pipe:
        os.dup2(2, 1)
        serve(sys.stdin, pipe)
