"""Chat templates, rendered as transformers renders them and without it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from specds._lazy import imported

# The names of a message's reasoning; templates read the first, and some the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class TemplateError(ValueError):
    """A chat template is not valid, or refuses the messages; the message has its reason."""


def render(template: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    """Return the text of a conversation.

    A template may come from anybody: it sees built-in values alone, in a sandbox.

    Raises:
        TemplateError: It fails.
    """
    jinja2: Any = imported("jinja2")
    # Functions and objects have methods that the sandbox does not know.
    plain = json.loads(json.dumps([_message(message) for message in messages]))
    try:
        return str(_compiled(template).render(messages=plain, **variables))
    except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
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
    imported("jinja2")
    from jinja2 import TemplateError as Refusal
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Shows what is within `generation`, which marks the replies for training."""

        tags = {"generation"}  # noqa: RUF012  (as jinja2 declares it)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def refuse(message: str) -> None:
        raise Refusal(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)
