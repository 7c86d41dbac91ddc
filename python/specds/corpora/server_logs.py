"""Requests in the text logs of servers: vLLM (`--enable-log-outputs`), llama-server (`-v`)."""

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

from specds.corpora.messages import parsed

_REPR = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_VLLM = re.compile(
    rf"(?:Received request|Request) (?P<asked>\S+?):? (?:details: )?prompt: (?P<prompt>{_REPR})"
    rf"|Generated response (?P<answered>\S+?)(?: \(streaming (?P<part>\w+)\))?: "
    rf"output: (?P<output>{_REPR})(?P<rest>[^\n]*)"
)
_LLAMA_SERVER = re.compile(r"(?<!converted )\b(request|response):\s+(?=\{)")


def logged_requests(text: str) -> list[dict[str, Any]]:
    """Return the requests that a server logged, as rows; none if it is another text."""
    if "Received request " in text or "Generated response " in text:
        return [*_of_vllm(text)]
    return [*_of_llama_server(text)] if "log_server_r" in text else []


def _of_vllm(text: str) -> Iterator[dict[str, Any]]:
    """Yield the text of each request: the prompt, as the template wrote it, and the answer."""
    texts: dict[str, str] = {}
    answers: dict[str, str] = {}
    for found in _VLLM.finditer(text):
        if found["asked"]:
            texts[found["asked"]] = _value(found["prompt"])
            continue
        name, output = found["answered"], _value(found["output"])
        is_part = found["part"] == "delta"
        answers[name] = answers.get(name, "") + output if is_part else output
    for name in {**texts, **answers}:
        yield {"text": texts.get(name, "") + answers.get(name, "")}


def _value(literal: str) -> str:
    try:
        return str(ast.literal_eval(literal))
    except (ValueError, SyntaxError):
        return ""


def _of_llama_server(text: str) -> Iterator[dict[str, Any]]:
    decoder, row = json.JSONDecoder(), dict[str, Any]()
    for found in _LLAMA_SERVER.finditer(text):
        try:
            value, _ = decoder.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            continue
        if found[1] == "request" and row:
            yield _completed(row)
            row = {}
        row[found[1]] = value
    if row:
        yield _completed(row)


def _completed(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a request; that of a completion is its text."""
    request, answer = parsed(row.get("request")) or {}, parsed(row.get("response")) or {}
    if isinstance(request.get("prompt"), str):
        choice: dict[str, Any] = next(iter(answer.get("choices") or ()), {})
        return {"text": request["prompt"] + str(answer.get("content") or choice.get("text") or "")}
    return row
