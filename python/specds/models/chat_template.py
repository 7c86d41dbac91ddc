"""Chat templates, rendered as transformers renders them and without it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from specds._lazy import advising

# The names of a message's reasoning; templates read the first, and some the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class TemplateError(ValueError):
    """A chat template is not valid, or refuses the messages; the message has its reason."""


def render(template: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    """Return the text of a conversation.

    A template may come from anybody: it sees built-in values alone, in a sandbox with bounds of
    work and memory.

    Raises:
        TemplateError: It fails, or takes too much time or memory.
    """
    with advising():
        from specds.models.template_sandbox import budget_of
    # Functions and objects have methods that the sandbox does not know.
    plain = json.loads(json.dumps([_message(message) for message in messages]))
    try:
        with budget_of(plain, variables):
            return str(_compiled(template).render(messages=plain, **variables))
    except Exception as error:  # whatever a template makes of itself
        reason = " ".join(str(error).split())
        raise TemplateError(f"the chat template fails: {reason}") from error


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in message.items() if value is not None}
    reasoning = next((known[name] for name in _REASONING if name in known), None)
    if reasoning is None:
        return known
    return {"thinking": reasoning, **known, "reasoning_content": reasoning}


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    from specds.models.template_sandbox import ChatSandbox

    return ChatSandbox(_to_json).from_string(template)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)
