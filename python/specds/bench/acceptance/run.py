"""Run of `specds bench acceptance`: from options to a document of rows."""

from specds._core import __version__
from specds.bench.acceptance.measure import measure
from specds.bench.acceptance.report import rows_of
from specds.bench.drafters import check_names, drafters_of, needs_model
from specds.bench.harness import (
    BenchReport,
    OnProgress,
    circumstances,
    open_datastores,
    tokenizer_of,
)
from specds.bench.options import AcceptanceOptions
from specds.bench.transcripts import ALL, read_files
from specds.drafters import DrafterInputs
from specds.models.load import load_model


def run_acceptance(
    options: AcceptanceOptions, progress: OnProgress = lambda *_: None
) -> BenchReport:
    """Replay every drafter with every number of nodes; `rows` are ordered by transcripts."""
    for name in options.drafters:
        if name.startswith("hierarchy"):
            raise ValueError(f"drafter `{name}` samples: measure it with `specds bench generate`")
    has_model = options.model is not None
    check_names(options.drafters, datastore=bool(options.datastores), model=has_model)
    datastores = open_datastores(options.datastores)
    name, tokenizer = tokenizer_of(options.tokenizer, datastores)
    requests = read_files(options.transcripts, tokenizer, options.limit)
    target = load_model(str(options.model))[0] if needs_model(options.drafters) else None
    own = DrafterInputs(model=target, tokenizer=tokenizer)
    drafters = drafters_of(options.drafters, datastores, own, options.memory_tokens)
    total = len(drafters) * len(options.max_nodes) * len(requests)
    cells = measure(
        drafters,
        [int(each) for each in options.max_nodes],
        requests,
        warm_memory=options.warm_memory,
        shape=options.shape,
        progress=lambda drafter: progress(drafter, total),
    )
    rows = [row for cell in cells for row in rows_of(cell)]
    rows.sort(key=lambda row: (row["transcripts"] == ALL, row["transcripts"]))
    fields = ("shape", "warm_memory", "memory_tokens", "limit")
    about = {field: getattr(options, field) for field in fields}
    return {"specds": __version__, "tokenizer": name, **circumstances(), **about, "rows": rows}
