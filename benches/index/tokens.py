"""What is indexed: a corpus, written down once as tokens on disk, and what is drafted for."""

from __future__ import annotations

import hashlib
import json
import shutil
import sysconfig
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from specds.bench.transcripts import Transcript

ENVIRONMENT = "environment"
BATCH = 256
CONTEXT = 32
HELD_OUT_STRIDE = 997
HELD_OUT_TOKENS = 2048

# Solutions of HumanEval lie about in packages: drafting for its answers from them proves nothing.
CONTAMINATED = "has_close_elements"


@dataclass(frozen=True)
class Facts:
    """What the token ids of a corpus mean."""

    name: str
    tokenizer: str
    vocab_size: int
    separator: int


@dataclass(frozen=True)
class TokenCorpus:
    """Documents as tokens: `tokens.npy` (no separators) and `lengths.npy`, in one folder."""

    folder: Path
    facts: Facts

    @classmethod
    def open(cls, folder: Path) -> TokenCorpus:
        return cls(folder, Facts(**json.loads((folder / "facts.json").read_text())))

    @classmethod
    def write(
        cls, folder: Path, facts: Facts, tokens: np.ndarray, lengths: np.ndarray
    ) -> TokenCorpus:
        folder.mkdir(parents=True, exist_ok=True)
        width = np.uint16 if facts.vocab_size <= 1 << 16 else np.uint32
        np.save(folder / "tokens.npy", tokens.astype(width, copy=False))
        return cls.finish(folder, facts, lengths)

    @classmethod
    def finish(cls, folder: Path, facts: Facts, lengths: np.ndarray) -> TokenCorpus:
        """Writes all but the tokens, which are there."""
        np.save(folder / "lengths.npy", lengths.astype(np.int64, copy=False))
        (folder / "facts.json").write_text(json.dumps(asdict(facts)))
        return cls(folder, facts)

    @property
    def tokens(self) -> np.memmap:
        return np.load(self.folder / "tokens.npy", mmap_mode="r")

    @property
    def lengths(self) -> np.ndarray:
        return np.load(self.folder / "lengths.npy", mmap_mode="r")

    @property
    def num_tokens(self) -> int:
        """Separators included, as every index of these tokens counts them."""
        return len(self.tokens) + len(self.lengths)

    def batches(
        self, num_tokens: int = 1 << 18, skip: int = 0
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Whole documents after the first `skip`; by default, what `specds build` adds at once."""
        lengths, mapped = np.array(self.lengths), self.tokens
        skipped, lengths = int(lengths[:skip].sum()), lengths[skip:]
        ends = np.cumsum(lengths)
        cuts = np.flatnonzero(np.diff(ends // num_tokens)) + 1
        first = 0
        # Read and not mapped: pages of a mapping count as memory of the builder.
        with (self.folder / "tokens.npy").open("rb") as file:
            file.seek(mapped.offset + skipped * mapped.itemsize)
            for last in [*cuts.tolist(), len(ends)]:
                part = lengths[first:last]
                yield np.fromfile(file, dtype=mapped.dtype, count=int(part.sum())), part
                first = last

    def prefix(self, num_tokens: int, folder: Path) -> TokenCorpus:
        """Its first documents, cut after `num_tokens` tokens."""
        lengths = np.diff(np.minimum(np.cumsum(self.lengths), num_tokens), prepend=0)
        return TokenCorpus.write(folder, self.facts, self.tokens[:num_tokens], lengths[lengths > 0])

    def repeated(self, num_tokens: int, folder: Path) -> TokenCorpus:
        """`num_tokens` tokens at least: copies of itself, each with its ids shifted by a salt."""
        copies = -(-num_tokens // self.num_tokens)
        ids, size = self.tokens.astype(np.uint32), self.facts.vocab_size
        salted = np.concatenate([(ids + 7919 * copy) % size for copy in range(copies)])
        return TokenCorpus.write(folder, self.facts, salted, np.tile(self.lengths, copies))

    def stream(self) -> Path:
        """One file of raw little-endian tokens, a separator after each document, for rivals."""
        path = self.folder / "stream.bin"
        if not path.exists():
            ends = np.cumsum(self.lengths)
            np.insert(self.tokens, ends, self.facts.separator).tofile(path)
        return path


def tokenise(
    spec: str, tokenizer_name: str, cache: Path, limit_tokens: int | None = None
) -> TokenCorpus:
    """Tokenises a corpus, or opens what an earlier run left in `cache`.

    Some documents are held out, to draft for, and not indexed.
    """
    key = hashlib.sha256(repr((spec, tokenizer_name, limit_tokens)).encode()).hexdigest()[:12]
    folder = cache / key
    if folder.exists():
        return TokenCorpus.open(folder)
    from specds.loading import load_tokenizer
    from specds.tokenization import vocab_size

    tokenizer = load_tokenizer(tokenizer_name)
    size, eos = vocab_size(tokenizer), tokenizer.eos_token_id
    if eos is None:
        raise ValueError(f"{tokenizer_name} has no end-of-sequence token: choose another tokenizer")
    partial = cache / f"{key}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    facts = Facts(spec, tokenizer_name, size, eos)
    _write_documents(_documents(spec), tokenizer, partial, facts, limit_tokens)
    partial.rename(folder)
    return TokenCorpus.open(folder)


def _write_documents(
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    facts: Facts,
    limit_tokens: int | None,
) -> None:
    """The documents as tokens; the held out ones apart."""
    indexed: list[np.ndarray] = []
    held_out: list[np.ndarray] = []
    num_tokens = 0
    for number, ids in enumerate(_encode(texts, tokenizer)):
        if number % HELD_OUT_STRIDE == 0:
            held_out.append(ids[:HELD_OUT_TOKENS])
            continue
        indexed.append(ids)
        num_tokens += len(ids)
        if limit_tokens is not None and num_tokens >= limit_tokens:
            break
    for where, documents in ((folder, indexed), (folder / "held-out", held_out)):
        lengths = np.array([len(ids) for ids in documents], dtype=np.int64)
        TokenCorpus.write(where, facts, np.concatenate(documents), lengths)


def _encode(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[np.ndarray]:
    from specds.tokenization import encode_batch

    for batch in _batched(texts):
        tokens, lengths = encode_batch(tokenizer, batch)
        for ids in np.split(tokens, np.cumsum(lengths)[:-1]):
            if len(ids):
                # Narrow at once: the whole corpus is held until it is written.
                yield ids.astype(np.min_scalar_type(int(ids.max())))


def _batched(texts: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(texts)
    while batch := list(islice(rest, BATCH)):
        yield batch


def _documents(spec: str) -> Iterator[str]:
    from specds.corpora import Document, open_corpus

    if spec != ENVIRONMENT:
        yield from (item.text for item in open_corpus(spec) if isinstance(item, Document))
        return
    for corpus in ("stdlib", sysconfig.get_path("purelib")):
        for item in open_corpus(corpus):
            is_code = isinstance(item, Document) and item.name.endswith(".py")
            if is_code and CONTAMINATED not in item.text:
                yield item.text


def held_out_transcripts(corpus: TokenCorpus) -> list[Transcript]:
    """The held out documents: the first half of each as prompt, the second as completion."""
    from specds.bench.transcripts import Transcript

    held_out = TokenCorpus.open(corpus.folder / "held-out")
    documents = np.split(held_out.tokens, np.cumsum(held_out.lengths)[:-1])
    halves = ((ids[: len(ids) // 2], ids[len(ids) // 2 :]) for ids in documents if len(ids) > 1)
    eos = corpus.facts.separator
    return [Transcript("held out", prompt, np.append(rest, eos)) for prompt, rest in halves]


def read_answers(files: list[Path], corpus: TokenCorpus) -> list[Transcript]:
    """Recorded answers in the corpus's tokens."""
    from specds.bench.transcripts import read_transcripts
    from specds.loading import load_tokenizer

    tokenizer = load_tokenizer(corpus.facts.tokenizer)
    size = corpus.facts.vocab_size
    return [answer for path in files for answer in read_transcripts(path, tokenizer, size)]


def save_transcripts(path: Path, transcripts: list[Transcript]) -> None:
    """One file of arrays, so that a child that is weighed need not parse text."""
    np.savez(
        path,
        sources=np.array([transcript.source for transcript in transcripts]),
        tokens=np.concatenate([ids for pair in _pairs(transcripts) for ids in pair]),
        lengths=np.array([len(ids) for pair in _pairs(transcripts) for ids in pair]),
    )


def _pairs(transcripts: list[Transcript]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(transcript.prompt_ids, transcript.completion_ids) for transcript in transcripts]


def contexts(transcripts: list[Transcript], number: int) -> np.ndarray:
    """Tokens to draft after, `CONTEXT` a row, evenly spread over all answers."""
    texts = [(np.concatenate(pair), len(pair[0])) for pair in _pairs(transcripts)]
    places = [(text, end) for text, start in texts for end in range(max(start, CONTEXT), len(text))]
    if not places:
        raise ValueError(f"every answer ends within {CONTEXT} tokens: give longer transcripts")
    chosen = np.linspace(0, len(places) - 1, min(number, len(places))).astype(int)
    return np.stack([text[end - CONTEXT : end] for text, end in (places[i] for i in chosen)])


def save_queries(path: Path, transcripts: list[Transcript], separator: int, number: int) -> None:
    """Writes patterns of 1 to 8 tokens of these texts, without separators, at random places."""
    text = np.concatenate([ids for pair in _pairs(transcripts) for ids in pair])
    text = text[text != separator]
    random = np.random.default_rng(0)
    lengths = np.minimum(random.integers(1, 9, number), len(text))
    starts = random.integers(0, len(text) - lengths + 1)
    patterns = [text[start : start + size] for start, size in zip(starts, lengths, strict=True)]
    np.savez(path, tokens=np.concatenate(patterns), lengths=lengths)


def load_transcripts(path: Path) -> list[Transcript]:
    from specds.bench.transcripts import Transcript

    with np.load(path) as arrays:
        sources, tokens, lengths = arrays["sources"], arrays["tokens"], arrays["lengths"]
    parts = np.split(tokens.astype(np.uint32), np.cumsum(lengths)[:-1])
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [Transcript(str(source), *pair) for source, pair in zip(sources, pairs, strict=True)]
