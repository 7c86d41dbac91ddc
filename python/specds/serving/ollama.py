"""Ollama's API: its bodies as those of OpenAI's, and its answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, ClassVar

from specds.serving.job import TextJob, Update
from specds.serving.pieces import Piece
from specds.serving.replies import Reply, spelled
from specds.serving.requests import ApiRequest, RequestError, RequestReader

VERSION = "0.12.0"
"""The version of Ollama whose API this is; some clients require a recent one."""

_SAME = {
    *("model", "messages", "prompt", "suffix", "tools", "logprobs", "top_logprobs", "prediction"),
    *("user", "safety_identifier"),
}
_OTHERS = {"options", "stream", "format", "think", "system", "raw", "images", "keep_alive"}


def read_chat(reader: RequestReader, body: Any, tenant: str) -> ApiRequest:
    """Read the body of `/api/chat`; without messages, it only asks for the model."""
    given = _of_openai(body)
    messages = given.setdefault("messages", [])
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise RequestError("messages must be a list of objects", "messages")
    for message in messages:
        _require_text_alone(message)
        for name, here in (("thinking", "reasoning_content"), ("tool_name", "name")):
            if name in message:
                message[here] = message.pop(name)
    if not messages:
        given |= {"messages": [{"role": "user", "content": ""}], "max_tokens": 0}
    return reader.chat(given, tenant)


def read_generate(reader: RequestReader, body: Any, tenant: str) -> ApiRequest:
    """Read the body of `/api/generate`: a message of the user, unless it is `raw`."""
    given = _of_openai(body)
    prompt, is_raw = given.pop("prompt", ""), body.get("raw") or given.get("suffix")
    if is_raw or not reader.has_template:
        return reader.completion({**given, "prompt": prompt}, tenant)
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    messages = [*system, {"role": "user", "content": prompt}] if prompt else []
    return read_chat(reader, {**body, "messages": messages, "prompt": None}, tenant)


def _of_openai(body: Any) -> dict[str, Any]:
    """Return the fields by their names in OpenAI's API."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    options = body.get("options") or {}
    if not isinstance(options, dict):
        raise RequestError("options must be an object", "options")
    _require_text_alone(body)
    given = {name: value for name, value in body.items() if name not in _OTHERS - _SAME}
    given |= {"n_predict" if name == "num_predict" else name: of for name, of in options.items()}
    given["n_predict"] = max(given["n_predict"], -1) if _is_int(given.get("n_predict")) else -1
    given["stream"] = body.get("stream", True)
    form, think = body.get("format"), body.get("think")
    if form:
        kind = "json_object" if form == "json" else "json_schema"
        given["response_format"] = {"type": kind, "json_schema": {"schema": form}}
    if think is not None:
        given["chat_template_kwargs"] = {"enable_thinking": bool(think)}
        given |= {"reasoning_effort": think} if isinstance(think, str) else {}
    return given


def _require_text_alone(given: dict[str, Any]) -> None:
    if given.get("images"):
        raise RequestError("the model reads text alone", "images")


def _is_int(value: Any) -> bool:
    return type(value) is int


class ChatReply(Reply):
    """The answer of `/api/chat`."""

    media_type: ClassVar[str] = "application/x-ndjson"

    def framed(self, chunk: dict[str, Any]) -> bytes:
        return spelled(chunk) + b"\n"

    def last(self) -> bytes:
        return b""

    @staticmethod
    def error(status: int, message: str, *_: Any) -> dict[str, Any]:
        return {"error": message}

    def chunks(self, index: int, update: Update) -> Iterator[dict[str, Any]]:
        if update.pieces or not update.finish:
            yield {**self._head(), **self.content(update.pieces), "done": False}
        if update.finish:
            yield self.whole([Update(finish=update.finish)])

    def whole(self, updates: list[Update]) -> dict[str, Any]:
        (update,), (job,) = updates, self.jobs
        reason = "length" if update.finish == "length" else "stop"
        return {
            **self._head(),
            **self.content(update.pieces),
            "done": True,
            "done_reason": reason if job.asked.max_new_tokens else "load",
            **_counted(job),
        }

    def _head(self, **_: Any) -> dict[str, Any]:
        return {"model": self.model, "created_at": datetime.now(UTC).isoformat()}

    def content(self, pieces: list[Piece]) -> dict[str, Any]:
        """Return the fields that have parts of the text."""
        message = {"role": "assistant", "content": _text(pieces, "content")}
        if thinking := _text(pieces, "reasoning"):
            message["thinking"] = thinking
        calls = [_call(piece) for piece in pieces if piece.kind == "call"]
        return {"message": {**message, **({"tool_calls": calls} if calls else {})}}


class GenerateReply(ChatReply):
    """The answer of `/api/generate`."""

    def content(self, pieces: list[Piece]) -> dict[str, Any]:
        thinking = _text(pieces, "reasoning")
        response = {"response": _text(pieces, "content")}
        return {**response, "thinking": thinking} if thinking else response


def _text(pieces: list[Piece], kind: str) -> str:
    return "".join(piece.text for piece in pieces if piece.kind == kind)


def _call(piece: Piece) -> dict[str, Any]:
    arguments = {}
    with suppress(ValueError, RecursionError):
        arguments = json.loads(piece.text)
    return {"function": {"name": piece.name, "arguments": arguments}}


def _counted(job: TextJob) -> dict[str, int]:
    """Return the tokens of a text, and its times in nanoseconds."""
    read, written = (round(1e9 * seconds) for seconds in job.seconds)
    return {
        "total_duration": read + written,
        "load_duration": 0,
        "prompt_eval_count": len(job.asked.prompt),
        "prompt_eval_duration": read,
        "eval_count": len(job.emitted),
        "eval_duration": written,
    }


def about(served: Any, changed: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what `/api/tags` and `/api/show` have of a served model, changed at a time."""
    family, reader = served.reader.architecture, served.reader
    details = {"format": "gguf", "family": family, "families": [family], "parent_model": ""}
    details |= {"parameter_size": "", "quantization_level": ""}
    weights = getattr(served.model, "weights", None)
    listed = {
        "name": served.name,
        "model": served.name,
        "modified_at": datetime.fromtimestamp(changed, UTC).isoformat(),
        "size": weights.num_bytes if weights is not None else 0,
        "digest": "",
        "details": details,
    }
    info = {"general.architecture": family, f"{family}.context_length": served.model.context_length}
    can = {"completion": True, "tools": reader.has_template, "insert": bool(reader.fill)}
    shown = {
        "modified_at": listed["modified_at"],
        "details": details,
        "model_info": info,
        "capabilities": [name for name, is_so in can.items() if is_so],
    }
    return listed, shown
