"""Predicted outputs in front of a small ASGI application."""

import asyncio
import json
from collections import deque

import pytest

from specds.integrations.openai import MAX_CHARS, MAX_IDS, PredictedOutput, count_accepted

CHAT = "/v1/chat/completions"
SGLANG = {"carrier": "custom_params", "ids_field": "return_output_ids_in_sglext"}
TEXT = "the text to edit"
PREDICTION = {"type": "content", "content": TEXT}
OUTPUT = list(b"the text to read")


TOOL = {"type": "function", "function": {"name": "go", "parameters": {
    "properties": {"to": {"enum": ["N", "S"]}, "far": {"type": "boolean"}}}}}  # fmt: skip


def written(messages):
    return "".join(
        f"{m['role']}:{m['content']}{json.dumps([c['function'] for c in m.get('tool_calls', [])])};"
        for m in messages
    )


class StubApp:
    """A server whose tokens are bytes; it keeps the requests that it received."""

    def __init__(self, status=200, more=None):
        self.seen, self.status, self.more = [], status, more or {}

    async def __call__(self, scope, receive, send):
        body, message = b"", {"more_body": True}
        while message["more_body"]:
            message = await receive()
            if message["type"] == "http.disconnect":  # what servers answer then is not sent
                return await send({"type": "http.response.start", "status": 500, "headers": []})
            body += message["body"]
        with pytest.raises(asyncio.TimeoutError):  # vLLM cancels when it receives a disconnect
            await asyncio.wait_for(receive(), 0.001)
        headers = dict(scope["headers"])
        assert int(headers.get(b"content-length", len(body))) == len(body)
        self.seen.append((scope["path"], body))
        status, kind, parts = 200, b"application/json", []
        if scope["path"].endswith("/tokenize"):
            status, asked = self.status, json.loads(body)
            text = asked["prompt"] if "prompt" in asked else written(asked["messages"])
            parts = [json.dumps({"tokens": list(text.encode())})]
        elif b'"stream": true' in body:
            kind, stream = b"text/event-stream", ""
            for token in OUTPUT:
                choice = {"index": 0, "delta": {"content": chr(token)}}
                choice |= {} if self.more else {"token_ids": [token]}
                stream += f"data: {json.dumps({'choices': [choice], 'usage': None})}\n\n"
            if self.more:
                stream += f"data: {json.dumps({'choices': [], 'usage': None, **self.more})}\n\n"
            usage = {"completion_tokens": len(OUTPUT)}
            stream += f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"
            parts = [stream[start : start + 7] for start in range(0, len(stream), 7)]
        else:
            choice = {"index": 0, "message": {"content": "é"}, "token_ids": OUTPUT}
            answer = {"choices": [choice], "usage": {}, "prompt_token_ids": [1], **self.more}
            parts = [json.dumps(answer, ensure_ascii=False)]
        size = str(sum(len(part.encode()) for part in parts)).encode()
        headers = [(b"content-type", kind)]
        headers += [] if kind.startswith(b"text") else [(b"Content-Length", size)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part.encode(), "more_body": True})
        await send({"type": "http.response.body"})


def ask(app, body, path=CHAT, piece=5, method="POST", server=None, **options):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    pieces = [body[start : start + piece] for start in range(0, len(body), piece)]
    requests = deque({"type": "http.request", "body": part, "more_body": True} for part in pieces)
    requests.append({"type": "http.request", "body": b"", "more_body": False})
    sent = []

    async def receive():
        return requests.popleft() if requests else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": []}
    asyncio.run((server or PredictedOutput(app, **options))(scope, receive, send))
    start, *parts = sent
    answer = b"".join(part.get("body", b"") for part in parts)
    assert int(dict(start["headers"]).get(b"content-length", len(answer))) == len(answer)
    return start["status"], answer


def counts(answer):
    details = answer["usage"]["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


PARTS = [{"type": "text", "text": TEXT[:5]}, {"type": "text", "text": TEXT[5:]}]


@pytest.mark.parametrize(
    "about",
    [
        {"prediction": PREDICTION},
        {"prediction": {"type": "content", "content": PARTS}},
        {"vllm_xargs": {"specds_predicted_output": TEXT}},
        {"vllm_xargs": {"specds_predicted_output": list(TEXT.encode())}},
    ],
)
def test_prediction_becomes_token_ids_and_usage(about):
    app = StubApp()
    status, answer = ask(app, {"model": "m", **about}, path=f"/root{CHAT}")
    path, body = app.seen[-1]
    received, answer = json.loads(body), json.loads(answer)
    assert (status, path) == (200, f"/root{CHAT}")
    assert received["vllm_xargs"]["specds_predicted_output"] == list(TEXT.encode())
    assert "prediction" not in received
    assert counts(answer) == (14, 2)
    assert answer["choices"] == [{"index": 0, "message": {"content": "é"}}]
    assert "prompt_token_ids" not in answer


def test_streamed_usage_has_the_tokens_of_the_prediction():
    _, answer = ask(StubApp(), {"stream": True, "prediction": PREDICTION})
    *chunks, last, done, end = answer.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    said = [json.loads(chunk.removeprefix("data: "))["choices"][0] for chunk in chunks]
    assert "".join(choice["delta"]["content"] for choice in said).encode() == bytes(OUTPUT)
    assert not any("token_ids" in choice for choice in said)
    assert counts(json.loads(last.removeprefix("data: "))) == (14, 2)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("more", [{}, {"cached_tokens_details": 1}])
def test_ids_of_sglang_are_counted_and_removed(is_streamed, more):
    app = StubApp(more={"sglext": {"output_ids": [OUTPUT], **more}})
    _, answer = ask(app, {"prediction": PREDICTION, "stream": is_streamed}, **SGLANG)
    received = json.loads(app.seen[-1][1])
    assert received["custom_params"] == {"specds_predicted_output": list(TEXT.encode())}
    assert received["return_output_ids_in_sglext"]
    assert "return_token_ids" not in received
    parts = [answer]
    if is_streamed:
        parts = [part.removeprefix(b"data: ") for part in answer.split(b"\n\n")[:-2]]
    events = [json.loads(part) for part in parts]
    assert counts(events[-1]) == (14, 2)
    assert [part["sglext"] for part in events if "sglext" in part] == ([more] if more else [])


@pytest.mark.parametrize(
    "prediction",
    ["text", {}, {"type": "content"}, {"type": "text", "content": "a"}, [1]]
    + [
        {"type": "content", "content": content}
        for content in (1, [1], [{"type": "image_url"}], "\ud800")
    ],
)
def test_invalid_prediction_is_status_400(prediction):
    app = StubApp()
    status, answer = ask(app, {"prediction": prediction})
    error = json.loads(answer)["error"]
    assert (status, app.seen) == (400, [])
    assert (error["type"], error["param"]) == ("invalid_request_error", "prediction")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"[1]",
        b"\xff",
        b"[" * 100_000,
        b'{"vllm_xargs": 3}',
        b'{"vllm_xargs": {"specds_predicted_output": 3}}',
        b'{"prediction": null}',
    ],
)
def test_other_bodies_reach_the_server_unchanged(body):
    app = StubApp()
    assert ask(app, body, piece=50_000)[0] == 200
    assert app.seen == [(CHAT, body)]


CALLS = b'{"name": "go", "arguments": {"to": "S", "far": true}}'


def test_tools_are_drafted_from_and_nothing_else_changes():
    app = StubApp()
    server = PredictedOutput(app)
    asked = {"model": "m", "tools": [TOOL], "vllm_xargs": {"specds_group": "g"}}
    for number in range(2):  # their calls are tokenized once
        status, answer = ask(app, asked, server=server)
        assert status == 200
        assert json.loads(answer) == json.loads(ask(StubApp(), {"model": "m"})[1])
        received = json.loads(app.seen[-1][1])
        calls = bytes(received["vllm_xargs"].pop("specds_predicted_output"))
        assert CALLS in calls
        assert received == asked
        assert len(app.seen) == 3 + number


def tool_with(*values):
    given = {"text": {"enum": [*values]}, "to": {"enum": [*range(99)]}}
    return {"type": "function", "function": {"name": "go", "parameters": {"properties": given}}}


class LongTokens(StubApp):
    """A server whose tokenizer writes many tokens for each message."""

    async def __call__(self, scope, receive, send):
        async def sends(message):
            if scope["path"].endswith("/tokenize") and "body" in message:
                asked = json.loads(self.seen[-1][1])
                tokens = [*range(len(asked["messages"]) * 3000)]
                message = {**message, "body": json.dumps({"tokens": [7, *tokens]}).encode()}
            await send(message)

        await super().__call__(scope, receive, sends)


def test_tokens_of_calls_are_limited_as_those_of_predictions():
    app = LongTokens()
    server = PredictedOutput(app)
    for number in range(9):
        ask(app, {"tools": [tool_with(f"v{number}")]}, server=server)
        calls = json.loads(app.seen[-1][1])["vllm_xargs"]["specds_predicted_output"]
        assert len(calls) == MAX_IDS < 127 * 3000
        assert sum(map(len, server._calls.values())) <= MAX_IDS


def test_calls_do_not_multiply_long_values():
    app, value = StubApp(), "v" * 100_000
    ask(app, {"tools": [tool_with(value)]})
    assert max(len(body) for path, body in app.seen if "tokenize" in path) < 6 * len(value)
    calls = json.loads(app.seen[-1][1])["vllm_xargs"]["specds_predicted_output"]
    assert bytes(calls).count(value.encode()) == 2
    app = StubApp()
    asked = {"tools": [tool_with("v" * MAX_CHARS)]}
    ask(app, asked)
    assert [json.loads(body) for _, body in app.seen] == [asked]


@pytest.mark.parametrize(
    "more",
    [
        {"tools": []},
        {"tools": 3},
        {"tools": [{"type": "web_search"}]},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"guided_regex": "a"},
        {"structured_outputs": {"regex": "a"}},
        {"vllm_xargs": {"specds_predicted_output": 3}},
    ],
)
def test_tools_with_a_grammar_or_without_a_function_are_not_drafted(more):
    app, body = StubApp(), json.dumps({"tools": [TOOL], **more}).encode()
    ask(app, body)
    assert app.seen == [(CHAT, body)]
    refusing = StubApp(status=400)
    assert ask(refusing, {"tools": [TOOL]})[0] == 200
    assert json.loads(refusing.seen[-1][1]) == {"tools": [TOOL]}


@pytest.mark.parametrize(
    "about",
    [
        {"prediction": {"type": "content", "content": "x" * (MAX_IDS + 1)}},
        {"prediction": {"type": "content", "content": "x" * (MAX_CHARS + 1)}},
        {"vllm_xargs": {"specds_predicted_output": [1] * (MAX_IDS + 1)}},
    ],
)
def test_prediction_that_is_too_long_is_status_400(about):
    app = StubApp()
    status, answer = ask(app, about, piece=1 << 20)
    assert status == 400
    assert "at most 262144 tokens" in json.loads(answer)["error"]["message"]
    assert all(path == "/tokenize" for path, _ in app.seen)


@pytest.mark.parametrize("ids", [[[1], [2]], [{}], ["1"], [True]])
def test_predicted_output_other_than_ids_reaches_the_server_unchanged(ids):
    app, body = StubApp(), json.dumps({"vllm_xargs": {"specds_predicted_output": ids}}).encode()
    assert ask(app, body)[0] == 200
    assert app.seen == [(CHAT, body)]


def test_other_routes_and_errors_are_unchanged():
    app = StubApp()
    asked = json.dumps({"prompt": "", "prediction": 1}).encode()
    ask(app, asked, path="/v1/embeddings")
    assert app.seen == [("/v1/embeddings", asked)]
    assert ask(StubApp(status=404), {"prediction": PREDICTION})[0] == 404


def test_request_that_the_server_rejects_unread_is_not_tokenized():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["path"])
        await send({"type": "http.response.start", "status": 401, "headers": []})

    assert ask(app, {"prediction": PREDICTION}) == (401, b"")
    assert seen == [CHAT]


def test_token_ids_stay_if_the_client_requests_them():
    _, answer = ask(StubApp(), {"prediction": PREDICTION, "return_token_ids": True})
    assert json.loads(answer)["choices"][0]["token_ids"] == OUTPUT


@pytest.mark.parametrize(
    ("predicted", "output", "expected"),
    [
        ("", "abc", 0),
        ("abc", "", 0),
        ("abcdef", "abcdef", 6),
        ("abcdef", "abXdef", 5),
        ("abcdef", "abef", 4),
        ("abcdef", "abXYcdef", 6),
        ("abcdef", "defabc", 6),
        ("abcdef", "abcdefabcdef", 6),
        ("aaaa", "aaaaaaaa", 4),
        ("abc", "xyz", 0),
    ],
)
def test_each_token_of_the_prediction_counts_once(predicted, output, expected):
    assert count_accepted(list(predicted.encode()), list(output.encode())) == expected
