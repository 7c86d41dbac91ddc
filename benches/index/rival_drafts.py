"""Another retriever of drafts that is on the package index, over the same tokens and answers.

draftretriever is that of ADED (Liu et al. 2024), after REST's: a matrix of tri-grams, searched by
Monte Carlo. It learns from the contexts that it is asked about, of this answer and of those before:
its like among our drafters is the one that drafts from the request's own text too. Run in a child
of the interpreter that has it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from index.acceptance import Tally, replay, right_prefix
from index.child import metered
from index.published_rest import CHOICES, MAX_MATCH
from index.tokens import TokenCorpus, load_transcripts


def run(corpus: str, transcripts: str, out: str) -> dict[str, Any]:
    """The job of a child: indexes, then replays all answers; nothing where it is not installed."""
    try:
        import draftretriever
    except ImportError:
        return {}
    opened, path = TokenCorpus.open(Path(corpus)), Path(out)
    with metered() as cost:
        _index(opened, draftretriever.Writer(str(path), opened.facts.vocab_size))
    reader = draftretriever.Reader(str(path))
    elapsed: list[float] = []

    def step(tokens: np.ndarray, position: int) -> tuple[int, int]:
        context = tokens[max(0, position - MAX_MATCH) : position].tolist()
        start = time.perf_counter()
        paths = reader.search(context, choices=CHOICES)[0]
        elapsed.append(time.perf_counter() - start)
        # Paths are padded to one length by a negative number.
        nodes = {tuple(path[: n + 1]) for path in paths for n, end in enumerate(path) if end >= 0}
        return right_prefix(nodes, tokens[position:]), len(nodes)

    tally = Tally()
    for transcript in load_transcripts(Path(transcripts)):
        tally += replay(transcript, step)
    return {
        "cost": cost,
        "num_bytes": path.stat().st_size,
        "num_tokens": opened.num_tokens,
        "replay": tally.to_dict(),
        "draft_us": {p: float(np.percentile(elapsed, p)) * 1e6 for p in (50, 99)},
    }


def _index(corpus: TokenCorpus, writer: Any) -> None:
    for tokens, lengths in corpus.batches():
        for document in np.split(tokens, np.cumsum(lengths)[:-1]):
            writer.add_entry(document.tolist())
    writer.finalize()
