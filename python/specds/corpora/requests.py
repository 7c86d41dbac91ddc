"""Conversations of rows: datasets, requests and answers of servers, sessions of agents.

A log of requests has the request, the answer, or both, in one object or in two.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from specds.corpora.messages import Conversation, parsed

MESSAGES_FIELDS = ("messages", "conversations", "conversation", "data")
"""Fields of a conversation, the first of which that a row has is read."""

_WRAPPERS = ("standard_logging_object", "raw_request", "request", "body")
_RESPONSES = ("raw_response", "response", "body")
_PARAMETERS = ("model_parameters", "optional_params")
READ_FIELDS = {
    *(*MESSAGES_FIELDS, *_WRAPPERS, *_RESPONSES, *_PARAMETERS),
    *("tools", "functions", "system", "system_prompt", "instructions"),
    *("input", "output", "choices", "trace", "traces"),
}


def conversation_of(row: dict[str, Any], field: str | None = None) -> Conversation | None:
    """Return the conversation of a row; None if it has none.

    A row may be one of these:

    - a row of a dataset, in the format of OpenAI, Anthropic or ShareGPT: `messages` or
      `conversations`, and `tools`, `functions` and `system`; or a session of an agent (`trace`);
    - a request of OpenAI's chat, OpenAI's Responses or Anthropic, with the fields of its answer;
    - a log with these in `request` and `response`, or in `body`, as those of LiteLLM, of batches,
      and of proxies in front of vLLM and llama-server.

    Args:
        field: The field of the messages, instead of a usual name.

    Raises:
        ValueError: A message is invalid.
    """
    talk = Conversation()
    request = row if field is not None else _inner(row, _WRAPPERS, _is_request)
    answer = row if field is not None else _inner(row, _RESPONSES, _is_answer)
    has_request = _add_request(talk, request, field)
    has_answer = field is None and _add_answer(talk, answer)
    return talk if has_request or has_answer else None


def session_conversation(rows: Iterable[Any]) -> Conversation:
    """Return the conversation of a session's rows, as Claude Code, Codex and Pi write them.

    Other events of a session are named in `unread`.
    """
    talk = Conversation()
    last = None
    for row in rows:
        if not isinstance(row, dict):
            raise ValueError(f"an event is {type(row).__name__}")
        message, payload, kind = row.get("message"), row.get("payload"), str(row.get("type"))
        if isinstance(message, dict) and isinstance(message.get("role"), str):
            name = message.get("id")
            if name is not None and name == last:  # one reply, a line for each block
                before = talk.messages.pop()
                content = [*_blocks(before), *_as_list(message.get("content"))]
                message = {**message, "content": content}
            last = name
            known = ("role", "content", "toolCallId", "toolName")
            talk.add({key: message[key] for key in known if key in message})
        elif kind == "session_meta" and isinstance(payload, dict):
            base = payload.get("base_instructions")
            text = base.get("text") if isinstance(base, dict) else payload.get("instructions")
            if isinstance(text, str) and text:
                talk.add({"role": "system", "content": text})
        elif kind == "response_item" and isinstance(payload, dict):
            talk.add_item(payload)
        else:
            talk.unread.add(f"event: {kind}")
    return talk


def is_session(row: Any) -> bool:
    """Return true if a row is a part of a session, of which a file has one or several."""
    if not isinstance(row, dict) or not isinstance(row.get("type"), str):
        return False
    is_event = isinstance(row.get("payload"), dict) and "timestamp" in row
    is_pi = row["type"] == "session" and "version" in row
    names = ("sessionId", "leafUuid", "parentUuid", "parentId")
    return is_event or is_pi or any(name in row for name in names)


def _blocks(message: dict[str, Any]) -> list[Any]:
    """Return a message's content as the blocks that it was read from."""
    blocks: list[Any] = []
    if thought := message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": thought})
    if message["content"]:
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = {"name": call["function"]["name"], "input": call["function"]["arguments"]}
        blocks.append({"type": "tool_use", "id": call["id"], **function})
    return blocks


def _as_list(content: Any) -> list[Any]:
    return [*content] if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def _inner(row: dict[str, Any], names: Sequence[str], is_it: Any) -> dict[str, Any]:
    """Return the object within a row that has the fields of interest, else the row."""
    for name in () if is_it(row) else names:
        value = parsed(row.get(name))
        if isinstance(value, dict):
            found = _inner(value, names, is_it)
            if is_it(found):
                return found
    return row


def _is_request(row: dict[str, Any]) -> bool:
    is_responses = isinstance(row.get("input"), (str, list)) and ("output" in row or "model" in row)
    return is_responses or any(_may_be_conversation(parsed(row.get(n))) for n in MESSAGES_FIELDS)


def _is_answer(row: dict[str, Any]) -> bool:
    is_message = row.get("type") == "message" and row.get("role") == "assistant"
    return is_message or isinstance(row.get("choices"), list) or _is_items(row.get("output"))


def _is_items(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, dict) and "type" in v for v in value)


def _may_be_conversation(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(v, (str, dict)) for v in value)


def _add_request(talk: Conversation, row: dict[str, Any], field: str | None) -> bool:
    parameters = [parsed(row.get(name)) for name in _PARAMETERS]
    for source in (row, *(each for each in parameters if isinstance(each, dict))):
        talk.define(source.get("tools") or source.get("functions"))
    for name in ("system", "system_prompt", "instructions"):
        if row.get(name) and isinstance(row[name], (str, list)):
            talk.add({"role": "system", "content": row[name]})
            break
    if field is not None:
        messages = row.get(field)
        if not isinstance(messages, (list, tuple)):
            raise ValueError(f"no conversation but {type(messages).__name__}")
    else:
        known = (parsed(row.get(name)) for name in MESSAGES_FIELDS)
        messages = next((value for value in known if _may_be_conversation(value)), None)
    if messages is not None:
        for message in messages:
            talk.add(message)
        return True
    if field is None and isinstance(row.get("input"), (str, list)) and _is_request(row):
        for item in [row["input"]] if isinstance(row["input"], str) else row["input"]:
            talk.add_item(item)
        return True
    for name in ("trace", "traces"):
        if _may_be_conversation(row.get(name)) and any(map(is_session, row[name])):
            found = session_conversation(row[name])
            talk.messages.extend(found.messages)
            talk.unread |= found.unread
            return True
    return False


def _add_answer(talk: Conversation, row: dict[str, Any]) -> bool:
    if not _is_answer(row):
        return False
    if _is_items(row.get("output")):
        for item in row["output"]:
            talk.add_item(item)
        return True
    if not isinstance(row.get("choices"), list):
        talk.add({"role": "assistant", "content": row.get("content")})
        return True
    for number, choice in enumerate(row["choices"]):
        message = choice.get("message") if isinstance(choice, dict) else None
        if isinstance(message, dict) and number == 0:
            talk.add({"role": "assistant", **message})
        elif isinstance(choice, dict) and isinstance(choice.get("text"), str) and number == 0:
            talk.add({"role": "assistant", "content": choice["text"]})
        else:
            talk.unread.add("choices")
    return True
