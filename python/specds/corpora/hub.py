"""Datasets on the Hugging Face hub, whose files are read as streams."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Any

from specds._lazy import imported
from specds.corpora.document import Corpus, CorpusError, CorpusOptions, Item
from specds.corpora.files import DataFile, kind
from specds.corpora.rendering import Render
from specds.hub.client import api, brief, connection_errors, describe, explained, hub
from specds.hub.names import HubName

_BLOCK = 1 << 20  # bytes


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the hub, and the default options for its rows.

    Attributes:
        by_language: Whether the dataset has a folder for each programming language.
    """

    path: str
    split: str = "train"
    text_field: str | None = None
    messages_field: str | None = None
    by_language: bool = False


_STACK = HubDataset("bigcode/the-stack-dedup", text_field="content", by_language=True)
NAMED = {
    "ultrachat": HubDataset("stingning/ultrachat", messages_field="data"),
    "ultrachat-200k": HubDataset(
        "HuggingFaceH4/ultrachat_200k", split="train_sft", messages_field="messages"
    ),
    "sharegpt": HubDataset("Aeala/ShareGPT_Vicuna_unfiltered", messages_field="conversations"),
    "the-stack": _STACK,
}
"""The datasets that have a name of their own: those of the papers' corpora."""

BY_LANGUAGE = {_STACK.path: _STACK, "bigcode/the-stack": replace(_STACK, path="bigcode/the-stack")}
"""Datasets that have a folder for each language, by their ids."""


@dataclass(frozen=True)
class HubFile(DataFile):
    """One file of rows of a dataset; `url` is ``hf://datasets/org/name@commit/path``.

    `load_dataset` would fail at the first bad row, and hold a list of rows in memory.
    """

    url: str

    @property
    def state(self) -> str:
        return f"{self.url} {self.num_bytes}"

    def open(self) -> BufferedReader:
        return BufferedReader(hub().HfFileSystem().open(self.url, "rb"), _BLOCK)

    def __iter__(self) -> Iterator[Item]:
        try:
            yield from super().__iter__()
        except connection_errors() as error:  # the client has tried again, for a minute or so
            raise CorpusError(
                f"the hub stopped sending {self.path} ({brief(error)}): check the network, then "
                "start again"
            ) from error


def hub_corpus(spec: str, dataset: HubDataset, options: CorpusOptions, render: Render) -> Corpus:
    """Open the dataset that `spec` names; its files are read later."""
    if dataset.by_language and options.language is None:
        raise CorpusError(f"`{spec}` is split by language: choose one with --language")
    options = replace(options, split=options.split or dataset.split)
    if options.text_field is None and options.messages_field is None:
        options = replace(
            options, text_field=dataset.text_field, messages_field=dataset.messages_field
        )
    name = HubName(dataset.path, options.revision or "main")
    imported("datasets")
    try:
        with explained(name, not_here=True):
            commit, sizes = describe(name)
            api().auth_check(dataset.path, repo_type="dataset")
            builder = _builder(spec, replace(name, revision=commit), options)
    except OSError as error:
        raise CorpusError(str(error)) from error
    origin = f"hf://datasets/{dataset.path}@{commit}/"
    paths = [url.removeprefix(origin) for url in _urls(builder, spec, str(options.split))]
    for path in paths:
        if kind(path) == "text":
            raise CorpusError(
                f"`{spec}` holds files such as `{path}`, not rows of Parquet, Arrow, CSV or JSON: "
                "try --revision refs/convert/parquet, or download them"
            )
    files = []
    for path in paths:
        place = f"{dataset.path}/{path}"
        files.append(HubFile(Path(place), options, render, place, sizes[path], origin + path))
    at = f"{dataset.path}@{commit[:12]}"
    at = at if spec == dataset.path else f"{spec} ({at})"
    return Corpus(at + replace(options, revision=None).describe(), tuple(files))


def _builder(spec: str, name: HubName, options: CorpusOptions) -> Any:
    language = options.language
    try:
        return imported("datasets").load_dataset_builder(
            name.repository,
            options.config,
            data_dir=language and f"data/{language.lower()}",
            revision=name.revision,
        )
    except FileNotFoundError as error:
        of = f" for the language `{language}`" if language else ""
        raise CorpusError(f"`{spec}` has no data files{of}: see {name.page}") from error
    except RuntimeError as error:
        raise CorpusError(
            f"`{spec}` is made by a script, which `datasets` no longer runs: try --revision "
            f"refs/convert/parquet, or download its files ({brief(error)})"
        ) from error
    except ValueError as error:
        raise CorpusError(f"cannot open `{spec}`: {brief(error)} (--config chooses)") from error


def _urls(builder: Any, spec: str, split: str) -> list[str]:
    files = {str(name): list(urls) for name, urls in (builder.config.data_files or {}).items()}
    if split not in files:
        known = ", ".join(f"`{name}`" for name in files)
        raise CorpusError(f"`{spec}` has no split `{split}`: choose one by --split: {known}")
    return files[split]
