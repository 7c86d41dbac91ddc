"""Logs of agents: each format gives the text that the template writes for the same messages."""

import json
import pickle

import pytest

from chat_templates import REAL, WITHOUT_CALLS, WRITTEN
from specds.corpora import CorpusError, CorpusOptions, Document, open_corpus, render_with
from specds.corpora.messages import Conversation
from specds.corpora.rendering import missing, plain
from specds.corpora.requests import conversation_of, session_conversation

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Genoa", "Turin"]},
        "days": {"type": "integer"},
    },
}
WEATHER = {"name": "get_weather", "description": "Weather of a city", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": WEATHER}]
ARGUMENTS = [{"city": "Genoa", "days": 2}, {"city": 'the "old" Turin', "days": 1}]
RESULTS = ['{"sky": "clear"}', "rain\nand wind"]
SYSTEM, ASKED, THOUGHT, REPLY = "Be brief.", "Which city is dry?", "Two lookups.", "Genoa is dry."


def call(number):
    function = {"name": "get_weather", "arguments": ARGUMENTS[number]}
    return {"id": f"call{number:05d}", "type": "function", "function": function}


def result(number):
    return {"role": "tool", "content": RESULTS[number], "tool_call_id": f"call{number:05d}"}


def messages(*, reasons=True, says="I look."):
    first = {"role": "assistant", "content": says, "tool_calls": [call(0)]}
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": ASKED},
        first | ({"reasoning_content": THOUGHT} if reasons else {}),
        result(0),
        {"role": "assistant", "content": "", "tool_calls": [call(1)]},
        result(1),
        {"role": "assistant", "content": REPLY},
    ]


def openai(number):
    function = {"name": "get_weather", "arguments": json.dumps(ARGUMENTS[number])}
    return {"id": f"call{number:05d}", "type": "function", "function": function}


ANSWER = {"role": "assistant", "content": REPLY, "refusal": None}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": [{"type": "text", "text": ASKED}]},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": THOUGHT,
            "tool_calls": [openai(0)],
        },
        result(0),
        {"role": "assistant", "content": None, "tool_calls": [openai(1)]},
        result(1),
    ],
    "tools": TOOLS,
}
COMPLETION = {"id": "c", "object": "chat.completion", "choices": [{"index": 0, "message": ANSWER}]}

RESPONSES = {
    "model": "m",
    "instructions": SYSTEM,
    "tools": [{"type": "function", **WEATHER}],
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": ASKED}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": THOUGHT}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {
            "type": "function_call",
            "call_id": "call00000",
            "name": "get_weather",
            "arguments": json.dumps(ARGUMENTS[0]),
        },
        {"type": "function_call_output", "call_id": "call00000", "output": RESULTS[0]},
        {
            "type": "function_call",
            "call_id": "call00001",
            "name": "get_weather",
            "arguments": json.dumps(ARGUMENTS[1]),
        },
        {"type": "function_call_output", "call_id": "call00001", "output": RESULTS[1]},
    ],
}
OUTPUT = [
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": REPLY}]}
]


def block(number):
    return {
        "type": "tool_use",
        "id": f"call{number:05d}",
        "name": "get_weather",
        "input": ARGUMENTS[number],
    }


def blocks_of_result(number, content):
    return [{"type": "tool_result", "tool_use_id": f"call{number:05d}", "content": content}]


FIRST_BLOCKS = [
    {"type": "thinking", "thinking": THOUGHT, "signature": "x"},
    {"type": "text", "text": "I look."},
    block(0),
]
ANTHROPIC = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": SYSTEM}],
    "tools": [
        {"name": "get_weather", "description": WEATHER["description"], "input_schema": PARAMETERS}
    ],
    "messages": [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": FIRST_BLOCKS},
        {"role": "user", "content": blocks_of_result(0, RESULTS[0])},
        {"role": "assistant", "content": [block(1)]},
        {
            "role": "user",
            "content": blocks_of_result(1, [{"type": "text", "text": RESULTS[1]}]),
        },
    ],
}
MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": REPLY}]}

SHAREGPT = {
    "system": SYSTEM,
    "tools": json.dumps([WEATHER]),
    "conversations": [
        {"from": "human", "value": ASKED},
        {
            "from": "function_call",
            "value": json.dumps({"name": "get_weather", "arguments": ARGUMENTS[0]}),
        },
        {"from": "observation", "value": RESULTS[0]},
        {
            "from": "function_call",
            "value": json.dumps({"name": "get_weather", "arguments": ARGUMENTS[1]}),
        },
        {"from": "observation", "value": RESULTS[1]},
        {"from": "gpt", "value": REPLY},
    ],
}

FORMATS = {
    "OpenAI chat": {"messages": [*CHAT["messages"], ANSWER], "tools": TOOLS},
    "OpenAI chat, functions": {"messages": messages(), "functions": [WEATHER]},
    "OpenAI batch": {"custom_id": "1", "body": {**CHAT, **COMPLETION}},
    "OpenAI Responses": {**RESPONSES, "output": OUTPUT},
    "OpenAI Responses, a log": {"request": RESPONSES, "response": {"output": OUTPUT}},
    "Anthropic": {**ANTHROPIC, "messages": [*ANTHROPIC["messages"], MESSAGE]},
    "Anthropic, a log": {"request": {"body": ANTHROPIC}, "response": {"body": MESSAGE}},
    "LiteLLM": {
        "id": "1",
        "call_type": "acompletion",
        "messages": CHAT["messages"],
        "response": COMPLETION,
        "model_parameters": {"temperature": 0.0, "tools": TOOLS},
    },
    "LiteLLM, spend logs": {
        "request_id": "1",
        "messages": json.dumps(CHAT["messages"]),
        "response": json.dumps(COMPLETION),
        "model_parameters": json.dumps({"tools": TOOLS}),
    },
    "vLLM and llama-server, a proxy's log": {
        "method": "POST",
        "request": json.dumps(CHAT),
        "response": json.dumps(COMPLETION),
    },
    "datasets, agent traces": {
        "harness": "pi",
        "session_id": "1",
        "prompt": ASKED,
        "messages": messages(),
        "tools": TOOLS,
        "metadata": {"model": "m"},
        "trace": [{"type": "session", "version": 3}],
    },
    "ShareGPT": SHAREGPT,
}


def expected(name):
    return messages() if name != "ShareGPT" else messages(reasons=False, says="")


@pytest.mark.parametrize("name", FORMATS)
def test_formats_give_the_same_messages(name):
    talk = conversation_of(json.loads(json.dumps(FORMATS[name])))
    assert talk.messages == expected(name)
    assert talk.tools == TOOLS
    assert talk.unread == set()


TEMPLATES = {**WRITTEN, **{name: path.read_text("utf-8") for name, path in REAL.items()}}
FAMILIES = [
    *WRITTEN,
    *(name for name in REAL if not name.startswith(("google-gemma-2", "fireworks", "llama-cpp"))),
]


def template_text(template, given, tools):
    """Return the text of transformers."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    texts, _ = utils.render_jinja_template([given], tools, chat_template=template, **named)
    return texts[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_text_equals_what_the_template_writes(tmp_path, demo_tokenizer, family):
    template = TEMPLATES[family]
    tokenizer = pickle.loads(pickle.dumps(demo_tokenizer))
    tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token = template, "<s>", "</s>"
    render = render_with(tokenizer)
    if render._form is None:
        pytest.skip("the template writes no calls")
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in FORMATS.values()))
    read = list(open_corpus(str(path), render=pickle.loads(pickle.dumps(render))))
    whole = [item for item in read if not item.name.endswith("(arguments as text)")]
    for item, name in zip(whole, FORMATS, strict=True):
        given = expected(name)
        for message in given:
            if "reasoning_content" in message:
                message["thinking"] = message["reasoning_content"]
            for each in message.get("tool_calls", ()) if render._form == "json" else ():
                each["function"] = {
                    "name": "get_weather",
                    "arguments": json.dumps(each["function"]["arguments"]),
                }
        if family == "openai-gpt-oss-120b":  # it rejects reasoning next to content
            given = [
                {k: v for k, v in m.items() if k not in ("thinking", "reasoning_content")}
                for m in given
            ]
        assert item.text == template_text(template, given, TOOLS), name
        assert missing(conversation_of(FORMATS[name]), item.text).isdisjoint({"tool_calls"})


def test_calls_are_in_both_forms_where_they_differ(demo_tokenizer):
    raw = messages()
    for each in (raw[2], raw[4]):
        function = each["tool_calls"][0]["function"]
        each["tool_calls"] = [openai(0 if each is raw[2] else 1)]
        assert function["arguments"] != each["tool_calls"][0]["function"]["arguments"]
    for family, differs in {
        "chatml": True,
        "either": False,
        "xml": False,
        "printed": False,
    }.items():
        render = render_with(with_template(demo_tokenizer, WRITTEN[family]))
        found = render.calls_with_text(messages(), TOOLS)
        assert bool(found) is differs, family
        text = template_text(WRITTEN["chatml"], raw, TOOLS)
        assert all(part in text for part in found.split("\n") if found)


def log(folder, *rows, name="log.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def with_template(tokenizer, template):
    tokenizer = pickle.loads(pickle.dumps(tokenizer))
    tokenizer.chat_template = template
    return tokenizer


def test_template_without_calls_is_an_error_that_names_it(tmp_path, demo_tokenizer):
    path = log(tmp_path, FORMATS["OpenAI chat"], {"messages": messages()[:2]})
    tokenizer = with_template(demo_tokenizer, WITHOUT_CALLS)
    tokenizer.name_or_path = "some/model"
    message = (
        r"log.jsonl:1: the chat template of `some/model` writes no tool calls: .*--chat-template"
    )
    with pytest.raises(CorpusError, match=message):
        list(open_corpus(path, render=render_with(tokenizer)))
    skip = CorpusOptions(on_bad_row="skip")
    read = list(open_corpus(path, skip, render=render_with(tokenizer)))
    assert [isinstance(item, Document) for item in read] == [False, True]
    render = render_with(tokenizer, WRITTEN["chatml"], "other.jinja")
    assert "get_weather" in next(iter(open_corpus(path, render=render))).text


def test_fields_that_the_text_lacks_are_counted(demo_tokenizer):
    talk = conversation_of(FORMATS["OpenAI chat"])
    talk.messages[1]["name"] = "ann"
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    talk.add({"role": "user", "content": [{"type": "text", "text": "and this?"}, image]})
    for family, lacks in {
        "chatml": {"tool_call_id", "name", "content: image_url"},
        "whole": {"name", "content: image_url"},
        "headers": {"tool_call_id", "name", "content: image_url", "reasoning_content", "content"},
    }.items():
        render = render_with(with_template(demo_tokenizer, WRITTEN[family]))
        found = missing(talk, render(talk.messages, talk.tools))
        assert found - {"tool_call_id"} == lacks - {"tool_call_id"}, family
    assert missing(talk, plain(talk.messages)) >= {"tools", "name"}


def test_messages_without_a_template_keep_reasoning_and_calls():
    text = plain(messages())
    assert f'{THOUGHT}\nI look.\n{{"name": "get_weather", "arguments": {{"city": "Genoa"' in text


CLAUDE_CODE = [
    {"type": "summary", "summary": "Weather", "leafUuid": "z"},
    {"type": "user", "sessionId": "s", "uuid": "a", "message": {"role": "user", "content": ASKED}},
    *(
        {
            "type": "assistant",
            "sessionId": "s",
            "uuid": str(number),
            "message": {"id": "m1", "role": "assistant", "content": [part]},
        }
        for number, part in enumerate(FIRST_BLOCKS)
    ),
    {
        "type": "user",
        "sessionId": "s",
        "message": {"role": "user", "content": blocks_of_result(0, RESULTS[0])},
        "toolUseResult": RESULTS[0],
    },
    {"type": "progress", "sessionId": "s", "data": {}},
    {
        "type": "assistant",
        "sessionId": "s",
        "message": {"id": "m2", "role": "assistant", "content": [block(1)]},
    },
    {
        "type": "user",
        "sessionId": "s",
        "message": {"role": "user", "content": blocks_of_result(1, RESULTS[1])},
    },
    {"type": "assistant", "sessionId": "s", "message": {"id": "m3", **MESSAGE}},
]
CODEX = [
    {
        "timestamp": "t",
        "type": "session_meta",
        "payload": {"id": "s", "base_instructions": {"text": SYSTEM}},
    },
    *(
        {"timestamp": "t", "type": "response_item", "payload": {"type": "message", **item}}
        for item in [*RESPONSES["input"], *OUTPUT]
    ),
    {"timestamp": "t", "type": "event_msg", "payload": {"type": "token_count"}},
]


def pi(number, **message):
    return {"type": "message", "id": str(number), "parentId": str(number - 1), "message": message}


def pi_call(number):
    return {
        "type": "toolCall",
        "id": f"call{number:05d}",
        "name": "get_weather",
        "arguments": ARGUMENTS[number],
    }


def pi_result(number):
    known = {"toolCallId": f"call{number:05d}", "toolName": "get_weather", "isError": False}
    return {"role": "toolResult", "content": [{"type": "text", "text": RESULTS[number]}], **known}


PI = [
    {"type": "session", "version": 3, "id": "s", "cwd": "/"},
    {"type": "model_change", "id": "0", "parentId": None, "modelId": "m"},
    pi(1, role="user", content=[{"type": "text", "text": ASKED}]),
    pi(2, role="assistant", content=[*FIRST_BLOCKS[:2], pi_call(0)]),
    pi(3, **pi_result(0)),
    pi(4, role="assistant", content=[pi_call(1)]),
    pi(5, **pi_result(1)),
    pi(6, role="assistant", content=[{"type": "text", "text": REPLY}]),
]


@pytest.mark.parametrize(
    ("rows", "has_system", "events"),
    [
        (CLAUDE_CODE, False, {"event: summary", "event: progress"}),
        (CODEX, True, {"event: event_msg"}),
        (PI, False, {"event: session", "event: model_change"}),
    ],
)
def test_session_of_a_coding_agent_is_one_conversation(tmp_path, rows, has_system, events):
    talk = session_conversation(rows)
    known = [{k: v for k, v in m.items() if k != "name"} for m in talk.messages]
    assert known == messages()[not has_system :]
    assert talk.unread == events
    *_, document = open_corpus(log(tmp_path, *rows))
    assert document.text == plain(talk.messages)
    assert document.num_bytes == (tmp_path / "log.jsonl").stat().st_size
    assert set(document.unwritten) >= events
    trace = {"harness": "x", "session_id": "s", "trace": rows}
    assert conversation_of(trace).messages == talk.messages


def test_sessions_of_one_file_are_separate(tmp_path):
    def event(session, text, **more):
        return {
            "type": "user",
            "sessionId": session,
            "message": {"role": "user", "content": text},
            **more,
        }

    rows = [event("a", "1"), event("b", "2"), event("a", "3"), event("a", "4", isSidechain=True)]
    assert [item.text for item in open_corpus(log(tmp_path, *rows))] == ["1\n3", "2", "4"]


VLLM = """\
INFO 11-29 00:00:00 [logger.py:39] Received request cmpl-1: prompt: '<|user|>It\\'s \\n"1"', params: SamplingParams(n=1), prompt_token_ids: [1], lora_request: None.
(APIServer pid=1) INFO 11-29 00:00:01 [logger.py:39] Received request chatcmpl-2: params: SamplingParams(n=1), lora_request: None.
(APIServer pid=1) DEBUG 11-29 00:00:01 [logger.py:50] Request chatcmpl-2 details: prompt: "two's", prompt_token_ids: [2], prompt_embeds shape: None.
INFO 11-29 00:00:02 [logger.py:70] Generated response chatcmpl-2 (streaming delta): output: ' an', output_token_ids: [3], finish_reason: None
INFO 11-29 00:00:03 [logger.py:70] Generated response cmpl-1: output: ' yes', output_token_ids: [3], finish_reason: stop
INFO 11-29 00:00:03 [logger.py:70] Generated response chatcmpl-2 (streaming delta): output: 'swer', output_token_ids: [4], finish_reason: stop
"""  # fmt: skip  # noqa: E501


def test_requests_of_a_log_of_vllm(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(VLLM)
    read = list(open_corpus(str(path)))
    assert [item.text for item in read] == ['<|user|>It\'s \n"1" yes', "two's answer"]
    assert read[0].name == "server.log:1"


def test_requests_of_a_log_of_llama_server(tmp_path):
    path = tmp_path / "server.log"
    body = json.dumps({"prompt": "def f(", "n_predict": 4})
    path.write_text(
        "main: server is listening\n"
        "srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 200\n"
        f"srv  log_server_r: request:  {json.dumps(CHAT, indent=1)}\n"
        f"srv  log_server_r: response: {json.dumps(COMPLETION)}\n"
        f"srv  log_server_r: request:  {body}\n"
        f"srv  log_server_r: response: {json.dumps({'content': 'x):'})}\n"
    )
    read = list(open_corpus(str(path)))
    assert [item.text for item in read] == [plain(messages()), "def f(x):"]


def test_another_log_is_one_text(tmp_path):
    path = tmp_path / "build.log"
    path.write_text("line 1\nline 2\n")
    assert [item.text for item in open_corpus(str(path))] == ["line 1\nline 2\n"]


def test_roles_get_one_name():
    talk = Conversation()
    for role in ("system", "tool", "chatgpt", "observation"):
        talk.add({"from": role, "value": role})
    assert [m["role"] for m in talk.messages] == ["system", "tool", "assistant", "tool"]
    assert plain([]) == ""
