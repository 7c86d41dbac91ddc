"""Datasets of the Hugging Face hub, read as they stream in."""

from __future__ import annotations

import io
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from specds._lazy import imported
from specds.corpora.document import Corpus, CorpusError, Document, corpus_of
from specds.corpora.files import json_documents, kind, readable
from specds.corpora.rows import RowReader
from specds.hub.client import (
    LOG_IN,
    UNAUTHORISED,
    brief,
    connection_errors,
    hub,
    require_hub,
    status_of,
    unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from specds.corpora.document import CorpusOptions, Item, Part
    from specds.corpora.rows import Render, Row

_ROWS_A_BATCH = 256
_TRIES = 5
_FIRST_WAIT_S = 2.0

_TOO_MANY_REQUESTS = 429

T = TypeVar("T")


@dataclass(frozen=True)
class HubDataset:
    """A dataset of the hub, and how its rows are read unless the options say otherwise.

    Attributes:
        path: Its id: ``org/name``.
        split: The split to read.
        text_field: The field of a row that holds its text; found by itself where None.
        messages_field: The field of a row that holds a conversation; found by itself where None.
        by_language: Whether there is a folder for each programming language.
    """

    path: str
    split: str = "train"
    text_field: str | None = None
    messages_field: str | None = None
    by_language: bool = False


NAMED = {
    "ultrachat": HubDataset("stingning/ultrachat", messages_field="data"),
    "ultrachat-200k": HubDataset(
        "HuggingFaceH4/ultrachat_200k", split="train_sft", messages_field="messages"
    ),
    "sharegpt": HubDataset("Aeala/ShareGPT_Vicuna_unfiltered", messages_field="conversations"),
    "the-stack": HubDataset("bigcode/the-stack-dedup", text_field="content", by_language=True),
}
"""The datasets that have a name of their own: those of the papers' corpora."""

BY_LANGUAGE = {
    path: HubDataset(path, text_field="content", by_language=True)
    for path in ("bigcode/the-stack", "bigcode/the-stack-dedup")
}
"""Datasets that have a folder for each language, by their ids."""


@dataclass(frozen=True)
class HubShard:
    """One shard of a dataset, in any format that `datasets` can stream.

    Attributes:
        name: What documents and errors call it.
        arguments: Of `datasets.load_dataset`.
        index: Which of the shards.
        num_shards: How many there are.
        options: What to read of a row.
        render: Turns a conversation into text.
    """

    name: str
    arguments: dict[str, Any]
    index: int
    num_shards: int
    options: CorpusOptions
    render: Render

    @property
    def num_bytes(self) -> None:
        """Unknown before it is read."""
        return

    @property
    def state(self) -> str:
        """The dataset at its commit, and which shard of it."""
        return f"{self.arguments} {self.index} {self.num_shards}"

    def __iter__(self) -> Iterator[Item]:
        return _resumed(self._items, self.name)

    def _items(self) -> Iterator[Item]:
        dataset = imported("datasets").load_dataset(**self.arguments, streaming=True)
        dataset = dataset.shard(self.num_shards, self.index)
        reader = RowReader(self.name, f"{self.name}: row ", self.options, self.render)
        names = dataset.column_names or []
        if names:
            dataset = dataset.select_columns(reader.columns(names))
        for item in reader.documents(_rows(dataset), names):
            # The size in the hub's own account of a dataset is the one of its content, unpacked.
            if isinstance(item, Document):
                yield replace(item, num_bytes=len(item.text.encode()))
            else:
                yield item


@dataclass(frozen=True)
class HubJson:
    """One file of JSON rows of a dataset.

    Not read by `load_dataset`, which gives up a file at its first bad row, cannot tell where that
    is, and holds a list of rows in memory as a whole.

    Attributes:
        url: ``hf://datasets/org/name@commit/path``.
        name: What documents and errors call it.
        num_bytes: The size of the file.
        options: What to read of a row.
        render: Turns a conversation into text.
    """

    url: str
    name: str
    num_bytes: int
    options: CorpusOptions
    render: Render

    @property
    def state(self) -> str:
        """The file at its commit, and its size."""
        return f"{self.url} {self.num_bytes}"

    def __iter__(self) -> Iterator[Item]:
        return _resumed(self._items, self.name)

    def _items(self) -> Iterator[Item]:
        with readable(self.name), _file_system().open(self.url, "rb") as raw:
            file = io.BufferedReader(raw, 1 << 20)
            yield from json_documents(file, self.name, self.name, self.options, self.render)


def hub_corpus(spec: str, dataset: HubDataset, options: CorpusOptions, render: Render) -> Corpus:
    """Opens a dataset of the hub: learns its files, and reads none of them.

    `spec` is what the user calls it.

    Raises:
        CorpusError: It is not there, it is gated, or it has no such configuration or split.
        ImportError: `datasets` is not installed.
    """
    if dataset.by_language and options.language is None:
        raise CorpusError(f"`{spec}` is read by language: choose one by --lang, as --lang python")
    options = _with_defaults(options, dataset)
    datasets = imported("datasets")
    arguments = {
        "path": dataset.path,
        "name": options.config,
        "data_dir": options.language and f"data/{options.language.lower()}",
        "revision": options.revision,
    }
    with _explained(spec, dataset, options):
        require_hub(hub().dataset_info, dataset.path)
        builder = datasets.load_dataset_builder(**arguments)
        urls = _urls(builder, spec, str(options.split))
        commit = re.search(r"@([0-9a-f]{40})/", urls[0]) if urls else None
        arguments |= {"split": options.split, "revision": commit[1] if commit else options.revision}
        if urls and all(kind(url) in ("lines", "json") for url in urls):
            parts = _json_files(urls, options, render)
        else:
            parts = _shards(urls, arguments, options, render)
    origin = f"{dataset.path}@{commit[1][:12]}" if commit else dataset.path
    name = origin if spec == dataset.path else f"{spec} ({origin})"
    corpus = corpus_of(name + replace(options, revision=None).describe(), parts)
    account = (builder.info.splits or {}).get(options.split)
    if corpus.num_bytes is None and account and account.num_bytes:
        return replace(corpus, num_bytes=account.num_bytes)
    return corpus


def _with_defaults(options: CorpusOptions, dataset: HubDataset) -> CorpusOptions:
    options = replace(options, split=options.split or dataset.split)
    if options.text_field is not None or options.messages_field is not None:
        return options
    return replace(options, text_field=dataset.text_field, messages_field=dataset.messages_field)


def _urls(builder: Any, spec: str, split: str) -> list[str]:
    """The data files of a split."""
    files = {str(name): list(urls) for name, urls in (builder.config.data_files or {}).items()}
    if files and split not in files:
        known = ", ".join(f"`{name}`" for name in files)
        raise CorpusError(f"`{spec}` has no split `{split}`: choose one by --split: {known}")
    return files.get(split, [])


def _json_files(urls: list[str], options: CorpusOptions, render: Render) -> list[Part]:
    files = _file_system()
    return [HubJson(url, _file_name(url), files.info(url)["size"], options, render) for url in urls]


def _shards(
    urls: list[str], arguments: dict[str, Any], options: CorpusOptions, render: Render
) -> list[Part]:
    total = imported("datasets").load_dataset(**arguments, streaming=True).num_shards
    if len(urls) == total:
        names = [_file_name(url) for url in urls]
    else:
        names = [f"{arguments['path']}/{options.split}-{index}" for index in range(total)]
    return [
        HubShard(name, arguments, index, total, options, render) for index, name in enumerate(names)
    ]


def _file_name(url: str) -> str:
    """``org/name/a/b.jsonl`` of ``hf://datasets/org/name@commit/a/b.jsonl``."""
    return re.sub(r"@[^/]+", "", url.removeprefix("hf://datasets/"), count=1)


def _file_system() -> Any:
    return hub().HfFileSystem()


def _rows(dataset: Any) -> Iterator[Row]:
    number = 0
    for table in dataset.with_format("arrow").iter(batch_size=_ROWS_A_BATCH):
        for row in table.to_pylist():
            number += 1
            yield number, row, 0


def _resumed(read: Callable[[], Iterable[T]], name: str) -> Iterator[T]:
    """Reads on where a connection broke, and breaks off where it breaks again and again.

    The client tries again by itself, for a minute or so; this is for when it gives up.

    Raises:
        CorpusError: The connection broke too often without anything being read.
    """
    num_read = failures = 0
    while True:
        try:
            for item in islice(read(), num_read, None):
                yield item
                num_read += 1
                failures = 0
            return
        except connection_errors() as error:
            failures += 1
            if failures == _TRIES or _is_refusal(error):
                raise CorpusError(
                    f"the hub stopped sending {name} after {num_read} rows ({error}): "
                    "check the network, then start again"
                ) from error
            time.sleep(_FIRST_WAIT_S * 2 ** (failures - 1))


def _is_refusal(error: Exception) -> bool:
    """Whether the hub has answered that asking again is of no use."""
    status = status_of(error)
    return status is not None and 400 <= status < 500 and status != _TOO_MANY_REQUESTS


@contextmanager
def _explained(spec: str, dataset: HubDataset, options: CorpusOptions) -> Iterator[None]:
    """Turns the errors of opening a dataset into what can be done about them."""
    known: tuple[type[Exception], ...] = (*connection_errors(), RuntimeError, ValueError)
    try:
        yield
    except CorpusError:
        raise
    except known as error:
        raise CorpusError(_explanation(error, spec, dataset, options)) from error


def _explanation(error: Exception, spec: str, dataset: HubDataset, options: CorpusOptions) -> str:
    said = brief(error)
    if isinstance(error, imported("datasets.exceptions").DatasetNotFoundError):
        return _not_found(said, spec, dataset, options)
    if status_of(error) in UNAUTHORISED:
        return f"the hub refuses your token for `{spec}`: {LOG_IN}"
    # `datasets` tells of a file that it cannot get as of one that is not there.
    if isinstance(error, FileNotFoundError) and "LocalEntryNotFound" not in said:
        language = f" for the language `{options.language}`" if options.language else ""
        return f"`{spec}` has no data files{language}: see {_page(dataset)}"
    if isinstance(error, connection_errors()):
        return unreachable(spec, error)
    if isinstance(error, RuntimeError):
        return (
            f"`{spec}` is made by a script, which `datasets` no longer runs: try --revision "
            f"refs/convert/parquet, or download its files ({said})"
        )
    return f"cannot open `{spec}`: {said} (--config chooses)"


def _not_found(said: str, spec: str, dataset: HubDataset, options: CorpusOptions) -> str:
    if "gated" in said:
        return f"`{spec}` is gated: accept its terms at {_page(dataset)}, then {LOG_IN}"
    if "Revision" in said:
        return f"`{spec}` has no revision `{options.revision}`: see {_page(dataset)}"
    return f"no dataset `{dataset.path}` on the hub, nor such a file here; if private, {LOG_IN}"


def _page(dataset: HubDataset) -> str:
    return f"https://huggingface.co/datasets/{dataset.path}"
