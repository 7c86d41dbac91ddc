"""The values of a prompt for a request with a grammar, by the tokenizer of its model."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from specds.constraints import Constraint, MatcherConstraint
from specds.constraints.constraint import Spells
from specds.constraints.values import PromptValues, TokenizerSpells
from specds.models.tokenization import local_tokenizer

_of_models: WeakKeyDictionary[Any, Spells | None] = WeakKeyDictionary()


def note_tokenizer(model: Any, tokenizer: Any) -> None:
    """Keep the tokenizer of a model for its requests."""
    with suppress(TypeError):  # a model that cannot be referred to weakly
        if _of_models.get(model) is None:
            _of_models[model] = _spells(tokenizer)


def values_of(constraint: Constraint, model: Any, prompt_ids: Any) -> PromptValues | None:
    """Return the values that a text may copy, None where no tokenizer is known.

    Args:
        constraint: What the text must match.
        model: Its tokenizer is one that was passed, or that of its files on this machine.
        prompt_ids: int64 `(1, prompt_length)`, without padding.
    """
    if not isinstance(constraint, MatcherConstraint):
        return None
    spells = constraint.spells
    if spells is None:
        with suppress(TypeError):
            if model not in _of_models:
                _of_models[model] = _spells_of_files(model)
            spells = _of_models[model]
    return None if spells is None else PromptValues(spells, prompt_ids[0].tolist())


def _spells_of_files(model: Any) -> Spells | None:
    with suppress(Exception):  # a request never fails by what it could do without
        name = str(getattr(getattr(model, "config", model), "name_or_path", "") or "")
        return _spells(local_tokenizer(name))
    return None


def _spells(tokenizer: Any) -> Spells | None:
    """Return the spelling of a tokenizer, None for an object that encodes no text."""
    with suppress(Exception):
        spells = TokenizerSpells(tokenizer)
        if spells.decode(spells.cut("value")).strip():
            return spells
    return None
