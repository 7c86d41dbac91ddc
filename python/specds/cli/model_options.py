"""Model, drafter and output options of `generate` and `chat`."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from specds import terminal
from specds._core import without_credentials
from specds.cli import arguments, display
from specds.cli.arguments import MaxNodes
from specds.cli.stream_output import Interrupt, Writer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specds._core import Datastore
    from specds.drafters import Drafter
    from specds.generation.stats import GenerationStats
    from specds.generation.target import Target
    from specds.models.resolve import ModelRef


DrafterOption = Annotated[
    Any,
    typer.Option(
        parser=arguments.drafter,
        metavar="NAME[:OPTION=VALUE]",
        rich_help_panel="Drafting",
        help="`fused`: datastore, the request's own text, earlier requests in `--memory`, the "
        "model's own predictions; `rest`: datastore alone; `aded`: tri-grams that adapt to the "
        "text; `prompt-lookup`: the request's own text alone; `n-grammys`: that and the model's "
        "bigrams; `hierarchy:MODEL,...`: models with the same tokenizer that draft for each "
        "other, the smallest first. Options follow a colon: `fused:effort=low`; an error lists "
        "them.",
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="TEXT",
        rich_help_panel="Sampling",
        help="Stop string; repeat the option for several.",
    ),
]
NewTokens = Annotated[
    int, typer.Option(metavar="TOKENS", min=1, max=1_000_000, help="Maximum number of new tokens.")
]


@dataclass(frozen=True, kw_only=True)
class Running:
    """Options of `generate` and `chat`.

    Attributes:
        model: A name on the hub, a local folder, a GGUF file, `smollm2` or `demo`.
        datastore (FOLDER|NAME): A folder made by `specds build`, or `org/name` on the hub; `.` for
            the files of the git checkout here; `none` for none.
            [default: the one that the model's folder names, else `specds.default_datastore`]
        memory (FOLDER|URL): Earlier requests to draft from; this request is added to them.
        tenant: Tenant of this request in `--memory`.
        model_tables: Also draft from the model's own bigrams; useful without a datastore.
        verification: `native`: in Rust, on a CPU; `packed`: all sequences as one packed batch, with
            our attention; `model`: the model's own forward pass; `auto`: the first that supports
            the model, with `native` on a CPU alone and `packed` on a CPU or an H100.
        activations: Activations of a GGUF file on a CPU: `int8` rounds as llama.cpp does, `float32`
            is slower and writes what transformers writes. [default: `int8`]
        context (TOKENS): Most tokens of a text, prompt included, of a GGUF file on a CPU.
            [default: the file's own]
        cache_type: Precision of keys and values of a GGUF file on a CPU; `float16` takes half the
            memory. [default: `float16`, or `float32` with `--activations float32`]
        threads: Threads of a forward pass on a CPU. [default: `OMP_NUM_THREADS`, or one for each
            core]
        temperature: Sampling temperature; 0 is greedy. The default of this and the next options is
            the model's generation config.
        top_k (TOKENS): Sample from the k likeliest tokens; 0 is off.
        top_p: Sample from the likeliest tokens that together have this probability; 1 is off.
        min_p: Sample from tokens with at least this fraction of the top-1 token's probability.
        repetition_penalty: Values above 1 make earlier tokens less likely.
        json_schema (FILE|TEXT): Generate JSON that matches this schema.
        regex (TEXT): Generate a text that matches this regular expression.
        seed: Seed of the random generator.
        by_source: Color tokens by the source that drafted them.
        device: `auto`, `cpu`, `cuda`, ...
        dtype: `auto`, `float32`, `bf16`, ...
    """

    model: str
    datastore: Path | None = None
    drafter: DrafterOption = "fused"
    memory: str | None = None
    tenant: str = ""
    model_tables: bool = False
    max_nodes: MaxNodes = "auto"
    verification: Literal["auto", "native", "packed", "model"] = "auto"
    activations: Literal["float32", "int8"] | None = None
    context: int | None = None
    cache_type: Literal["float32", "float16"] | None = None
    threads: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop: StopOption = None
    json_schema: str | None = None
    regex: str | None = None
    seed: int = 0
    by_source: bool = False
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.temperature is not None and not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {value}")
        if self.repetition_penalty is not None and not self.repetition_penalty > 0:
            raise ValueError(f"repetition_penalty must be above 0, got {self.repetition_penalty}")

    def with_datastore(self) -> "Running":
        """Return the options, by default with the datastore that the model's folder names."""
        from specds.hub import named_datastore

        if self.datastore is not None:
            return replace(self, datastore=None) if str(self.datastore) == "none" else self
        named = named_datastore(self.model)
        if named is None or not getattr(self.drafter, "takes_datastore", True):
            return self
        terminal.note(f"drafting from `{named}`, which {self.model} names")
        return replace(self, datastore=Path(named))

    @property
    def drafts_from(self) -> str:
        memory = self.memory and without_credentials(self.memory)
        files = [str(file) for file in (self.datastore, memory) if file is not None]
        return f"drafted by {self.drafter.value}" + f" from {' and '.join(files)}" * bool(files)

    def settings(self, interrupt: Interrupt) -> dict[str, Any]:
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        chosen = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.temperature is not None:
            chosen["do_sample"] = self.temperature > 0
        if self.temperature == 0:
            del chosen["temperature"]
        return {
            "max_nodes": self.max_nodes,
            "verification": self.verification,
            "stopping_criteria": [interrupt],
            "on_prefill": interrupt.on_prefill,
            **({"stop_strings": [*self.stop]} if self.stop else {}),
            **chosen,
        }


@dataclass(frozen=True)
class Opened:
    """A loaded model, its drafter, and the writer of its text to the terminal."""

    running: Running
    model: Any
    target: "Target"
    tokenizer: Any
    drafter: "Drafter"
    writer: Writer
    grammar: Any = None

    def report(self, stats: "GenerationStats", *, verbose: bool) -> None:
        from specds.indexing.checkout import is_checkout

        terminal.err.print(self.writer.summary(stats), soft_wrap=True)
        drafts = self.running.max_nodes != 0 and stats.num_drafts > 0
        if drafts and not self.writer.sources and self.running.datastore is None:
            here = "pass `--datastore .` to draft from this checkout" if is_checkout(Path()) else ""
            other = "build a datastore of texts like this one"
            terminal.note(f"no draft was accepted: {here or other}")
        if verbose:
            terminal.err.print(display.two_columns("Drafting", display.drafting_rows(stats)))


def require(running: Running) -> "list[ModelRef]":
    """Resolve all models, and reject options that do not fit, before torch is imported."""
    from specds.constraints.of_llguidance import grammar_source
    from specds.drafters import require_inputs
    from specds.models.resolve import ModelRef, require_placement

    memory = running.memory
    require_inputs(
        running.drafter,
        datastore=running.datastore is not None,
        memory=memory is not None,
        model_tables=running.model_tables,
        model=True,
    )
    if running.tenant and memory is None:
        raise ValueError("--tenant requires --memory")
    require_memory(memory)
    require_placement(running.device, running.dtype)
    grammar_source(running.json_schema, running.regex)
    return [ModelRef.resolve(name) for name in (running.model, *running.drafter.models)]


def require_memory(memory: str | None) -> None:
    """Reject a folder of requests that is another folder, or in no folder."""
    from specds.corpora.request_cache import is_request_cache

    if memory is None or "://" in memory:
        return
    path = Path(memory.removesuffix("/{tenant}"))
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path.parent}: no such folder: make it, or keep the memory elsewhere")
    is_empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not (is_empty or is_request_cache(memory)):
        raise ValueError(f"{path} is not a memory of specds: name another folder with --memory")


def open_datastore(name: Path | str, tokenizer: Any) -> "Datastore":
    """Open a datastore, or refresh that of a git checkout, with a progress bar if it takes long."""
    from specds._core import Datastore
    from specds.indexing.checkout import checkout_datastore, is_checkout
    from specds.terminal.progress import build_progress

    if not is_checkout(Path(name)):
        return Datastore(name)
    with build_progress(after_s=2.0) as shown:
        return checkout_datastore(Path(name), tokenizer, shown)


@contextmanager
def opened(running: Running, *, is_silent: bool = False, is_chat: bool = False) -> Iterator[Opened]:
    """Load the model and make its drafter; at the end, write the memory."""
    is_open = running.datastore is None
    running = running.with_datastore()
    takes_default = is_open and running.datastore is None
    ref, *drafting = require(running)
    from specds.drafters import DrafterInputs, FusedDrafter, make_drafter
    from specds.generation.default_source import with_datastore
    from specds.generation.target import target_of
    from specds.indexing.default import DefaultDatastore
    from specds.models.gguf_model import GgufModel
    from specds.models.load import Framework, load_model, load_vocabulary, one_thread_for
    from specds.models.packing import use_threads
    from specds.models.tokenization import check_tokenizer, require_chat_template
    from specds.terminal.progress import build_progress, loading

    use_threads(running.threads)
    # Errors of the tokenizer and the datastore are raised before the weights are read.
    vocabulary = load_vocabulary(ref)
    datastore = None
    if running.datastore is not None:
        datastore = open_datastore(running.datastore, vocabulary)
    if is_chat:
        require_chat_template(vocabulary)
    if datastore is not None:
        check_tokenizer(datastore, vocabulary)
    default = DefaultDatastore(None, vocabulary)
    if takes_default:  # it is looked up while the model is loaded
        default.get()

    def make(model: "PreTrainedModel | None") -> "Drafter":
        with build_progress(after_s=2.0) as progress:
            inputs = DrafterInputs(
                datastore,
                model,
                progress=progress,
                tokenizer=vocabulary,
                memory=running.memory,
                model_tables=running.model_tables,
            )
            return make_drafter(name, inputs)

    name = replace(running.drafter, models=tuple(drafting))
    needs_model = name.needs_model or name.models or running.model_tables
    made = None if needs_model else make(None)
    # The core needs no torch, which takes seconds to import.
    by_torch = find_spec("torch") is not None and (needs_model or ref.kind != "gguf")
    framework: Framework = "transformers" if by_torch else "numpy"
    # A download has bars of its own.
    with nullcontext() if ref.kind == "hub" else loading(str(running.model)) as progress:
        model, tokenizer = load_model(
            ref,
            device=running.device,
            dtype=running.dtype,
            tokenizer=vocabulary,
            activations=running.activations,
            framework=framework,
            context_length=running.context,
            cache_type=running.cache_type,
            progress=progress,
        )
    target = target_of(model)
    if not isinstance(model, GgufModel):
        one_thread_for(running.model)
    target.seed(running.seed)
    made = make(model) if made is None else made
    if takes_default and isinstance(made, FusedDrafter):
        made = with_datastore(made, default.get())
    wraps = is_chat and terminal.out.is_terminal
    writer = Writer(tokenizer, by_source=running.by_source, is_silent=is_silent, wraps=wraps)
    of_tenant = made.for_request(running.tenant) if isinstance(made, FusedDrafter) else made
    try:
        grammar = _grammar(running, target, tokenizer)
        yield Opened(running, model, target, tokenizer, of_tenant, writer, grammar)
    finally:
        if running.memory is not None and isinstance(made, FusedDrafter):
            made.save(running.memory)


def _grammar(running: Running, target: "Target", tokenizer: Any) -> Any:
    from specds.constraints.of_llguidance import grammar_source, matcher_of

    source = grammar_source(running.json_schema, running.regex)
    if source is None:
        return None
    eos = target.settings.get("eos_token_id")
    eos = tokenizer.eos_token_id if eos is None else eos
    return matcher_of(source, tokenizer, target.vocab_size, [eos] if isinstance(eos, int) else eos)
