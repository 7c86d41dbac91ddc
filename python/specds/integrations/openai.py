"""Predicted outputs of the OpenAI API, as ASGI middleware for vLLM's server.

    vllm serve MODEL --middleware specds.integrations.openai.PredictedOutput ...

Both of vLLM's runners then read the field ``prediction`` of chat completions.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from itertools import pairwise
from typing import Any

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[MutableMapping[str, Any], _Receive, _Send], Awaitable[None]]

_OPTION, _CARRIER, _IDS = "specds_predicted_output", "vllm_xargs", "token_ids"


class PredictedOutput:
    """Middleware that drafts from predictions and adds their tokens to `usage`.

    The server's own route `/tokenize` tokenizes `prediction`, or a text in
    `specds_predicted_output`, which takes precedence. The middleware passes the token ids on as
    `specds_predicted_output`, and requests the token ids of the answer to compare them. It answers
    an invalid prediction with status 400, and forwards errors of `/tokenize`.

    Args:
        app: The application whose routes end with `/v1/chat/completions`, `/v1/completions` and
            `/tokenize`.
    """

    def __init__(self, app: _App) -> None:
        self.app = app

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send
    ) -> None:
        prefix, _, route = scope.get("path", "").partition("/v1/")
        is_read = scope["type"] == "http" and route in ("chat/completions", "completions")
        if not is_read or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        body = await _read(receive)
        if body is None:
            return None  # the client disconnected
        try:
            asked = json.loads(body)
            carrier = asked.get(_CARRIER) or {}
            predicted = carrier.get(_OPTION, asked.get("prediction"))
        except (AttributeError, ValueError, RecursionError):  # an error that the server reports
            predicted, carrier = None, {}
        is_refused = _OPTION in carrier and not isinstance(predicted, (str, list))
        if predicted is None or is_refused:  # the drafter counts refused options
            return await self.app(scope, _replay(body, receive), send)
        if _OPTION not in carrier:
            predicted = _text(predicted)
            if predicted is None:
                return await _answer(send, 400, _INVALID)
        if isinstance(predicted, str):
            about = {"prompt": predicted, "add_special_tokens": False}
            about |= {"model": asked["model"]} if "model" in asked else {}
            status, content = await self._post(scope, f"{prefix}/tokenize", about, receive)
            if status != 200:
                return await _answer(send, status, content)
            predicted = (json.loads(content) or {}).get("tokens", [])  # null: a disconnect
        is_hidden = not asked.get("return_token_ids")
        asked |= {_CARRIER: {**carrier, _OPTION: predicted}, "return_token_ids": True}
        asked.pop("prediction", None)
        body = json.dumps(asked).encode()
        usage = _Usage(predicted, send, is_hidden=is_hidden)
        return await self.app(_sized(scope, body), _replay(body, receive), usage.send)

    async def _post(
        self, scope: MutableMapping[str, Any], path: str, about: Any, receive: _Receive
    ) -> tuple[int, bytes]:
        messages: list[_Message] = []

        async def keep(message: _Message) -> None:
            messages.append(message)

        body = json.dumps(about).encode()
        inner = {**_sized(scope, body), "path": path, "raw_path": path.encode()}
        await self.app({**inner, "query_string": b""}, _replay(body, receive), keep)
        return messages[0]["status"], b"".join(part.get("body", b"") for part in messages[1:])


class _Usage:
    """Adds the tokens of a prediction to the `usage` of an answer, streamed or not."""

    def __init__(self, predicted: Sequence[int], send: _Send, *, is_hidden: bool) -> None:
        self._predicted, self._send, self._is_hidden = predicted, send, is_hidden
        self._outputs: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))
        self._start: _Message = {}
        self._is_streamed, self._left = False, b""

    async def send(self, message: _Message) -> None:
        if message["type"] == "http.response.start":
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
        for choice in choices:
            self._outputs[choice["index"]].extend(choice.get(_IDS) or ())
        for part in (answer, *choices) if self._is_hidden else ():
            part.pop(_IDS, None)
            part.pop("prompt_token_ids", None)
        if isinstance(answer.get("usage"), dict) and not (self._is_streamed and choices):
            counts = [count_accepted(self._predicted, ids) for ids in self._outputs.values()]
            details = answer["usage"].get("completion_tokens_details") or {}
            details["accepted_prediction_tokens"] = sum(counts)
            rejected = len(self._predicted) * len(counts) - sum(counts)
            details["rejected_prediction_tokens"] = rejected
            answer["usage"]["completion_tokens_details"] = details
        return json.dumps(answer).encode()


def count_accepted(predicted: Sequence[int], output: Sequence[int]) -> int:
    """Return how many tokens of a prediction appear in the output.

    The output follows the prediction from its start. After a difference, it follows again from the
    token that was expected, or from the next place of its own last two tokens, else the first such
    place. Each token of the prediction counts once.
    """
    places: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for end, pair in enumerate(pairwise(predicted), 1):
        places[pair].append(end)
    is_accepted, at, last = bytearray(len(predicted)), 0, -1
    for token in output:
        if at == len(predicted) or predicted[at] != token:
            ends = places.get((last, token), ())
            if ends:
                at = ends[bisect_left(ends, at) % len(ends)]
                is_accepted[at - 1] = 1
        if at < len(predicted) and predicted[at] == token:
            is_accepted[at] = 1
            at += 1
        last = token
    return sum(is_accepted)


def _text(prediction: Any) -> str | None:
    """Return the text of a field `prediction`; None if it is invalid."""
    if not isinstance(prediction, dict) or prediction.get("type") != "content":
        return None
    parts = prediction.get("content")
    if isinstance(parts, str):
        return parts
    texts = []
    for part in parts if isinstance(parts, list) else [None]:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "".join(texts)


_MESSAGE = 'prediction must be {"type": "content", "content": a string or a list of text parts}'
_ERROR = {"message": _MESSAGE, "type": "invalid_request_error", "param": "prediction", "code": None}
_INVALID = json.dumps({"error": _ERROR}).encode()


async def _read(receive: _Receive) -> bytes | None:
    """Return the body of a request, or None if the client disconnected."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: _Receive) -> _Receive:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> _Message:
        return messages.pop() if messages else await receive()

    return replay


def _sized(about: MutableMapping[str, Any], body: bytes) -> dict[str, Any]:
    """Return a scope or the start of a response with the length of another body."""
    lengths = (b"content-length", b"transfer-encoding")
    headers = [pair for pair in about["headers"] if pair[0].lower() not in lengths]
    return {**about, "headers": [*headers, (b"content-length", b"%d" % len(body))]}


async def _answer(send: _Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json")]
    start = {"type": "http.response.start", "status": status, "headers": headers}
    await send(_sized(start, body))
    await send({"type": "http.response.body", "body": body})
