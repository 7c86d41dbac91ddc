"""Sparse attention, which selects a few keys for each query, in checks over short prompts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_FEW = (16, 8)
SPARSE_PROMPT = 64
"""A prompt of this many tokens has more keys than a check selects."""


def _indexers(model: Any) -> list[Any]:
    return [part for part in model.modules() if isinstance(getattr(part, "index_topk", None), int)]


def selections(model: Any) -> tuple[int, ...]:
    """Return the numbers of keys with which to check a model; none without sparse attention.

    Two numbers, because ties of few heads are broken alike by chance.
    """
    return _FEW if _indexers(model) else ()


@contextmanager
def selecting(model: Any, number: int) -> Iterator[None]:
    """Select `number` keys for each query.

    Released models select thousands, more than the prompt of a check has.
    """
    before = [(part, part.index_topk) for part in _indexers(model)]
    try:
        for part, _ in before:
            part.index_topk = number
        yield
    finally:
        for part, released in before:
            part.index_topk = released
