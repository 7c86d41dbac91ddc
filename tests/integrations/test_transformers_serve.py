"""Predictions in `transformers serve`, whose handler is replaced by one of the same shape."""

import asyncio
import json
import sys
from types import SimpleNamespace

import pytest

from specds.integrations import transformers_serve

TEXT, OUTPUT = "the text to edit", "the text to read"
PREDICTION = {"type": "content", "content": [{"type": "text", "text": TEXT}]}


class Response:
    def __init__(self, content, status_code, headers=None, media_type=None):
        self.status_code = status_code
        self.body = content if isinstance(content, bytes) else json.dumps(content).encode()


@pytest.fixture
def serve(monkeypatch):
    """Return a call of the handler, whose configurations are kept; tokens are bytes."""
    configs = []

    class ChatCompletionHandler:
        _unused_fields = frozenset({"prediction", "user"})

        def _resolve_model(self, body):
            encode = lambda text, add_special_tokens: [*text.encode()]  # noqa: E731
            return "name", None, SimpleNamespace(encode=encode)

        def _build_generation_config(self, body, *about, use_cb=False):
            return SimpleNamespace()

        async def handle_request(self, body, request_id):
            configs.append(self._build_generation_config(body, None, use_cb=False))
            usage = {"completion_tokens": len(OUTPUT)}
            if not body.get("stream"):
                choice = {"message": {"content": OUTPUT}}
                return Response({"choices": [choice], "usage": usage}, 200)
            parts = [{"choices": [{"delta": {"content": token}}]} for token in OUTPUT]
            parts += [{"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage}]
            events = [f"data: {json.dumps(part)}\n\n" for part in parts]

            async def streamed():
                for part in (events[0], "".join(events[1:]), "data: [DONE]\n\n"):
                    yield part

            return SimpleNamespace(body_iterator=streamed())

    module = SimpleNamespace(ChatCompletionHandler=ChatCompletionHandler)
    monkeypatch.setitem(sys.modules, transformers_serve._SERVING, module)
    monkeypatch.setitem(sys.modules, "fastapi.responses", SimpleNamespace(Response=Response))

    def ask(**body):
        answer = asyncio.run(ChatCompletionHandler().handle_request(body, "id"))
        if not body.get("stream"):
            return json.loads(answer.body)

        async def parts():
            return "".join([part async for part in answer.body_iterator])

        return asyncio.run(parts())

    ask.handler, ask.configs = ChatCompletionHandler, configs
    return ask


def counts(answer):
    return [*answer["usage"]["completion_tokens_details"].values()]


def test_prediction_is_drafted_and_in_usage(serve):
    plain = [serve(), serve(stream=True)]
    for _ in range(2):
        transformers_serve.register()
    assert [serve(), serve(stream=True)] == plain
    assert not any(map(vars, serve.configs))
    assert counts(serve(prediction=PREDICTION)) == [14, 2]
    *events, last, done, end = serve(prediction=PREDICTION, stream=True).split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    events = [json.loads(event.removeprefix("data: ")) for event in (*events, last)]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content", "") for delta in deltas) == OUTPUT
    assert counts(events[-1]) == [14, 2]
    assert [*map(vars, serve.configs[-2:])] == 2 * [{"specds_predicted_output": TEXT}]
    assert serve.handler._unused_fields == {"user"}
    assert serve(prediction=3)["error"]["param"] == "prediction"


@pytest.mark.parametrize("name", transformers_serve.NEEDED)
def test_server_starts_with_one_warning_if_a_name_moved(serve, name, monkeypatch, caplog):
    monkeypatch.delattr(serve.handler, name.rpartition(".")[2])
    before = dict(vars(serve.handler))
    transformers_serve.register()
    assert dict(vars(serve.handler)) == before
    [record] = caplog.records
    assert name in record.getMessage()


def test_other_processes_are_left_alone(serve, monkeypatch):
    monkeypatch.delitem(sys.modules, transformers_serve._SERVING)
    before = dict(vars(serve.handler))
    transformers_serve.register()
    assert dict(vars(serve.handler)) == before
