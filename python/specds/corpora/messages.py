"""Messages of conversations in the formats of OpenAI, Anthropic and ShareGPT.

A template reads OpenAI's chat format: `role` and `content`, `reasoning_content`, `tool_calls` whose
`arguments` are objects, and `tool_call_id` of a result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

ChatMessage: TypeAlias = dict[str, Any]

_ROLES = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "model": "assistant",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "toolresult": "tool",
}
_CALLS = ("function_call", "tool_call")
"""Roles of a message that is a call, or a list of calls, as JSON."""
_REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
_RENAMED = {"toolCallId": "tool_call_id", "toolName": "name"}


@dataclass
class Conversation:
    """A conversation in the format of templates.

    Attributes:
        messages: Messages in OpenAI's chat format.
        tools: Definitions of functions in OpenAI's chat format.
        unread: What it had and no message can hold, such as `content: image_url`.
    """

    messages: list[ChatMessage] = field(default_factory=list)
    tools: list[ChatMessage] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    _open: ChatMessage | None = field(default=None, repr=False)
    _num_calls: int = field(default=0, repr=False)

    def add(self, value: Any) -> None:
        """Add a message, or the messages that its content has.

        Raises:
            ValueError: It is not a message.
        """
        if isinstance(value, str):
            value = {"role": ("user", "assistant")[len(self.messages) % 2], "content": value}
        if not isinstance(value, dict):
            raise ValueError(f"a message is {type(value).__name__}")
        named = value.get("role") or value.get("from")
        if not isinstance(named, str):
            raise ValueError("a message without `role` or `from`")
        content = value["content"] if "content" in value else value.get("value")
        role = _ROLES.get(named.lower(), named.lower())
        if role in _CALLS:
            self._add_calls(content)
            return
        message: ChatMessage = {"role": role, "content": ""}
        # An answer of Anthropic has its usage and its model in the message.
        for name, other in value.items() if value.get("type") != "message" else ():
            if name not in ("role", "from", "content", "value") and other is not None:
                message[_RENAMED.get(str(name), str(name))] = other
        self._normalize(message)
        self._add_content(message, content)

    def add_item(self, item: Any) -> None:
        """Add an item of OpenAI's Responses: a message, reasoning, a call or its result.

        What the assistant adds in a row is one message.
        """
        if not isinstance(item, dict):
            self.add({"role": "user", "content": item})
            return
        content, kind = item.get("content"), item.get("type", "message")
        if kind == "message" and item.get("role") == "assistant":
            self._reply()["content"] += "".join(self._texts(_listed(content)))
        elif kind == "message":
            self.add({"role": item.get("role"), "content": content})
        elif kind == "reasoning":
            parts = self._texts(_listed(content or item.get("summary")))
            _extend(self._reply(), "reasoning_content", "\n".join(parts))
        elif kind in ("function_call", "custom_tool_call"):
            arguments = item.get("arguments", item.get("input"))
            self._add_call(self._reply(), item.get("name"), arguments, item.get("call_id"))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            message = {"role": "tool", "content": "", "tool_call_id": item.get("call_id")}
            self._add_content(message, item.get("output"))
        else:
            self.unread.add(str(kind))

    def define(self, tools: Any) -> None:
        """Add definitions of tools: a list, or the JSON of one."""
        for tool in _listed(parsed(tools)):
            if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
                self.tools.append({**tool, "type": "function"})
            elif isinstance(tool, dict) and isinstance(tool.get("name"), str):
                known = {
                    name: tool[name] for name in ("name", "description", "strict") if name in tool
                }
                schema = tool.get("parameters", tool.get("input_schema", {}))
                self.tools.append({"type": "function", "function": {**known, "parameters": schema}})
            else:
                self.unread.add("tools")

    def _reply(self) -> ChatMessage:
        """Return the reply that the items at the end belong to."""
        if self._open is None:
            self._open = {"role": "assistant", "content": ""}
            self.messages.append(self._open)
        return self._open

    def _add_call(self, message: ChatMessage, name: Any, arguments: Any, identity: Any) -> None:
        if not isinstance(name, str):
            raise ValueError("a tool call without a name")
        if not isinstance(identity, str):  # Mistral's templates require nine characters
            identity = f"call{self._num_calls:05d}"
        arguments = parsed(arguments)
        function = {"name": name, "arguments": {} if arguments is None else arguments}
        call = {"id": identity, "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
        self._num_calls += 1

    def _add_calls(self, content: Any) -> None:
        calls, reply = _listed(parsed(content)), self._reply()
        if all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
            for call in calls:
                self._add_call(reply, call["name"], call.get("arguments"), call.get("id"))
        else:
            reply["content"] += _text(content)

    def _normalize(self, message: ChatMessage) -> None:
        """Rename a message's fields as templates read them, and parse the arguments of calls."""
        reasoning = [message.pop(name) for name in _REASONING if name in message]
        if reasoning and isinstance(reasoning[0], str) and reasoning[0]:
            message["reasoning_content"] = reasoning[0]
        calls = _listed(parsed(message.pop("tool_calls", None)))
        if isinstance(called := message.pop("function_call", None), dict):
            calls = [called]
        for call in calls:
            function = call.get("function", call) if isinstance(call, dict) else None
            if not isinstance(function, dict):
                raise ValueError(f"a tool call is {type(call).__name__}")
            arguments = function.get("arguments", function.get("args"))
            self._add_call(message, function.get("name"), arguments, call.get("id"))

    def _add_content(self, message: ChatMessage, content: Any) -> None:
        if not isinstance(content, (list, tuple)):
            message["content"] = _text(content)
            self._append(message)
            return
        texts: list[str] = []
        has_results = False
        for block in content:
            kind = block.get("type") if isinstance(block, dict) else None
            if kind in ("thinking", "reasoning"):
                known = (block.get(name) for name in ("thinking", "reasoning", "text"))
                _extend(message, "reasoning_content", str(next(filter(None, known), "")))
            elif kind in ("tool_use", "toolCall"):
                arguments = block.get("input", block.get("arguments"))
                self._add_call(message, block.get("name"), arguments, block.get("id"))
            elif kind == "tool_result":
                if texts:
                    self._append({**message, "content": "".join(texts)})
                    texts = []
                result = {"role": "tool", "content": "", "tool_call_id": block.get("tool_use_id")}
                self._add_content(result, block.get("content"))
                has_results = True
            else:
                texts.extend(self._texts([block]))
        if texts or not has_results:
            self._append({**message, "content": "".join(texts)})

    def _append(self, message: ChatMessage) -> None:
        self._open = None
        if message["role"] == "tool" and message.get("tool_call_id") is None:
            calls = [call for other in self.messages for call in other.get("tool_calls", ())]
            number = sum(other["role"] == "tool" for other in self.messages)
            message.pop("tool_call_id", None)
            if number < len(calls):
                message["tool_call_id"] = calls[number]["id"]
        self.messages.append(message)

    def _texts(self, parts: Iterable[Any]) -> Iterator[str]:
        """Yield the texts of content parts, and note those that have none."""
        for part in parts:
            text = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text
            elif isinstance(part, dict):
                self.unread.add(f"content: {part.get('type')}")


def parsed(value: Any) -> Any:
    """Return the value of JSON text; other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _listed(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [*value]
    return [] if value is None else [value]


def _extend(message: ChatMessage, name: str, text: str) -> None:
    if text:
        message[name] = f"{message[name]}\n{text}" if message.get(name) else text


def _text(content: Any) -> str:
    if content is None:  # a message that only calls tools
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return json.dumps(content, ensure_ascii=False)
    raise ValueError("a message without text in `content` or `value`")
