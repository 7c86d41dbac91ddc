"""The command that learns what the fused drafter starts from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from specds import terminal
from specds.build import BuildOptions
from specds.cache_folder import write_whole
from specds.cli import display
from specds.cli.arguments import Json, Overwrite, require_place
from specds.cli.records import Only


def fit(
    more_transcripts: Sequence[Path] = (),
    /,
    *,
    options: Annotated[BuildOptions, Only("prior_tokens")],
    transcripts: Sequence[Path] = (),
    datastore: Path | None = None,
    tokenizer: str | None = None,
    weights: str | None = None,
    out: Path | None = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Fit the weights that the fused drafter starts from.

    With recorded answers, ideally the model's own, it writes a file for --weights of `specds
    generate` and `specds bench replay`. With --datastore alone it fits a datastore's prior, as
    `specds build` does, if it has none of this version.

    Args:
        more_transcripts (FILE): The same as `--transcripts`.
        transcripts (FILE): A file of recorded answers: JSONL of `prompt` and `completion`.
        datastore (FOLDER): A folder made by `specds build`.
        tokenizer: By default the one the datastore was built with.
        weights (FILE): What to go on from: a file made by `specds fit`, or `none`; by default what
            is kept with the datastore.
        out (FILE): The file to write.

    Examples:
        specds fit --transcripts answers.jsonl --datastore chat.specds --out answers.weights

        specds fit --datastore chat.specds
    """
    from specds._core import Datastore, refit

    files = [*transcripts, *more_transcripts]
    if not files:
        if datastore is None or out or weights or tokenizer:
            raise typer.BadParameter(
                "give recorded answers by --transcripts; or --datastore alone, to fit what is kept "
                "with it"
            )
        with terminal.build_progress() as progress:
            fitted = refit(datastore, progress=progress, **options.for_core("prior_tokens"))
        display.show_datastore(fitted, as_json=as_json)
        return
    if out is None:
        raise typer.BadParameter("name the file to write by --out")
    # To go on from weights and keep them in the same file is to ask for it.
    require_place(out, overwrite=overwrite or str(out) == weights)
    from specds.bench.harness import tokenizer_of
    from specds.bench.replay.fit import fit as learn
    from specds.bench.transcripts import read_files
    from specds.drafters import read_weights

    opened = None if datastore is None else Datastore.open(datastore)
    _, loaded = tokenizer_of(tokenizer, [] if opened is None else [opened])
    recorded = read_files(files, loaded)
    with terminal.build_progress() as progress:
        learned, report = learn(recorded, opened, read_weights(weights), progress)
    write_whole(out, learned)
    display.show("Weights", {"path": str(out), **report}, as_json=as_json)
