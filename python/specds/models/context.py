"""The context of models: the most tokens of a text."""

from __future__ import annotations

from typing import Any


class ContextLengthError(ValueError):
    """A prompt leaves no room for a token in the context of its model.

    Attributes:
        num_tokens: Tokens of the prompt.
        context_length: Most tokens of a text.
    """

    def __init__(self, num_tokens: int, context_length: int) -> None:
        super().__init__(
            f"the prompt of {num_tokens:,} tokens does not fit: the context of the model has "
            f"{context_length:,} tokens, and the text needs at least one more: shorten the prompt"
        )
        self.num_tokens, self.context_length = num_tokens, context_length

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.num_tokens, self.context_length)


def require_room(num_tokens: int, context_length: int) -> None:
    """Raise `ContextLengthError` for a prompt that leaves no room for a token."""
    if num_tokens >= context_length:
        raise ContextLengthError(num_tokens, context_length)


def context_length_of(model: Any) -> int | None:
    """Return the most tokens of a text, by the model's own configuration; None if unknown."""
    length = getattr(model, "context_length", None)
    if length is None and hasattr(model, "config"):
        config = model.config.get_text_config(decoder=True)
        length = getattr(config, "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else None
