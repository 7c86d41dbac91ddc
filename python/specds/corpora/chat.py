"""How a conversation becomes text: roles made one, then rendered as the model will see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerBase

Messages: TypeAlias = "list[dict[str, str]]"
Render: TypeAlias = "Callable[[Messages], str]"
"""Turns messages of `role` and `content` into text; a `ValueError` makes it a bad row."""

_ROLES = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "model": "assistant",
}


def conversation(value: Any) -> Messages:
    """Reads a conversation in any of the usual shapes.

    Args:
        value: A list of objects with `role` and `content` (OpenAI; the content may be a list of
            text parts), or with `from` and `value` (ShareGPT), or a list of strings that user and
            assistant say in turn (UltraChat).

    Raises:
        ValueError: It is none of these.
    """
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"no conversation but {kind_of(value)}")
    return [_message(message, index) for index, message in enumerate(value)]


def _message(message: Any, index: int) -> dict[str, str]:
    if isinstance(message, str):
        return {"role": ("user", "assistant")[index % 2], "content": message}
    if not isinstance(message, dict):
        raise ValueError(f"a message is {kind_of(message)}")
    role = message.get("role") or message.get("from")
    content = message["content"] if "content" in message else message.get("value")
    if not isinstance(role, str):
        raise ValueError("a message without `role` or `from`")
    return {"role": _ROLES.get(role.lower(), role.lower()), "content": _content(content)}


def _content(content: Any) -> str:
    if content is None:  # a message that only calls tools
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    raise ValueError("a message without text in `content` or `value`")


def plain(messages: Messages) -> str:
    """What was said, a message a line, without the roles: those a model does not write."""
    return "\n".join(message["content"] for message in messages)


@dataclass(frozen=True)
class _Template:
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, messages: Messages) -> str:
        from jinja2 import TemplateError

        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False))
        except TemplateError:
            return plain(messages)


def render_with(tokenizer: PreTrainedTokenizerBase) -> Render:
    """How a tokenizer's model sees a conversation; it can be pickled when the tokenizer can.

    Without a chat template it is the messages' contents, a message a line. So it is for a
    conversation that the template refuses, such as one that the assistant begins: its answers
    are worth as much.
    """
    return _Template(tokenizer) if tokenizer.chat_template else plain


_KINDS = {bool: "true or false", dict: "an object", list: "a list", str: "a text"}


def kind_of(value: Any) -> str:
    """What JSON calls a value."""
    if value is None:
        return "nothing"
    return _KINDS.get(
        type(value), "a number" if isinstance(value, (int, float)) else "nothing of JSON"
    )
