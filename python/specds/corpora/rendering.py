"""Conversations as text, by a tokenizer's chat template, and what the text lacks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from specds.corpora.messages import ChatMessage, Conversation
from specds.models.chat_template import TemplateError
from specds.models.tokenization import Tokenizer

Render: TypeAlias = "Callable[..., str]"
"""Turns messages in OpenAI's chat format, and `tools` if there are any, into text.

A `ValueError` makes it a bad row."""


def plain(messages: Sequence[ChatMessage], tools: Sequence[ChatMessage] = ()) -> str:
    """Join the messages, one per line, without roles and tools, which a model does not generate.

    A call is the JSON of its name and its arguments.
    """
    lines: list[str] = []
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls", ())]
        written = [json.dumps(call, ensure_ascii=False) for call in calls]
        parts = [message.get("reasoning_content", ""), message["content"], *written]
        lines.append("\n".join(filter(None, parts)))
    return "\n".join(lines)


class ToolsError(ValueError):
    """A chat template does not write tool calls; the message names it and a remedy."""


@dataclass(frozen=True)
class Template:
    """A renderer that applies the chat template of a tokenizer.

    Attributes:
        source: A template to apply instead of the tokenizer's.
        name: Name of the template in errors.
    """

    tokenizer: Tokenizer
    source: str | None
    name: str

    def __call__(self, messages: Sequence[ChatMessage], tools: Sequence[ChatMessage] = ()) -> str:
        """Return the text of a conversation.

        If the template rejects it, such as one that the assistant begins, the messages are joined.

        Raises:
            ToolsError: The template does not write the calls.
        """
        has_calls = any(message.get("tool_calls") for message in messages)
        if has_calls and self._form is None:
            raise ToolsError(
                f"the chat template of `{self.name}` writes no tool calls: choose one that does "
                "with --chat-template"
            )
        text = self._rendered(messages, tools, is_json=has_calls and self._form == "json")
        return plain(messages, tools) if text is None else text

    def turn(
        self, messages: Sequence[ChatMessage], tools: Sequence[ChatMessage] = ()
    ) -> tuple[str, str] | None:
        """Return the prompt of the last message, and its text; None if they do not match."""
        is_json = self._form == "json"
        *before, _ = messages
        prompt = self._rendered(before, tools, is_json=is_json, add_generation_prompt=True)
        text = self._rendered(messages, tools, is_json=is_json)
        if prompt is None or text is None or not text.startswith(prompt):
            return None
        return prompt, text.removeprefix(prompt)

    def calls_with_text(
        self, messages: Sequence[ChatMessage], tools: Sequence[ChatMessage] = ()
    ) -> str:
        """Return the calls as the template writes them if arguments are not parsed.

        OpenAI's format has arguments as text. vLLM parses them, and transformers does not, so that
        templates write other text in earlier calls, which models then continue.

        Returns:
            Each call with text around it, one after the other; empty if both forms are equal.
        """
        calls = [call for message in messages for call in message.get("tool_calls", ())]
        if not calls or self._form != "object":
            return ""
        text = self._rendered(messages, tools, is_json=True) or ""
        pieces, start = list[str](), 0
        for call in calls:
            written = json.dumps(_json(call), ensure_ascii=False)
            found = text.find(written, start)
            if found < 0:
                return ""
            end = found + len(written)
            pieces.append(text[max(found - _AROUND, start) : end + _AROUND])
            start = end
        return "\n".join(pieces)

    @cached_property
    def _form(self) -> str | None:
        """The form of arguments that the template writes: ``object`` or ``json``; None for none."""
        function = {"name": "known", "arguments": {"needle": "found"}}
        call = {"id": "call00000", "type": "function", "function": function}
        asked: ChatMessage = {"role": "user", "content": "?"}
        calling: ChatMessage = {"role": "assistant", "content": "", "tool_calls": [call]}
        result: ChatMessage = {
            "role": "tool",
            "tool_call_id": "call00000",
            "name": "known",
            "content": "!",
        }
        defined = {"name": "known", "description": "?", "parameters": _NO_PARAMETERS}
        tools = [{"type": "function", "function": defined}]
        for form in ("object", "json"):
            for messages in ([asked, calling], [asked, calling, result]):
                text = self._rendered(messages, tools, is_json=form == "json") or ""
                # Python's own form of an object shows that a template expects JSON.
                if "needle" in text and "found" in text and "'needle': 'found'" not in text:
                    return form
        return None

    def _rendered(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ChatMessage],
        *,
        is_json: bool,
        add_generation_prompt: bool = False,
    ) -> str | None:
        from jinja2 import TemplateError as Refusal

        chosen: dict[str, Any] = {"add_generation_prompt": add_generation_prompt}
        if self.source:
            chosen["chat_template"] = self.source
        if tools:
            chosen["tools"] = [*tools]
        # gpt-oss reads `thinking`, and rejects reasoning next to a call's content.
        for names in (("reasoning_content", "thinking"), ()):
            given = [_for_template(message, names, is_json=is_json) for message in messages]
            try:
                return str(self.tokenizer.apply_chat_template(given, tokenize=False, **chosen))
            except (Refusal, TemplateError, TypeError, LookupError, AttributeError):
                continue
        return None


_AROUND = 80
"""Characters around a call, which hold the end of the turn, and the beginning of the call."""
_NO_PARAMETERS = {"type": "object", "properties": {"needle": {"type": "string"}}}


def _for_template(message: ChatMessage, reasoning: Sequence[str], *, is_json: bool) -> ChatMessage:
    """Return a message with its reasoning by these names, and its arguments as JSON if asked."""
    given = dict(message)
    if thought := given.pop("reasoning_content", None):
        given |= dict.fromkeys(reasoning, thought)
    if is_json and "tool_calls" in message:
        given["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _json(call)}}
            for call in message["tool_calls"]
        ]
    return given


def _json(call: ChatMessage) -> str:
    arguments = call["function"]["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def render_with(tokenizer: Tokenizer, template: str | None = None, name: str = "") -> Render:
    """Return a renderer that applies a tokenizer's chat template.

    Without a chat template, or if the template rejects a conversation (such as one that the
    assistant begins), the messages are joined, one per line.

    Args:
        template: A template to apply instead of the tokenizer's, in Jinja.
        name: Its name in errors; by default that of the tokenizer.
    """
    if not (template or tokenizer.chat_template):
        return plain
    return Template(tokenizer, template, name or str(tokenizer.name_or_path))


def missing(talk: Conversation, text: str) -> set[str]:
    """Return the names of fields with text that the conversation has and its text lacks."""
    fields = set(talk.unread)
    for message in talk.messages:
        for name, value in message.items():
            if name not in fields and name != "role" and not _has_all(text, value, name):
                fields.add(name)
    defined = [tool["function"] for tool in talk.tools]
    named = [(each.get("name"), each.get("description")) for each in defined]
    if not _has_all(text, named, "tools"):
        fields.add("tools")
    return fields


def _has_all(text: str, value: Any, name: str) -> bool:
    if name == "tool_calls":
        value = [call["function"] for call in value]
    return all(leaf in text or _escaped(leaf) in text for leaf in _leaves(value))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts of a value, without white space around them."""
    if isinstance(value, str):
        if stripped := value.strip():
            yield stripped
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
