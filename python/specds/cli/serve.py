"""The command that serves a model: it becomes the engine's."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from specds import terminal


def serve(
    model: str,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENT", help="After `--`: for the engine.")
    ] = None,
    /,
    *,
    datastore: Path | None = None,
    memory: Path | None = None,
    engine: Literal["llama-server", "vllm", "sglang", "transformers"] | None = None,
    dry_run: bool = False,
) -> None:
    """Serve a model with drafts, by the engine that is installed for it.

    Prints the line that it runs. A GGUF file is served by llama-server, a folder or a name on the
    hub by vLLM, SGLang or transformers, whichever is there.

    Args:
        model (MODEL): A GGUF file, a folder, or a name on the hub.
        datastore (DATASTORE): Draft from this folder made by `specds build`, or `org/name`.
        memory (FILE): Draft from all earlier requests, and keep them in this file.
        engine: Not the first that is found.
        dry_run: Print the line, and do not run it.

    Examples:
        specds serve model.gguf --datastore chat.specds -- --port 8080
        specds serve ./my-model --memory requests.memory --engine vllm
    """
    from specds.hub import locate, named_datastore
    from specds.integrations.serve import serving

    named = named_datastore(model) if datastore is None and engine != "transformers" else datastore
    located = None if named is None else Path(locate(named))
    command = serving(model, datastore=located, memory=memory, engine=engine, more=more or ())
    sources = [str(located)] if located else []
    sources += ["earlier requests"] if memory else []
    about = ", ".join([*sources, "the request itself"])
    terminal.err.print(f"drafts from {about}", markup=False, soft_wrap=True)
    terminal.out.print(str(command), markup=False, soft_wrap=True)
    if not dry_run:
        os.execvpe(command.words[0], command.words, {**os.environ, **command.environment})
