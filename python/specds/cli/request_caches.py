"""Commands on request caches: memory forget, memory info, memory compact."""

from collections.abc import Callable
from typing import Any

from specds._core import without_credentials
from specds.cli import display
from specds.cli.arguments import Json


def forget(memory: str, tenants: list[str], /, *, as_json: Json = False) -> None:
    """Delete tenants from a request cache, in its store and all processes that share it.

    When the command ends, the store and all below it have no data of these tenants. Other processes
    delete them at their next exchange, within their `sync_interval`. Later requests of a tenant
    start empty. A name that no store has may be mistyped, so it is an error; it is still deleted
    from processes that have not written its requests yet.

    Args:
        memory (FOLDER|URL): Request cache, written by `save`, by `--memory`, or by a server.
        tenants (TENANT...): Tenants to delete; "" for requests without a tenant.

    Example:
        specds memory forget requests.memory ann bob
    """
    from specds.drafters import Memory

    numbers = Memory.forget_in(memory, tenants)
    num_forgotten = sum(number or 0 for number in numbers)
    path = without_credentials(memory)
    report = {"path": path, "num_forgotten_texts": num_forgotten}
    display.show("Memory", report, as_json=as_json)
    missing = [name for name, number in zip(tenants, numbers, strict=True) if number is None]
    if missing:
        raise ValueError(f"{path} has nothing of {', '.join(map(repr, missing))}")


def info(memory: str, /, *, as_json: Json = False) -> None:
    """Show what a request cache has, and all below it: tokenizer, sizes, tenants, age.

    Args:
        memory (FOLDER|URL): Request cache, or a folder or prefix of several.

    Example:
        specds memory info s3://bucket/fleet
    """
    from specds.drafters import Memory

    found = _of_each("read", memory, Memory.info)
    counts = [name for name in found[0] if name.startswith("num_")]
    report = {
        "path": without_credentials(memory),
        "num_stores": len(found),
        "tokenizers": sorted({store["tokenizer"] for store in found}),
        **{name: sum(store[name] for store in found) for name in counts},
        "age_s": min(store["age_s"] for store in found),
    }
    if as_json:
        report["stores"] = found
    display.show("Memory", report, as_json=as_json)


def compact(memory: str, /, *, as_json: Json = False) -> None:
    """Join the segments of a request cache, and of all below it.

    Workers continue meanwhile. What killed workers left is removed.

    Args:
        memory (FOLDER|URL): Request cache, or a folder or prefix of several.

    Example:
        specds memory compact s3://bucket/fleet
    """
    from specds.drafters import Memory

    num_stores = len(_of_each("compact", memory, Memory.compact))
    report = {"path": without_credentials(memory), "num_stores": num_stores}
    display.show("Memory", report, as_json=as_json)


def _of_each(stage: str, memory: str, work: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Work on each request cache at a folder or URL, with a bar if that takes longer than 2 s."""
    from specds.drafters import Memory
    from specds.terminal.progress import build_progress

    stores, results = Memory.stores_at(memory), []
    with build_progress(after_s=2.0) as progress:
        for number, store in enumerate(stores):
            progress(stage, number, len(stores))
            result = work(store) or {}
            results.append({"path": without_credentials(store), **result})
        progress(stage, len(stores), len(stores))
    return results
