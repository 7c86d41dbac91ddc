"""The replay that the command line asks for, from names and paths to rows."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specds._core import __version__
from specds.bench.engines import EntrantInputs, check_names, engines_of, needs_model
from specds.bench.harness import Options, silent, tokenizer_of
from specds.bench.replay.measure import measure
from specds.bench.replay.report import rows_of
from specds.bench.transcripts import ALL, ordered
from specds.drafters import DrafterInputs, read_weights
from specds.loading import load_model
from specds.tokenization import vocab_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specds.bench.harness import Document, Progress
    from specds.bench.transcripts import Order, Transcript

_CHECKED_CONTEXTS = 20
_CONTEXT_TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Options):
    """What to replay.

    Attributes:
        order: Of the requests.
        memory_tokens: Tokens of the datastore that are in the memory of the fused drafter when it
            starts, so that its time is that of a server which has run for a while.
    """

    order: Order = "file"
    memory_tokens: int = 0


def run_replay(options: ReplayOptions, progress: Progress = silent) -> Document:
    """Replays every drafter at every budget.

    Returns:
        What the rows have in common, and `rows`, ordered by transcripts.

    Raises:
        ValueError: Something is missing, unknown, or does not belong together.
        OSError: A file cannot be read.
    """
    has_model = options.model is not None
    check_names(options.drafters, datastore=bool(options.datastores), model=has_model)
    datastores = options.open_datastores()
    name, tokenizer = tokenizer_of(options.tokenizer, datastores)
    requests = ordered(options.read(tokenizer), options.order, options.seed)
    target = load_model(str(options.model))[0] if needs_model(options.drafters) else None
    own = DrafterInputs(model=target, tokenizer=tokenizer, weights=read_weights(options.weights))
    with tempfile.TemporaryDirectory() as folder:
        entry = EntrantInputs(vocab_size(tokenizer), _contexts(requests), folder=Path(folder))
        engines = engines_of(options.drafters, datastores, own, entry, options.memory_tokens)
        total = len(engines) * len(options.budgets) * len(requests)
        cells = measure(
            engines,
            [int(budget) for budget in options.budgets],
            requests,
            warm_memory=options.warm_memory,
            progress=lambda engine: progress(engine, total),
        )
        rows = [row for cell in cells for row in rows_of(cell)]
    rows.sort(key=lambda row: (row["transcripts"] == ALL, row["transcripts"]))
    fields = ("order", "seed", "warm_memory", "memory_tokens", "limit", "weights")
    about = {field: getattr(options, field) for field in fields}
    return {"specds": __version__, "tokenizer": name, **about, "rows": rows}


def _contexts(requests: Sequence[Transcript]) -> list[list[int]]:
    """Some contexts that entrants will be asked about, to check them with."""
    places = np.linspace(0, len(requests) - 1, min(_CHECKED_CONTEXTS, len(requests))).astype(int)
    chosen = [requests[place] for place in places]
    return [
        [*request.prompt_ids.tolist(), *request.completion_ids.tolist()[:-1]][-_CONTEXT_TOKENS:]
        for request in chosen
    ]
