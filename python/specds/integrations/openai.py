"""Predicted outputs of the OpenAI API, as ASGI middleware for the servers of vLLM and SGLang.

    vllm serve MODEL --middleware specds.integrations.openai.PredictedOutput ...

Chat completions then have the field ``prediction``. SGLang's plug-in adds the middleware by itself.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from specds.integrations.tenants import App, AuthenticatedTenants, Message, Receive, Send
from specds.models.tool_calls import MAX_IDS, example_messages, without_prefix

_START = "http.response.start"
_JSON = (b"content-type", b"application/json")
_CHAT, _TEXT = "chat/completions", "completions"
_MOST_TOOLS = 64
"""The most lists of tools whose calls are kept, which have at most `MAX_IDS` tokens together."""
_OPTION, _IDS, _EXTENSION = "specds_predicted_output", "token_ids", "sglext"


class PredictedOutput:
    """Middleware that drafts from predictions and adds their tokens to `usage`.

    The server's own route `/tokenize` tokenizes `prediction`, or a text in
    `specds_predicted_output`, which takes precedence. The middleware passes the token ids on as
    `specds_predicted_output`, and requests the token ids of the answer to compare them. It answers
    an invalid prediction with status 400, and forwards errors of `/tokenize`.

    Without a prediction and a grammar, a request with `tools` drafts from calls of them, which
    `/tokenize` writes by the chat template if it takes messages. Only drafts depend on them.

    It also sets the tenants of all requests, as `AuthenticatedTenants` does.

    Args:
        app: The application whose routes end with `/v1/chat/completions`, `/v1/completions` and
            `/tokenize`.
        carrier: The field of a request that has the options of specds.
        ids_field: The field of a chat completion that requests its token ids.
    """

    def __init__(
        self, app: App, carrier: str = "vllm_xargs", ids_field: str = "return_token_ids"
    ) -> None:
        self.app, self._carrier = AuthenticatedTenants(app, carrier), carrier
        self._ids_fields = {_CHAT: ids_field, _TEXT: "return_token_ids"}
        self._calls: dict[bytes, list[int]] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        _, _, route = scope.get("path", "").partition("/v1/")
        field = self._ids_fields.get(route)
        if field and scope["type"] == "http" and scope["method"] == "POST":
            exchange = _Exchange(self.app, scope, receive, send, self._carrier, field, self._calls)
            scope, receive, send = _sized(scope), exchange.receive, exchange.send
        await self.app(scope, receive, send)


class _Exchange:
    """A request and its answer, streamed or not.

    The prediction is tokenized when the server receives the body: a request without its API key
    costs nothing.
    """

    def __init__(
        self,
        app: App,
        scope: Message,
        receive: Receive,
        send: Send,
        carrier: str,
        field: str,
        calls: dict[bytes, list[int]],
    ) -> None:
        self._app, self._scope, self._receive, self._send = app, scope, receive, send
        self._carrier, self._field, self._calls = carrier, field, calls
        self._is_received = self._is_refused = self._is_hidden = self._is_streamed = False
        self._predicted: Sequence[int] | None = None
        self._outputs: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))
        self._start: Message = {}
        self._left = b""

    async def receive(self) -> Message:
        """Return the whole body, with the token ids of its prediction; a disconnect if refused."""
        if self._is_received:
            return await self._receive()
        self._is_received, body, has_more = True, bytearray(), True
        while has_more:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            body += message.get("body", b"")
            has_more = message.get("more_body", False)
        if b"predict" not in body and b'"tools"' not in body:
            return _whole(bytes(body))  # only the server parses it
        try:
            asked = json.loads(body)
            carrier = asked.get(self._carrier) or {}
            given = carrier.get(_OPTION, asked.get("prediction"))
            is_usable = _OPTION not in carrier or isinstance(given, str) or _are_ids(given)
        except (AttributeError, TypeError, ValueError, RecursionError):  # the server reports it
            return _whole(bytes(body))
        calls: list[int] = []
        if given is None and _OPTION not in carrier and _has_free_tools(asked):
            calls = await self._tokenized_calls(asked["tools"])
        if calls:
            asked[self._carrier] = {**carrier, _OPTION: calls}
            return _whole(json.dumps(asked).encode())
        if given is None or not is_usable:
            return _whole(bytes(body))  # the drafter counts refused options
        text = given if _OPTION in carrier else text_of(given)
        if text is None or len(text) > (MAX_IDS if isinstance(text, list) else MAX_CHARS):
            await self._refuse(400, INVALID if text is None else TOO_LONG)
            return {"type": "http.disconnect"}
        predicted = text if isinstance(text, list) else await self._tokenized(text)
        if predicted is None:
            return {"type": "http.disconnect"}  # the client has its answer
        self._predicted, self._is_hidden = predicted, not asked.get(self._field)
        asked |= {self._carrier: {**carrier, _OPTION: predicted}, self._field: True}
        asked.pop("prediction", None)
        return _whole(json.dumps(asked).encode())

    async def _tokenized_calls(self, tools: Any) -> list[int]:
        """Return the token ids of calls of the tools; none if the server does not write them."""
        text, messages = json.dumps(tools), example_messages(tools)
        if len(text) > MAX_CHARS:
            return []
        name = hashlib.sha256(text.encode()).digest()
        if name in self._calls or len(messages) == 1:
            return self._calls.get(name, [])
        texts = []
        for given in (messages, messages[:1]):
            asked = {"messages": given, "tools": tools, "add_generation_prompt": False}
            status, content = await self._tokenize(asked)
            texts.append((json.loads(content) or {}).get("tokens", []) if status == 200 else [])
        calls = without_prefix(*texts)[:MAX_IDS] if all(texts) else []
        self._calls[name] = calls
        while len(self._calls) > _MOST_TOOLS or sum(map(len, self._calls.values())) > MAX_IDS:
            del self._calls[next(iter(self._calls))]
        return calls

    async def _tokenized(self, text: str) -> list[int] | None:
        """Return the token ids of a text, or answer with the error."""
        status, content = await self._tokenize({"prompt": text, "add_special_tokens": False})
        if status == 200:
            tokens: list[int] = (json.loads(content) or {}).get("tokens", [])
            if len(tokens) <= MAX_IDS:
                return tokens  # none after a disconnect
            status, content = 400, TOO_LONG
        await self._refuse(status, content)
        return None

    async def _refuse(self, status: int, content: bytes) -> None:
        """Answer with an error; the server's own answer is dropped."""
        self._is_refused = True
        start = {"type": _START, "status": status, "headers": [_JSON]}
        await self._send(_sized(start, content))
        await self._send({"type": "http.response.body", "body": content})

    async def _tokenize(self, asked: dict[str, Any]) -> tuple[int, bytes]:
        """Return the status and the body of the server's answer."""
        messages: list[Message] = []
        body = json.dumps(asked).encode()
        requests = [_whole(body)]
        path = f"{self._scope['path'].partition('/v1/')[0]}/tokenize"

        async def receive() -> Message:
            return requests.pop() if requests else await self._receive()

        async def send(message: Message) -> None:
            messages.append(message)

        inner = {"path": path, "raw_path": path.encode(), "query_string": b""}
        await self._app({**_sized(self._scope, body), **inner}, receive, send)
        content = b"".join(part.get("body", b"") for part in messages[1:])
        return messages[0]["status"], content

    async def send(self, message: Message) -> None:
        """Send a message of the answer, whose `usage` has the tokens of the prediction."""
        if self._is_refused:
            return
        if self._predicted is None:
            await self._send(message)
            return
        if message["type"] == _START:
            kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
            self._is_streamed = any(b"text/event-stream" in kind for kind in kinds)
            self._start = message
            if self._is_streamed:
                await self._send(message)
            return
        self._left += message.get("body", b"")
        ends = not message.get("more_body", False)
        if self._is_streamed:
            *lines, self._left = self._left.split(b"\n")
            body = b"".join(self._changed_line(line) + b"\n" for line in lines)
            if ends:
                body += self._left
            await self._send({**message, "body": body})
        elif ends:
            body = self._changed(self._left)
            await self._send(_sized(self._start, body))
            await self._send({"type": "http.response.body", "body": body})

    def _changed_line(self, line: bytes) -> bytes:
        name, found, value = line.partition(b"data: ")
        return found + self._changed(value) if found and not name else line

    def _changed(self, text: bytes) -> bytes:
        """Return an answer or a chunk of it with the usage; what has no choices is unchanged."""
        try:
            answer = json.loads(text)
            choices = answer["choices"]
        except (KeyError, TypeError, ValueError):  # an error, or the end of the stream
            return text
        extension = answer.get(_EXTENSION) or {}  # SGLang's chat completions have the ids there
        rows = enumerate(extension.get("output_ids") or ())
        for index, ids in [*rows] or [(choice["index"], choice.get(_IDS)) for choice in choices]:
            self._outputs[index].extend(ids or ())
        for part in (answer, extension, *choices) if self._is_hidden else ():
            for name in (_IDS, "prompt_token_ids", "output_ids"):
                part.pop(name, None)
        if not extension:
            answer.pop(_EXTENSION, None)
        if isinstance(answer.get("usage"), dict) and not (self._is_streamed and choices):
            add_counts(answer["usage"], self._predicted or (), [*self._outputs.values()])
        return json.dumps(answer).encode()


def _has_free_tools(asked: dict[str, Any]) -> bool:
    """Return true if a request has tools, and no grammar for its answer."""
    is_text = asked.get("response_format") in (None, {"type": "text"})
    is_free = asked.get("tool_choice") in (None, "auto") and is_text
    names = ("structured_outputs", "regex", "ebnf", "json_schema")
    has_grammar = any(asked.get(name) for name in names) or any(
        name.startswith("guided_") and value for name, value in asked.items()
    )
    return bool(asked.get("tools")) and is_free and not has_grammar


def add_counts(
    usage: dict[str, Any], predicted: Sequence[int], outputs: Sequence[Sequence[int]]
) -> None:
    """Add the accepted and rejected tokens of a prediction to the `usage` of these outputs."""
    counts = [count_accepted(predicted, ids) for ids in outputs]
    details = usage.get("completion_tokens_details") or {}
    details["accepted_prediction_tokens"] = sum(counts)
    details["rejected_prediction_tokens"] = len(predicted) * len(counts) - sum(counts)
    usage["completion_tokens_details"] = details


def count_accepted(predicted: Sequence[int], output: Sequence[int]) -> int:
    """Return how many tokens of a prediction appear in the output.

    The output follows the prediction from its start. After a difference, it follows again from the
    token that was expected, or from the next place of its own last two tokens, else the first such
    place. Each token of the prediction counts once.
    """
    places: dict[tuple[int, int], list[int]] = {pair: [] for pair in pairwise(output)}
    for end, pair in enumerate(pairwise(predicted), 1):
        if (ends := places.get(pair)) is not None:
            ends.append(end)
    is_accepted, at, last = bytearray(len(predicted)), 0, -1
    for token in output:
        if at == len(predicted) or predicted[at] != token:
            ends = places.get((last, token))
            if ends:
                at = ends[bisect_left(ends, at) % len(ends)]
                is_accepted[at - 1] = 1
        if at < len(predicted) and predicted[at] == token:
            is_accepted[at] = 1
            at += 1
        last = token
    return sum(is_accepted)


def text_of(prediction: Any) -> str | None:
    """Return the text of a field `prediction`; None if it is invalid."""
    try:
        parts: Any = prediction["content"] if prediction["type"] == "content" else None
        if not isinstance(parts, str):
            parts = [part["text"] if part["type"] == "text" else None for part in parts]
        text: str = "".join(parts)
        text.encode()  # half of a surrogate pair is not a text
    except (KeyError, TypeError, UnicodeEncodeError):
        return None
    return text


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and all(type(token) is int for token in given)


MAX_CHARS = 16 * MAX_IDS
"""The most characters of a prediction."""

_MESSAGE = 'prediction must be {"type": "content", "content": a string or a list of text parts}'
_LENGTH_MESSAGE = f"prediction must have at most {MAX_IDS} tokens and {MAX_CHARS} characters"


def _error(message: str) -> bytes:
    about = {"type": "invalid_request_error", "param": "prediction", "code": None}
    return json.dumps({"error": {"message": message, **about}}).encode()


INVALID, TOO_LONG = _error(_MESSAGE), _error(_LENGTH_MESSAGE)


def _whole(body: bytes) -> Message:
    return {"type": "http.request", "body": body, "more_body": False}


def _sized(about: Message, body: bytes | None = None) -> Message:
    """Return a scope or the start of an answer with the length of another body, or without one."""
    lengths = (b"content-length", b"transfer-encoding")
    headers = [pair for pair in about["headers"] if pair[0].lower() not in lengths]
    size = [] if body is None else [(b"content-length", b"%d" % len(body))]
    return {**about, "headers": headers + size}
