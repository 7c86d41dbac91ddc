"""Published baselines behind one interface, run as a script by the interpreter that has them.

Reads one JSON request a line and answers it. It imports nothing of specds, which that interpreter
does not have. The time of a draft is that of the baseline's own calls.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import numpy as np

DraftArrays = tuple[list[int], list[int]]
"""Tokens, and the parent of each."""

MAX_MATCH = 16


class CorpusFiles:
    """File of little-endian tokens, a separator after each document, and a folder for an index."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.path = Path(request["tokens"]).resolve()
        self.folder = Path(request["folder"])
        self.vocab_size: int = request["vocab_size"]
        self.separator: int = request["separator"]

    def text(self) -> np.ndarray:
        """Map the tokens into memory."""
        return np.memmap(self.path, dtype="<u4", mode="r")

    def starts(self) -> np.ndarray:
        return np.append(0, np.flatnonzero(self.text() == self.separator)[:-1] + 1)

    def documents(self) -> list[np.ndarray]:
        """Return the documents, each with the separator after it."""
        return np.split(self.text(), self.starts()[1:])

    def sample(self) -> list[np.ndarray]:
        """Return documents at an even stride, about a million tokens, or all of a small corpus."""
        num_tokens = len(self.text())
        stride = 1 if num_tokens < 5_000_000 else num_tokens // 1_000_000
        return self.documents()[::stride]


def as_tree(paths: Sequence[Sequence[int]], max_nodes: int) -> DraftArrays:
    """Return the tree of some paths after the context, cut to `max_nodes` nodes."""
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


class Baseline:
    """Interface of a baseline, which serves one request at a time; most need only the context."""

    def forget(self) -> None:
        """Drop all state of earlier requests."""

    def session(self, token_ids: list[int]) -> None:
        self.context = token_ids

    def draft(self, max_nodes: int) -> tuple[DraftArrays, int]:
        """Return a draft and its time in nanoseconds."""
        raise NotImplementedError

    def observe(self, token_ids: list[int]) -> None:
        self.context += token_ids

    def finish(self) -> None:
        """End the request."""


class Draftretriever(Baseline):
    """ADED's retriever: a tri-gram matrix with Monte Carlo tree search.

    It learns from all contexts that it has received.
    """

    def __init__(self, package: Any, corpus: CorpusFiles) -> None:
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

    def draft(self, max_nodes: int) -> tuple[DraftArrays, int]:
        context = self.context[-MAX_MATCH:]
        start = time.perf_counter_ns()
        paths = self._reader.search(context, choices=max_nodes)[0]
        elapsed = time.perf_counter_ns() - start
        # Paths are padded with a negative number.
        whole = [[token for token in path if token >= 0] for path in paths]
        return as_tree(whole, max_nodes), elapsed


class ArcticSuffix(Baseline):
    """Arctic's suffix trees of the request and of earlier answers, with its default chains."""

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

    def draft(self, max_nodes: int) -> tuple[DraftArrays, int]:
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
    """Arctic's suffix trees with tree drafts of any size."""

    options = {"use_tree_spec": True, "max_spec_factor": 64.0, "min_token_prob": 0.0}  # noqa: RUF012


class ArcticSuffixCorpus(ArcticSuffixTree):
    """Arctic's suffix trees with documents of the corpus as earlier answers."""

    def __init__(self, package: Any, corpus: CorpusFiles) -> None:
        self._documents = [document.tolist() for document in corpus.sample()]
        super().__init__(package)

    def forget(self) -> None:
        super().forget()
        for document in self._documents:
            self.session(document[:1])
            self.observe(document[1:])
            self.finish()


class SglangNgram(Baseline):
    """SGLang's n-gram corpus, used as by its worker: the last tokens are matched and inserted."""

    depth = 18
    match_type = "BFS"
    corpus_share = 0.0

    def __init__(self, library: ctypes.CDLL, corpus: CorpusFiles | None = None) -> None:
        self._library = library
        self._documents = [] if corpus is None else corpus.sample()
        self._requests = 0
        self._ngram: int | None = None
        self._max_nodes = 0

    def forget(self) -> None:
        if self._ngram is not None:
            self._library.ngram_delete(self._ngram)
        self._ngram = None

    def _open(self, max_nodes: int) -> None:
        """Open a corpus for one size of drafts, which is fixed."""
        self.forget()
        self._max_nodes = max_nodes
        corpus_nodes = int(self.corpus_share * max_nodes)
        match_type = self.match_type.encode()
        self._ngram = self._library.ngram_new(max_nodes, self.depth, match_type, corpus_nodes)
        if self._documents:
            text = np.concatenate(self._documents, dtype=np.int32)
            starts = np.cumsum([0, *map(len, self._documents)])
            self._library.ngram_load(self._ngram, text, starts, len(self._documents))

    def session(self, token_ids: list[int]) -> None:
        super().session(token_ids)
        self._requests += 1
        self._is_new = True

    def begin(self) -> None:
        """Prepare for the first draft of a request."""

    def insert(self, token_ids: list[int]) -> None:
        self._library.ngram_insert(self._ngram, np.array(token_ids, np.int32), len(token_ids))

    def draft(self, max_nodes: int) -> tuple[DraftArrays, int]:
        if self._ngram is None or max_nodes != self._max_nodes:
            self._open(max_nodes)
        if self._is_new:
            self.begin()
        self._is_new = False
        width = max_nodes + 1
        drafted, mask = np.zeros(width, np.int32), np.zeros((width, width), np.uint8)
        tail = np.array(self.context[-self.depth :], np.int32)
        start = time.perf_counter_ns()
        length = len(self.context)
        request = self._requests
        match = self._library.ngram_match
        match(self._ngram, request, tail, len(tail), length, drafted, mask)
        elapsed = time.perf_counter_ns() - start
        paths = [drafted[row.nonzero()][1:].tolist() for row in mask.astype(bool)]
        # Unused nodes are of token 0 and hang from the root.
        return as_tree([path for path in paths if path != [0]], max_nodes), elapsed

    def observe(self, token_ids: list[int]) -> None:
        super().observe(token_ids)
        if self._ngram is not None:
            self.insert(self.context[-self.depth :])

    def finish(self) -> None:
        if self._ngram is not None:
            self._library.ngram_end(self._ngram, self._requests)


class SglangNgramPrompt(SglangNgram):
    """SGLang's n-grams with the prompt inserted, unlike its worker."""

    def begin(self) -> None:
        self.insert(self.context)


class SglangNgramCorpus(SglangNgramPrompt):
    """SGLang's n-grams with documents of the corpus as external corpus, for half of the nodes."""

    match_type = "PROB"
    corpus_share = 0.5


def sglang_library() -> ctypes.CDLL:
    """Compile the n-gram sources of the package, which do not depend on the rest of it."""
    found = find_spec("sglang")
    if found is None or found.origin is None:
        raise ImportError("no module named sglang")
    sources = Path(found.origin).parent / "kernels" / "jit" / "csrc" / "ngram_corpus"
    own = Path(__file__).with_name("sglang_ngram.cpp")
    files = [own, *(each for each in sources.glob("*.cpp") if not each.stem.endswith("_ffi"))]
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "ngram.so"
        command = ["c++", "-std=c++20", "-O3", "-shared", "-fPIC", "-pthread", f"-I{sources}"]
        subprocess.run([*command, *map(str, files), "-o", str(library)], check=True)
        loaded = ctypes.CDLL(str(library))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    tokens, places, bits = (
        np.ctypeslib.ndpointer(kind, flags="C") for kind in (np.int32, np.int64, np.uint8)
    )
    loaded.ngram_new.restype = pointer
    loaded.ngram_new.argtypes = [number, number, ctypes.c_char_p, number]
    loaded.ngram_delete.argtypes = [pointer]
    loaded.ngram_load.argtypes = [pointer, tokens, places, number]
    loaded.ngram_insert.argtypes = [pointer, tokens, number]
    loaded.ngram_match.argtypes = [pointer, number, tokens, number, number, tokens, bits]
    loaded.ngram_end.argtypes = [pointer, number]
    return loaded


SGLANG = "sglang"
ENGINES: dict[str, tuple[str, Callable[..., Any]]] = {
    "draftretriever": ("draftretriever", Draftretriever),
    "arctic-suffix": ("arctic_inference.suffix_decoding", ArcticSuffix),
    "arctic-suffix-tree": ("arctic_inference.suffix_decoding", ArcticSuffixTree),
    "arctic-suffix-corpus": ("arctic_inference.suffix_decoding", ArcticSuffixCorpus),
    "sglang-ngram": (SGLANG, SglangNgram),
    "sglang-ngram-prompt": (SGLANG, SglangNgramPrompt),
    "sglang-ngram-corpus": (SGLANG, SglangNgramCorpus),
}
"""Module and class of each baseline."""


def start(request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the engine of a name, or None and a reply if it is not installed."""
    module, make = ENGINES[request["name"]]
    try:
        package = sglang_library() if module == SGLANG else import_module(module)
    except ImportError as error:
        return None, {"absent": f"not installed for {sys.executable}: {error}"}
    if "tokens" not in request:
        return make(package), {}
    Path(request["folder"]).mkdir(exist_ok=True)
    return make(package, CorpusFiles(request)), {}


def answer(engine: Baseline, operation: str, request: dict[str, Any]) -> dict[str, Any]:
    if operation == "draft":
        (token_ids, parents), elapsed = engine.draft(**request)
        return {"token_ids": token_ids, "parents": parents, "elapsed_ns": elapsed}
    begun = time.perf_counter_ns()
    getattr(engine, operation)(**request)
    return {"elapsed_ns": time.perf_counter_ns() - begun}


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer all requests; the first starts an engine."""
    engine: Baseline | None = None
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
    # Baselines print to standard output, which must not mix with answers.
    with os.fdopen(os.dup(1), "w") as pipe:
        os.dup2(2, 1)
        serve(sys.stdin, pipe)
