"""Lazy imports of the names of a package, so that commands start quickly."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

EXTRAS = {
    "tokenizers": "tokenizers",
    "torch": "transformers",
    "jinja2": "gguf",
    "gguf": "convert",
    "accelerate": "convert",
    "transformers": "transformers",
    "datasets": "corpora",
    "huggingface_hub": "hub",
    "pyarrow": "corpora",
    "zstandard": "corpora",
    "llguidance": "grammar",
    "starlette": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
    "ray": "ray",
    "obstore": "fleet",
    "redis": "fleet",
    "specds_demo": "demo",
}
"""The extra of this package that brings another one."""


OF_PAPERS = (
    *("AdedConfig", "AdedDrafter", "HierarchyConfig", "HierarchyDrafter", "NGrammysConfig"),
    *("NGrammysDrafter", "PromptLookupDrafter", "RestConfig", "RestDrafter"),
)
"""Names of `specds.papers` that two other packages exported, and still find with a warning."""


def advice(package: str) -> str:
    """Return a message that a package is missing, with the command that installs it.

    No release is on an index, where others could take the name: the command installs a checkout.
    """
    extra = EXTRAS[package]
    target = "./packages/demo" if extra == "demo" else f"'.[{extra}]'"
    return f"{package} is not installed: in a checkout of specds, run pip install {target}"


@contextmanager
def advising() -> Iterator[None]:
    """Raise, for a package that imports in the block miss, an error that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise ImportError(advice(package)) from error


def imported(module: str) -> Any:
    """Import a module of another package; if it is missing, say how to install its extra."""
    with advising():
        return import_module(module)


def lazy(package: str, *homes: str, of_papers: Sequence[str] = ()) -> Callable[[str], Any]:
    """Return a package's `__getattr__`, which imports the names of `__all__` from our modules.

    Names `of_papers` are found in `specds.papers`, with a warning.
    """

    def find(name: str) -> Any:
        if name in sys.modules[package].__all__:
            for home in homes:
                value = getattr(imported(f"specds.{home}"), name, None)
                if value is not None:
                    setattr(sys.modules[package], name, value)
                    return value
        if name in of_papers:
            papers = imported("specds.papers")
            message = f"{name} is a name of specds.papers now: import it from there"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(papers, name)
        raise AttributeError(f"module '{package}' has no attribute {name!r}")

    return find
