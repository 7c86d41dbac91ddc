"""Bodies that are wrong, and those that editors send."""

import json
import urllib.error
import urllib.request
from contextlib import suppress

import pytest

from serving import post

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "def add(a, b):"}]
# Each object must have another one: no text ends.
ENDLESS = {
    "$defs": {"node": {"type": "object", "required": ["next"], "additionalProperties": False,
                       "properties": {"next": {"$ref": "#/$defs/node"}}}},
    "$ref": "#/$defs/node",
}  # fmt: skip
WRONG = [
    (CHAT, b"{", "not JSON"),
    (CHAT, b"[" * 100_000, "not JSON"),
    (CHAT, b"\xff\xfe", "not JSON"),
    (CHAT, [], "JSON object"),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": "text"}, "messages"),
    (CHAT, {"messages": [{"role": "king", "content": "a"}]}, "role"),
    (CHAT, {"messages": [{"role": "user"}]}, "content"),
    (CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}, "text"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not text"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [1]}]}, "tool_calls"),
    (CHAT, {"messages": HELLO * 2049}, "at most 2,048"),
    (CHAT, {"temperature": "hot"}, "temperature"),
    (CHAT, {"temperature": -1}, "temperature"),
    (CHAT, {"temperature": True}, "temperature"),
    (CHAT, {"top_p": 2}, "top_p"),
    (CHAT, {"n": 100}, "n must"),
    (CHAT, {"max_tokens": 1.5}, "max_tokens"),
    (CHAT, {"stop": 5}, "stop"),
    (CHAT, {"stop": ["a"] * 20}, "stop"),
    (CHAT, {"stream": "yes"}, "stream"),
    (CHAT, {"logit_bias": {"a": 1}}, "logit_bias"),
    (CHAT, {"logit_bias": {"999999999": 1}}, "logit_bias"),
    (CHAT, {"top_logprobs": 50, "logprobs": True}, "top_logprobs"),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format"),
    (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
        "schema",
    ),
    (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"schema": ENDLESS}}},
        "too large: parser error: Too many items",
    ),
    (CHAT, {"tools": "all"}, "tools"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools"),
    (CHAT, {"tool_choice": "required"}, "tool_choice"),
    (
        CHAT,
        {
            "tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": 5}}}],
            "tool_choice": "required",
        },
        "tools",
    ),
    (CHAT, {"prediction": "text"}, "prediction"),
    (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    (CHAT, {"user": 5}, "user"),
    (TEXT, {"prompt": 5}, "prompt"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": [[1, -1]]}, "prompt"),
    (TEXT, {"prompt": [10**9]}, "prompt"),
    (TEXT, {"prompt": "a", "logprobs": True}, "logprobs"),
    ("/tokenize", {"content": 5}, "content"),
    ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ("/detokenize", [], "tokens"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_body_is_refused_with_the_reason(address, number):
    path, body, reason = WRONG[number]
    if path == CHAT and isinstance(body, dict) and body:
        body = {"messages": HELLO, **body}
    status, answer = post(address, path, body)
    assert status == 400
    assert {*answer["error"]} == {"message", "type", "param", "code"}
    assert reason in answer["error"]["message"] or reason == answer["error"]["param"]


def test_unknown_fields_are_ignored_with_a_line(address, caplog):
    status, _ = post(address, CHAT, {"messages": HELLO, "max_tokens": 2, "dry_multiplier": 1})
    assert status == 200
    assert "'dry_multiplier'" in caplog.text


def test_a_body_that_is_too_long(address):
    body = b'{"messages": "' + b"a" * (5 << 20) + b'"}'
    # The server may answer before all of it was sent.
    with suppress(ConnectionError, urllib.error.URLError):
        assert post(address, CHAT, body)[0] == 413


# As Continue, Cline and Zed send them, with short texts.
TOOL = {"type": "function", "function": {"name": "read_file", "description": "Read.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}  # fmt: skip
EDITORS = {
    "continue chat": (CHAT, {"model": "tiny", "max_tokens": 4, "stream": True, "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "def add(a, b):"}]}]}),
    "continue autocomplete": (TEXT, {"model": "tiny", "prompt": "def add(", "max_tokens": 4,
        "temperature": 0.01, "stop": ["\n\n", "/src/", "```"], "stream": True,
        "frequency_penalty": 0, "presence_penalty": 0}),
    "cline": (CHAT, {"model": "tiny", "temperature": 0, "stream": True, "max_tokens": 4,
        "stream_options": {"include_usage": True}, "tools": [TOOL], "tool_choice": "auto",
        "parallel_tool_calls": False, "messages": [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": [{"type": "text", "text": "<task>\nadd\n</task>"},
                                     {"type": "text", "text": "<environment_details>"}]}]}),
    "zed": (CHAT, {"model": "tiny", "stream": True, "max_completion_tokens": 4, "stop": [],
        "temperature": 1.0, "tools": [TOOL], "parallel_tool_calls": False,
        "prompt_cache_key": "thread", "messages": [
        {"role": "system", "content": [{"type": "text", "text": "You are an agent."}]},
        {"role": "user", "content": [{"type": "text", "text": "add"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "x"}]}]}),
}  # fmt: skip


@pytest.mark.parametrize("editor", EDITORS)
def test_bodies_of_editors(address, editor):
    path, body = EDITORS[editor]
    request = urllib.request.Request(address + path, json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = [line[6:] for line in answer.read().decode().splitlines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    reasons = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
    assert reasons[-1] in ("length", "stop", "tool_calls")
    assert not any(reasons[:-1])


def test_tokens_and_their_texts(address, served_model):
    _, tokenizer = served_model
    for body in ({"content": "def add(a, b):"}, {"prompt": "def add(a, b):"}):
        status, answer = post(address, "/tokenize", body)
        assert (status, answer["tokens"]) == (200, tokenizer.encode("def add(a, b):"))
    _, of_chat = post(address, "/tokenize", {"messages": HELLO})
    assert of_chat["tokens"] == tokenizer.apply_chat_template(HELLO)
    assert (
        post(address, "/detokenize", {"tokens": answer["tokens"]})[1]["content"] == "def add(a, b):"
    )


def test_a_model_that_cannot_fill_in_the_middle_says_so(address):
    infill = {"input_prefix": "def add(", "input_suffix": "\n", "prompt": "a", "n_predict": 4}
    for path, body in (("/infill", infill), (TEXT, {"prompt": "a", "suffix": "b"})):
        status, answer = post(address, path, body)
        assert (status, "middle" in answer["error"]["message"]) == (501, True)


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://example.org"}, {"Host": "example.org"}, {"Origin": "null"}]
)
def test_pages_of_other_sites_are_refused(address, headers):
    request = urllib.request.Request(f"{address}/v1/models", headers=headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value as error:
        assert error.code == 403


def test_the_page_loads_nothing(address):
    with urllib.request.urlopen(f"{address}/") as answer:
        page, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "{{" not in page
    assert "specds_sources" in page
    assert "drawLegend" in page


def test_a_stream_with_the_sources_of_its_tokens(address):
    body = {"messages": HELLO, "max_tokens": 30, "stream": True, "specds_sources": True}
    request = urllib.request.Request(address + CHAT, json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        lines = [line[6:] for line in answer.read().splitlines() if line.startswith(b"data: {")]
    chunks = [json.loads(line) for line in lines]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    tokens = [token for c in chunks for token in c.get("specds_sources", ())]
    assert "".join(piece for piece, _ in tokens) == text
    assert any(source for _, source in tokens)
    assert 0 < chunks[-1]["specds_passes"] <= 30


def test_routes_that_are_not_there(address):
    assert post(address, "/v1/nothing", {})[0] == 404
    assert post(address, "/v1/models", {})[0] == 405
    assert post(address, "/chat/completions", {"messages": HELLO, "max_tokens": 1})[0] == 200
