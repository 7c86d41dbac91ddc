"""Commands that report on this machine: check, list; and the environment for bug reports."""

import os
import platform
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from specds import terminal
from specds._core import Datastore, GgufFile, UnsupportedFileError, memory_bandwidth
from specds.cli import display
from specds.cli.arguments import Json
from specds.models.cache_folder import cache_folder
from specds.models.packing import source_of

_PACKAGES = ("torch", "transformers", "tokenizers", "triton", "gguf", "ray", "vllm", "sglang")
_MAX_DEPTH = 3


def check(
    model: str,
    /,
    *,
    context: int | None = None,
    threads: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    as_json: Json = False,
) -> None:
    """Check whether a model can be accelerated, and by which verification method.

    Of a GGUF file that the core computes, only the header is read, and the memory bandwidth is
    measured: the tokens a second are an estimate without drafts, and rarely exceeded. Other models
    are loaded and run over a small tree of tokens. The exit code is 1 if drafts cannot be verified
    on the model.

    Args:
        model (MODEL): A name on the hub, a local folder, a GGUF file, `smollm2` or `demo`.
        context (TOKENS): Also say what a GGUF file needs for this many tokens.
            [default: 8,192, if it is less than the file's context]
        threads: Threads of a forward pass on a CPU. [default: `OMP_NUM_THREADS`, or one for each
            core]
        device: `auto`, `cpu`, `cuda`, ...
        dtype: `auto`, `float32`, `bf16`, ...

    Examples:
        specds check Qwen/Qwen2.5-1.5B-Instruct
        specds check model.gguf --context 32k
    """
    from specds.models.load import load_model
    from specds.models.packing import use_threads
    from specds.models.resolve import ModelRef, require_placement

    use_threads(threads)
    require_placement(device, dtype)
    ref = ModelRef.resolve(model)
    if context is not None and (ref.kind != "gguf" or context < 1):
        raise ValueError("--context is a number of tokens of a GGUF file")
    if ref.kind == "gguf" and (found := _needs(ref.path, context, device, dtype)):
        terminal.print_json(found) if as_json else display.show_needs(model, found)
        return
    with terminal.waiting(f"loading {model}"):
        loaded, tokenizer = load_model(ref, device=device, dtype=dtype)
    facts = {**_model_facts(loaded), "chat_template": bool(tokenizer.chat_template)}
    display.show(f"Model {model}", facts, as_json=as_json)
    if not facts["accelerated"]:
        raise typer.Exit(1)


def _needs(path: str, context: int | None, device: str, dtype: str) -> dict[str, Any] | None:
    """Return what the header of a GGUF file says; None if the core does not compute the file."""
    from specds.models.gguf import chat_template_of, field
    from specds.models.gguf_tokenizer import UnknownTokenizerError, build_backend
    from specds.models.needs import USUAL_CONTEXT, Needs, available_bytes
    from specds.models.packing import default_threads
    from specds.models.resolve import may_have_gpu, whole_dtype

    is_gpu = device not in ("auto", "cpu") or (device == "auto" and may_have_gpu())
    if is_gpu or whole_dtype(dtype) not in ("auto", "float32"):
        return None
    file = GgufFile(path)
    architecture = str(field(file, "general.architecture"))
    asked = context or USUAL_CONTEXT
    try:
        needs = Needs.of(file, asked)
        build_backend(file, path)
    except (UnsupportedFileError, UnknownTokenizerError):
        return None
    if context is None:
        asked = min(asked, needs.context_length)
    available, bandwidth = available_bytes(), memory_bandwidth(default_threads())
    tokens = field(file, "tokenizer.ggml.tokens")
    facts = {
        "accelerated": True,
        "reason": "",
        "verification": "native",
        "slower_because": "",
        "architecture": architecture,
        "types": needs.shares,
        "num_parameters": file.num_weights,
        "num_bytes": needs.weight_bytes,
        "num_layers": field(file, f"{architecture}.block_count", 0),
        "max_context": needs.context_length,
        "vocab_size": len(tokens),
        "device": "cpu",
        "dtype": "float32",
        "instructions": needs.instructions,
        "threads": default_threads(),
        "chat_template": chat_template_of(file) is not None,
        "available_bytes": available,
        "bandwidth_bytes_per_s": bandwidth,
    }
    facts["contexts"] = [
        {
            "context": number,
            "weight_bytes": needs.weight_bytes,
            "cache_bytes": needs.cache_bytes[number],
            "fits": None if available is None else needs.fits(number, available),
            "estimated_tokens_per_s": needs.tokens_per_s(bandwidth, number),
        }
        for number in sorted({asked, needs.context_length})
    ]
    facts["estimated_tokens_per_s"] = needs.tokens_per_s(bandwidth)
    return facts


def _model_facts(model: Any) -> dict[str, Any]:
    import torch

    from specds.generation.runner import UnsupportedModelError
    from specds.models.tokenization import model_vocab_size
    from specds.transformers.verify.fused_forward import unfused_reason
    from specds.transformers.verify.packed import PackedRunner
    from specds.transformers.verify.support import require_support

    name = slow = refused = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the table has it
            runner, slow = require_support(model, verification="auto")
        name, is_fused = runner.name, issubclass(runner, PackedRunner) and runner.has_kernel(model)
        if is_fused and (why := unfused_reason(model)):
            slow = f"no fused forward: {why}"
    except UnsupportedModelError as error:
        refused = str(error)
    config = model.config.get_text_config(decoder=True)
    return {
        "accelerated": not refused,
        "reason": refused,
        "verification": name,
        "slower_because": slow,
        "architecture": type(model).__name__,
        "num_parameters": model.num_parameters(),
        "num_bytes": model.get_memory_footprint(),
        "num_layers": getattr(config, "num_hidden_layers", 0),
        "max_context": getattr(config, "max_position_embeddings", None) or 0,
        "vocab_size": model_vocab_size(model),
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }


def environment() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    from specds._core import has_linear_product

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": str(cores),
        "fast products on a CPU": "yes" if has_linear_product() else "no",
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if "torch" in found:
        import torch

        found["threads of torch"] = str(torch.get_num_threads())
        devices = range(torch.cuda.device_count())
        found["gpus"] = ", ".join(map(torch.cuda.get_device_name, devices)) or "none"
    return found


def list_files(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER]...", help="Where to look; default: the current folder."),
    ] = None,
    *,
    clean: bool = False,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Delete this cached file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List datastores, memories and cached files, with their sizes.

    Packed weights are listed with the GGUF file that they were made from.

    Looks three folders deep, in the hub's cache and in the cache of specds. An unfinished build
    resumes when its command is repeated; if no command is writing it, it may be deleted.

    Args:
        clean: Delete the cached files, which are computed again when they are needed.
        remove: Delete this cached file.

    Examples:
        specds list
        specds list ~/datastores --clean
        specds list --remove weights-5f0c2b1e8d3a4967-16.packed
    """
    for folder in folders or ():
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder")
    cached = [file for file in cache_folder().glob("*") if file.is_file()]
    rows = [row for folder in folders or [Path()] for row in _found_in(folder, _MAX_DEPTH)]
    rows += [row for folder in _hub_snapshots() for row in _found_in(folder, 1)]
    built = [path for path in cache_folder().glob("datastores/*.specds") if path.is_dir()]
    rows += [("cache", file, file.stat().st_size) for file in cached]
    rows += [("cache", path, _size(path)) for path in built]
    sources = {file: source_of(file) for file in cached}
    if as_json:
        named = [
            {"kind": kind, "path": str(path), "num_bytes": size, "source": sources.get(path)}
            for kind, path, size in rows
        ]
        terminal.print_json(named)
    for kind, path, num_bytes in rows if not as_json else ():
        size = terminal.quantity(num_bytes, "B")
        source = f"  of {sources[path]}" if sources.get(path) else ""
        terminal.out.print(f"{kind:16}{size:>8}  {path}{source}", soft_wrap=True)
    if not rows and not as_json:
        terminal.note("nothing found")
    names = {file.name for file in cached}
    if unknown := sorted({*(remove or ())} - names):
        raise ValueError(f"{unknown[0]}: no such cached file")
    if clean or remove:
        chosen = [file for file in cached if clean or file.name in (remove or ())]
        for file in chosen:
            file.unlink(missing_ok=True)
        removed = built if clean else []
        for path in removed:
            shutil.rmtree(path, ignore_errors=True)
        terminal.note(f"{terminal.counted(len(chosen) + len(removed), 'cached file')} deleted")


def _found_in(folder: Path, depth: int) -> Iterator[tuple[str, Path, int]]:
    """Yield the kind, the path and the size of each datastore, memory and unfinished write."""
    for path in sorted(folder.iterdir()) if os.access(folder, os.R_OK | os.X_OK) else ():
        if path.is_symlink():
            continue
        if path.is_dir() and any(path.glob("head-*")):
            yield "memory", path, _size(path)
        elif path.is_dir() and _is_datastore(path):
            yield "datastore", path, _size(path)
        elif path.is_dir() and path.name.startswith(".") and (path / "specds.lock").is_file():
            yield "unfinished build", path, _size(path)
        elif path.is_dir() and depth > 1 and not path.name.startswith("."):
            yield from _found_in(path, depth - 1)


def _is_datastore(path: Path) -> bool:
    try:
        return (path / "manifest.json").is_file() and bool(Datastore(path))
    except (OSError, ValueError):
        return False


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _hub_snapshots() -> list[Path]:
    """Return the folders of datasets' snapshots in the hub's cache."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return []
    return sorted(Path(HF_HUB_CACHE).glob("datasets--*/snapshots"))
