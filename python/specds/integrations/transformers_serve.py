"""Predicted outputs of the OpenAI API in `transformers serve`.

    specds export-generate ./by-specds --into ./my-model
    transformers serve --trust-remote-code ./my-model

The server has no middleware, so the exported program calls `register` when its model is loaded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from specds.integrations.adapter import Adapter, IncompatibleError, resolve
from specds.integrations.openai import INVALID, MAX_CHARS, TOO_LONG, add_counts, text_of
from specds.models.tool_calls import example_tokens

_SERVING = "transformers.cli.serving.chat_completion"
NEEDED = tuple(
    f"{_SERVING}:ChatCompletionHandler.{name}"
    for name in ("handle_request", "_build_generation_config", "_resolve_model", "_unused_fields")
)
"""Names of transformers that `register` uses."""


def register() -> None:
    """Let chat completions have `prediction`, where this process is a `transformers serve`."""
    if _SERVING not in sys.modules:
        return
    try:
        _wrap(resolve(NEEDED[0].rpartition(".")[0]), *map(resolve, NEEDED))
    except IncompatibleError as error:
        Adapter.log.warning("specds ignores `prediction` in this version: %s", error)


def _wrap(handler: Any, handle: Any, build: Any, _: Any, unused: Any) -> None:
    if handle.__module__ == __name__:  # another model of this process has wrapped it
        return

    def build_generation_config(self: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        config = build(self, body, *args, **kwargs)
        if body.get("prediction") is not None:
            config.specds_predicted_output = text_of(body["prediction"])
        elif body.get("tools"):  # only drafts depend on them
            _, _, processor = self._resolve_model(body)
            tokenizer = getattr(processor, "tokenizer", processor)
            calls = example_tokens(tokenizer, body["tools"])
            config.specds_predicted_output = calls or None
        return config

    async def handle_request(self: Any, body: Any, request_id: str) -> Any:
        prediction = body.get("prediction")
        if prediction is None:
            return await handle(self, body, request_id)
        text = text_of(prediction)
        if text is None or len(text) > MAX_CHARS:
            fault = INVALID if text is None else TOO_LONG
            return resolve("fastapi.responses:Response")(fault, 400, None, "application/json")
        answer = await handle(self, body, request_id)
        _, _, processor = self._resolve_model(body)
        return _counted(answer, text, getattr(processor, "tokenizer", processor).encode)

    handler.handle_request, handler._build_generation_config = (
        handle_request,
        build_generation_config,
    )
    handler._unused_fields = unused - {"prediction"}


def _counted(answer: Any, predicted: str, encode: Callable[..., list[int]]) -> Any:
    """Return an answer, streamed or not, whose `usage` has the tokens of the prediction."""
    said: list[str] = []

    def changed(text: str | bytes) -> str:
        part = json.loads(text)
        for choice in part.get("choices", ()):
            said.append((choice.get("message") or choice.get("delta") or {}).get("content") or "")
        if part.get("usage"):
            texts = (predicted, "".join(said))
            ids, output = (encode(each, add_special_tokens=False) for each in texts)
            add_counts(part["usage"], ids, [output])
        return json.dumps(part)

    async def events(parts: AsyncIterator[str]) -> AsyncIterator[str]:
        async for part in parts:
            lines = (line.partition("data: ") for line in part.split("\n"))
            yield "\n".join(
                f"{name}{found}{changed(of) if of[:1] == '{' else of}" for name, found, of in lines
            )

    if hasattr(answer, "body_iterator"):
        answer.body_iterator = events(answer.body_iterator)
        return answer
    return type(answer)(json.loads(changed(answer.body)), answer.status_code)
