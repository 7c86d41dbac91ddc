"""Calls of a request's tools as the chat template writes them, from which drafters draft."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

_MOST_CALLS = 64
_MOST_CHARS = 1 << 18
"""The most characters of the arguments of all calls: a long value may be in each of them."""
MAX_IDS = 1 << 18
"""The most tokens of a predicted output or of calls; drafters use no more."""
_EMPTY: dict[Any, Any] = {
    "string": "",
    "integer": 0,
    "number": 0,
    "boolean": True,
    "array": [],
    "object": {},
}


def example_messages(tools: Any) -> list[dict[str, Any]]:
    """Return a conversation in OpenAI's chat format that calls each tool, with each value of enums.

    Args:
        tools: Definitions in OpenAI's format; what is something else is left out.

    Returns:
        A message of the user, then calls and results in turns, at most 64 of them and 262,144
        characters of names and arguments; only the message if no tool is defined.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
    num_chars = 0
    for tool in tools if isinstance(tools, (list, tuple)) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            continue
        for arguments in _arguments(function.get("parameters")):
            num_chars += len(function["name"]) + len(json.dumps(arguments))
            if len(messages) > 2 * _MOST_CALLS or num_chars > _MOST_CHARS:
                return messages
            name = f"call{len(messages) // 2:05d}"  # Mistral's templates require nine characters
            called = {"name": function["name"], "arguments": arguments}
            calls = [{"id": name, "type": "function", "function": called}]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
            messages.append(
                {"role": "tool", "tool_call_id": name, "name": called["name"], "content": ""}
            )
    return messages


def example_tokens(tokenizer: Any, tools: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the token ids of `example_messages`, at most `MAX_IDS`.

    There are none if the template does not write them.
    """
    messages = example_messages(tools)
    if len(messages) == 1:
        return []
    try:
        ids, before = (
            tokenizer.apply_chat_template(given, tools=[*tools], return_dict=True)["input_ids"]
            for given in (messages, messages[:1])
        )
    except Exception:  # templates raise anything; drafts do without
        return []
    return without_prefix(ids, before)[:MAX_IDS]


def without_prefix(token_ids: Sequence[int], before: Sequence[int]) -> list[int]:
    """Return the token ids after those that both texts begin with."""
    pairs = zip(token_ids, before, strict=False)
    return [*token_ids[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) :]]


def _arguments(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield arguments that have each value of each enum once."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    known = properties if isinstance(properties, Mapping) else {}
    values = {str(name): _values(each) for name, each in known.items()}
    for number in range(max(map(len, values.values()), default=1)):
        yield {name: each[min(number, len(each) - 1)] for name, each in values.items()}


def _values(schema: Any) -> Sequence[Any]:
    enum = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(enum, list) and enum:
        return enum
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return [_EMPTY.get(kind if isinstance(kind, str) else "string", "")]
