"""Ollama's API by its own client."""

import json
import urllib.request

import ollama
import pytest

import specds
from serving import listening, make_served, post, tiny
from specds.serving.job import Update
from specds.serving.ollama import ChatReply, GenerateReply
from specds.serving.pieces import Piece
from specds.serving.requests import ApiRequest

MESSAGES = [{"role": "user", "content": "def add(a, b):"}]
OPTIONS = {"num_predict": 20, "num_ctx": 512, "temperature": 0}


@pytest.fixture(scope="module")
def of_ollama(address):
    with ollama.Client(address) as client:
        yield client


def alone(served_model, ids, **settings):
    model, tokenizer = served_model
    output = specds.generate(model, ids, max_nodes=0, **settings)
    return tokenizer.decode(output.sequences[0, len(ids) :], skip_special_tokens=True)


def of_chat(served_model, messages=MESSAGES, **settings):
    ids = served_model[1].apply_chat_template(messages, add_generation_prompt=True)
    return alone(served_model, ids, **settings)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat(of_ollama, served_model, stream):
    answer = of_ollama.chat("tiny", MESSAGES, options=OPTIONS, stream=stream)
    parts = [*answer] if stream else [answer]
    text = "".join(part.message.content for part in parts)
    assert text == of_chat(served_model, max_new_tokens=20)
    last = parts[-1]
    assert (last.done, last.done_reason, last.eval_count) == (True, "length", 20)
    assert last.total_duration == last.prompt_eval_duration + last.eval_duration > 0
    assert not any(part.done for part in parts[:-1])
    other = [{"role": "user", "content": "import json"}]
    assert text != of_ollama.chat("tiny", other, options=OPTIONS).message.content


def test_samples_and_stops(of_ollama, served_model):
    drawn = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "repeat_penalty": 1.1}
    options = {"num_predict": 20, "seed": 5, **drawn}
    repeated = {"repetition_penalty": drawn.pop("repeat_penalty")}
    text = of_ollama.chat("tiny", MESSAGES, options=options).message.content
    wanted = of_chat(served_model, max_new_tokens=20, do_sample=True, seed=5, **drawn, **repeated)
    assert text == wanted
    stopped = of_ollama.chat("tiny", MESSAGES, options={**options, "stop": [wanted[5:8]]})
    assert (stopped.message.content, stopped.done_reason) == (wanted[:5], "stop")


def test_generated_texts(of_ollama, served_model):
    _, tokenizer = served_model
    prompt = "def add(a, b):"
    raw = of_ollama.generate("tiny", prompt, raw=True, options=OPTIONS)
    assert raw.response == alone(served_model, tokenizer.encode(prompt), max_new_tokens=20)
    system = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    for messages, about in ((MESSAGES, {}), (system, {"system": "Be brief."})):
        answer = of_ollama.generate("tiny", prompt, options=OPTIONS, **about)
        assert answer.response == of_chat(served_model, messages, max_new_tokens=20)
    parts = [*of_ollama.generate("tiny", prompt, options=OPTIONS, stream=True)]
    assert "".join(part.response for part in parts) == of_chat(served_model, max_new_tokens=20)


def test_json_by_a_schema(of_ollama):
    schema = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}},
              "required": ["city"], "additionalProperties": False}  # fmt: skip
    answer = of_ollama.chat("tiny", MESSAGES, format=schema, options={"num_predict": 200})
    assert json.loads(answer.message.content)["city"] in ("Oslo", "Rome")
    plain = of_ollama.generate("tiny", "add", format="json", options={"num_predict": 60})
    assert plain.response.startswith("{")


def test_a_conversation_with_calls(of_ollama, served_model):
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    messages = [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "12 C", "tool_name": "weather"}]  # fmt: skip
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    answer = of_ollama.chat("tiny", messages, tools=[tool], options=OPTIONS)
    assert answer.eval_count == 20


def test_calls_and_thoughts_in_answers():
    pieces = [Piece("reasoning", "Hm."), Piece("content", "I look."),
              Piece("call", '{"city": "Oslo"}', "weather"), Piece("call", "{", "none")]  # fmt: skip
    reply = ChatReply(ApiRequest([]), [], "tiny", None)
    message = next(reply.chunks(0, Update(pieces)))["message"]
    found = ollama.Message(**message)
    assert (found.thinking, found.content) == ("Hm.", "I look.")
    assert [call.function.arguments for call in found.tool_calls] == [{"city": "Oslo"}, {}]
    assert GenerateReply(ApiRequest([]), [], "tiny", None).content(pieces) == {
        "response": "I look.", "thinking": "Hm.",
    }  # fmt: skip


def test_models(of_ollama, address):
    (model,) = of_ollama.list().models
    assert (model.model, model.details.format) == ("tiny", "gguf")
    shown = of_ollama.show("tiny")
    assert shown.capabilities == ["completion", "tools"]
    assert 1024 in shown.modelinfo.values()
    with urllib.request.urlopen(f"{address}/api/version") as answer:
        assert json.loads(answer.read())["version"].count(".") == 2


def test_a_request_without_a_prompt_asks_for_the_model(of_ollama):
    for answer in (of_ollama.generate("tiny"), of_ollama.chat("tiny")):
        assert (answer.done, answer.done_reason, answer.eval_count) == (True, "load", 0)


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("chat", [], "JSON object"),
        ("chat", {"messages": "text"}, "messages"),
        ("chat", {"messages": [5]}, "messages"),
        ("chat", {"messages": MESSAGES, "options": 5}, "options"),
        ("chat", {"messages": MESSAGES, "options": {"top_p": 2}}, "top_p"),
        ("chat", {"messages": [{"role": "user", "content": "a", "images": ["AA"]}]}, "text alone"),
        ("chat", {"messages": MESSAGES, "format": "xml"}, "response_format"),
        ("chat", {"messages": MESSAGES, "stream": "no"}, "stream"),
        ("generate", {"prompt": 5}, "messages[0]"),
        ("generate", {"prompt": 5, "raw": True}, "prompt"),
        ("generate", {"prompt": "a", "images": ["AA"]}, "text alone"),
        ("generate", {"prompt": "a", "suffix": "b"}, "middle"),
    ],
)
def test_a_wrong_body_is_refused_in_the_form_of_this_api(address, path, body, reason):
    status, answer = post(address, f"/api/{path}", body)
    assert status in (400, 501)
    assert {*answer} == {"error"}
    assert reason in answer["error"]


def test_a_model_without_a_template_continues_the_text(served_model):
    model, tokenizer = tiny(template=None)
    with listening(make_served(model, tokenizer)) as address, ollama.Client(address) as client:
        answer = client.generate("tiny", "def add(a, b):", options=OPTIONS)
        assert client.show("tiny").capabilities == ["completion"]
    ids = tokenizer.encode("def add(a, b):")
    assert answer.response == alone(served_model, ids, max_new_tokens=20)
