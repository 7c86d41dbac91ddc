"""The replay that the command line asks for, from names and paths to rows."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specds._core import Datastore, __version__
from specds.bench.engines import EntrantInputs, check_names, engines_of, needs_model
from specds.bench.replay.measure import measure
from specds.bench.replay.report import Settings, rows_of
from specds.bench.transcripts import ALL, check_groups, ordered, read_files
from specds.drafters import DrafterInputs, read_weights
from specds.loading import load_model, load_tokenizer
from specds.tokenization import check_tokenizer, vocab_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specds.bench.replay.report import Row
    from specds.bench.transcripts import Order, Transcript

    Progress = Callable[[str, int], None]
    """Told the engine's name before each request, and how many requests there are in all."""

_CHECKED_CONTEXTS = 20
_CONTEXT_TOKENS = 256


@dataclass(frozen=True)
class ReplayOptions:
    """What to replay.

    Attributes:
        transcripts: Files of recorded answers.
        drafters: Names of drafters and entrants.
        budgets: The most nodes of a draft.
        datastores: Paths; a drafter that takes one runs with each of them.
        tokenizer: The name of that of the model that wrote the answers; None is the datastore's.
        model: The name of the target, for drafters that are made of its weights.
        order: Of the requests.
        seed: Of the order, where it is a shuffled one.
        warm_memory: Whether a drafter keeps what earlier requests taught it.
        memory_tokens: So many tokens of the datastore are in the memory of the fused drafter when
            it starts, so that its time is that of a server which has run for a while.
        limit: The most requests of a file.
        weights: A file of weights that the fused drafter starts from, or ``none``; None is the
            datastore's prior.
    """

    transcripts: Sequence[Path]
    drafters: Sequence[str]
    budgets: Sequence[int]
    datastores: Sequence[Path] = ()
    tokenizer: str | None = None
    model: str | None = None
    order: Order = "file"
    seed: int = 0
    warm_memory: bool = True
    memory_tokens: int = 0
    limit: int | None = None
    weights: str | None = None


def run_replay(
    options: ReplayOptions, progress: Progress = lambda _name, _total: None
) -> tuple[list[Row], Settings]:
    """Replays every drafter at every budget.

    Returns:
        The rows, ordered by transcripts, and what they have in common.

    Raises:
        ValueError: Something is missing, unknown, or does not belong together.
        OSError: A file cannot be read.
    """
    check_names(
        options.drafters,
        datastore=bool(options.datastores),
        model=options.model is not None,
    )
    datastores = [Datastore.open(path) for path in options.datastores]
    for datastore in datastores:  # what is drafted first would else wait for the disk
        datastore.warm()
    name, tokenizer = _tokenizer(options.tokenizer, datastores)
    size = vocab_size(tokenizer)
    recorded = read_files(options.transcripts, tokenizer, options.limit)
    check_groups(recorded, len(options.transcripts))
    requests = ordered(recorded, options.order, options.seed)
    target = _target(options)
    own = DrafterInputs(
        model=target,
        tokenizer=tokenizer,
        weights=read_weights(options.weights),
    )
    with tempfile.TemporaryDirectory() as folder:
        entry = EntrantInputs(size, _contexts(requests), folder=Path(folder))
        engines = engines_of(options.drafters, datastores, own, entry, options.memory_tokens)
        total = len(engines) * len(options.budgets) * len(requests)
        cells = measure(
            engines,
            options.budgets,
            requests,
            warm_memory=options.warm_memory,
            progress=lambda engine: progress(engine, total),
        )
        rows = [row for cell in cells for row in rows_of(cell)]
    rows.sort(key=lambda row: (row["transcripts"] == ALL, row["transcripts"]))
    return rows, Settings(
        specds=__version__,
        tokenizer=name,
        order=options.order,
        seed=options.seed,
        warm_memory=options.warm_memory,
        memory_tokens=options.memory_tokens,
        limit=options.limit,
        weights=options.weights,
    )


def read_all(
    files: Sequence[Path], tokenizer: str | None, datastores: Sequence[Datastore]
) -> list[Transcript]:
    """Reads files of transcripts, one after the other.

    Args:
        files: JSONL, packed or not.
        tokenizer: The name of that of the model that wrote them; None is the datastores'.
        datastores: What they are replayed with.

    Raises:
        ValueError: A tokenizer is missing or does not fit, or a row cannot be replayed.
        OSError: A file cannot be read.
    """
    return read_files(files, _tokenizer(tokenizer, datastores)[1])


def _tokenizer(
    name: str | None, datastores: Sequence[Datastore]
) -> tuple[str, PreTrainedTokenizerBase]:
    if name is None:
        if not datastores:
            raise ValueError("no tokenizer: give one by --tokenizer, or a datastore that names it")
        name = datastores[0].tokenizer_name
    tokenizer = load_tokenizer(name)
    for datastore in datastores:
        check_tokenizer(datastore, tokenizer)
    return name, tokenizer


def _target(options: ReplayOptions) -> PreTrainedModel | None:
    if options.model is None or not needs_model(options.drafters):
        return None
    return load_model(options.model)[0]


def _contexts(requests: Sequence[Transcript]) -> list[list[int]]:
    """Some contexts that entrants will be asked about, to check them with."""
    places = np.linspace(0, len(requests) - 1, min(_CHECKED_CONTEXTS, len(requests))).astype(int)
    chosen = [requests[place] for place in places]
    return [
        [*request.prompt_ids.tolist(), *request.completion_ids.tolist()[:-1]][-_CONTEXT_TOKENS:]
        for request in chosen
    ]
