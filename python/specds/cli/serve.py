"""The command that serves a model to editors and agents."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from specds import terminal
from specds._lazy import advising
from specds.cli.arguments import utf8
from specds.cli.model_options import open_datastore, require_memory

_MOST_PARALLEL = 256
_MOST_KEPT = 64
"""The most finished requests whose keys and values are kept."""


def serve(
    model: str,
    /,
    *,
    host: str = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535, help="Port; 0 selects a free one."
        ),
    ] = 8080,
    api_key: str | None = None,
    api_keys: Path | None = None,
    alias: str | None = None,
    parallel: int = 4,
    context: int | None = None,
    activations: Literal["float32", "int8"] = "int8",
    threads: int | None = None,
    datastore: str = "auto",
    memory: str | None = None,
    slot_memory: int | None = None,
    slots_file: Path | None = None,
    share_prefixes: bool = False,
    spell_control_tokens: bool = False,
) -> None:
    """Serve a model by OpenAI's API, for editors and local agents.

    Prints the address when it listens. Ctrl-C ends it: requests get 5 seconds, and the request
    cache is saved.

    Args:
        model (MODEL): A GGUF file, `smollm2`, a local folder, or a name on the hub.
        host (ADDRESS): Address to listen at; other machines reach `0.0.0.0`.
        api_key (KEY): Key that requests need.
        api_keys (FILE): Keys that requests need, one in each line, with the tenant after a space;
            nothing of a tenant is in another's drafts and prefixes.
        alias (NAME): Name of the model for clients. [default: that of the file]
        parallel: Most texts at once; others wait.
        context (TOKENS): Most tokens of a text, prompt included. [default: the model's own]
        activations: Activations of a GGUF file. `int8` rounds as llama.cpp does and is faster.
        threads: Threads of a forward pass. [default: `OMP_NUM_THREADS`, or one for each core]
        datastore (auto|FOLDER|NAME): A folder made by `specds build`, or `org/name` on the hub;
            `.` for the files of the git checkout here; `none` for none; `auto` for the one that the
            model names, else the default datastore.
        memory (FOLDER|URL): Store of the request cache, which is read at the start and saved each
            minute and at the end.
        slot_memory (BYTES): Most memory of the keys and values of finished requests.
            [default: a quarter of what is available]
        slots_file (FILE): File that keeps these over a restart.
        share_prefixes: Continue from the keys and values of other tenants, too.
        spell_control_tokens: Read a text such as `<|im_end|>` in a message as text; by default it
            is the control token.

    Examples:
        specds serve smollm2
        specds serve model.gguf --port 0 --memory requests.memory --api-keys keys.txt
    """
    from specds._core import GgufFile
    from specds.hub import named_datastore
    from specds.models.gguf_model import GgufModel
    from specds.models.load import load_vocabulary
    from specds.models.needs import available_bytes
    from specds.models.packing import use_threads
    from specds.models.resolve import ModelRef
    from specds.serving.drafting import Drafting
    from specds.serving.engine import Engine
    from specds.serving.passes import PassEngine
    from specds.serving.requests import RequestReader
    from specds.serving.slots import Slots

    with advising():
        from specds.serving import app
    if api_key is not None and api_keys is not None:
        raise ValueError("--api-key and --api-keys are mutually exclusive: use one of them")
    keys = app.tenants_of(utf8(api_key)) if api_key else {}
    keys |= app.read_keys(api_keys) if api_keys is not None else {}
    if not 1 <= parallel <= _MOST_PARALLEL:
        raise ValueError(f"--parallel must be from 1 to {_MOST_PARALLEL}, got {parallel}")
    require_memory(memory)
    ref = ModelRef.resolve(model)
    use_threads(threads)
    with ExitStack() as ending:
        # An address that is taken is an error before the model is loaded.
        sock = ending.enter_context(app.listen(host, port))
        # So are a datastore and a request cache of another tokenizer; the default datastore is
        # opened while the weights are read.
        vocabulary = load_vocabulary(ref)
        named = named_datastore(model) if datastore == "auto" else datastore
        opened = None if named in (None, "none") else open_datastore(str(named), vocabulary)
        drafting = Drafting(vocabulary, opened, memory, takes_default=named is None)
        ending.callback(drafting.save)
        loaded, tokenizer = _loaded(ref, activations, context)
        if isinstance(loaded, GgufModel):
            most = (available_bytes() or 4 << 30) // 4 if slot_memory is None else slot_memory
            slots = Slots(
                loaded,
                parallel + _MOST_KEPT,
                most,
                is_shared=share_prefixes,
                deleted_at=drafting.deleted_at,
            )
            if slots_file is not None:
                if not loaded.weights.takes_trees:
                    raise ValueError("--slots-file is not for models with recurrent states")
                about = f"{loaded.name_or_path} {activations} {loaded.weights.num_bytes}"
                if slots_file.exists():
                    slots.load(slots_file, about)
                ending.callback(slots.save, slots_file, about)
            engine: Engine = PassEngine(loaded, drafting.drafter, slots, parallel=parallel)
        else:
            from specds.transformers.serial_engine import SerialEngine

            engine = SerialEngine(loaded)
        ending.callback(engine.close)
        file = GgufFile(ref.path) if ref.kind == "gguf" else None
        reader = RequestReader(loaded, tokenizer, file, spells_control_tokens=spell_control_tokens)
        name = alias or Path(model).stem
        address = f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}"

        def announce() -> None:
            terminal.out.print(f"{name} is served at {address}/v1", soft_wrap=True)

        served = app.ServedModel(name, loaded, tokenizer, drafting, engine, reader, keys, announce)
        app.run(served, sock)


def _loaded(ref: Any, activations: str, context: int | None) -> tuple[Any, Any]:
    """Load a model by the core, or else by transformers."""
    from specds.models.gguf_model import GgufModel
    from specds.models.load import load_model
    from specds.models.resolve import OF_DEMO

    settings: dict[str, Any] = {"device": "auto"}
    if ref.kind == "gguf" or ref.name in OF_DEMO:
        settings = {"device": "cpu", "activations": activations, "context_length": context}
    model, tokenizer = load_model(ref, framework="numpy", **settings)
    if isinstance(model, GgufModel):
        return model, tokenizer
    from specds.transformers.serial_engine import TransformersModel

    return TransformersModel(model), tokenizer
