"""The default datastore as a source of requests that name no drafter."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from specds._core import Datastore
from specds.drafters.fused import FusedDrafter
from specds.indexing.default import DefaultDatastore

_of_models: WeakKeyDictionary[Any, DefaultDatastore] = WeakKeyDictionary()


def with_default(drafter: Any, model: Any, tokenizer: Any = None) -> Any:
    """Return a fused drafter with the default datastore of its model, once that is built."""
    if not isinstance(drafter, FusedDrafter) or drafter.datastore is not None:
        return drafter
    try:
        source = _of_models.get(model)
        if source is None:
            source = _of_models[model] = DefaultDatastore(model, tokenizer)
    except TypeError:  # a model that cannot be referred to weakly
        return drafter
    return with_datastore(drafter, source.get())


def with_datastore(drafter: FusedDrafter, datastore: Datastore | None) -> FusedDrafter:
    """Return the drafter with a datastore too, and its request cache if the vocabulary is equal."""
    if datastore is None:
        return drafter
    memory: Any = drafter.memory
    if memory is None:
        memory = False
    elif memory.vocab_size != datastore.vocab_size:
        memory = None
    return FusedDrafter(datastore, drafter.config, memory, model_tables=drafter.model_tables)
