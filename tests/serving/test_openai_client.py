"""The server by OpenAI's own client: texts are those of `specds.generate` for the same prompt."""

import asyncio
import json
import math

import numpy as np
import openai
import pytest
from pydantic import BaseModel, Field

import specds

MESSAGES = [{"role": "user", "content": "def add(a, b):"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def alone(served_model):
    """The text of a chat alone, without the server: `alone(messages, **settings)`."""
    model, tokenizer = served_model

    def alone(messages=MESSAGES, **settings):
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        output = specds.generate(model, ids, max_nodes=0, **settings)
        return tokenizer.decode(output.sequences[0, len(ids) :], skip_special_tokens=True)

    return alone


def ask(client, messages=MESSAGES, **settings):
    return client.chat.completions.create(model="tiny", messages=messages, **settings)


def streamed(client, **settings):
    """The text of a stream, and its chunks."""
    with ask(client, stream=True, **settings) as stream:
        chunks = list(stream)
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    return "".join(texts), chunks


def test_a_reply_is_the_text_of_the_model_alone(client, alone):
    answer = ask(client, max_tokens=30)
    assert answer.choices[0].message.content == alone(max_new_tokens=30)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 30
    assert answer.usage.total_tokens == 30 + answer.usage.prompt_tokens
    # Another prompt has another text, so that the comparison can fail.
    other = [{"role": "user", "content": "import json"}]
    assert ask(client, other, max_tokens=30).choices[0].message.content != alone(max_new_tokens=30)


def test_a_stream_has_the_same_text_and_its_usage(client, alone):
    options = {"include_usage": True}
    text, chunks = streamed(client, max_completion_tokens=30, stream_options=options)
    assert text == alone(max_new_tokens=30)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == 30
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 0
    without = streamed(client, max_completion_tokens=5)[1]
    assert all(chunk.usage is None for chunk in without)


def test_samples_are_those_of_their_seeds(client, alone):
    drawn = {"temperature": 0.9, "top_p": 0.95, "min_p": 0.01}
    more = {"extra_body": {"top_k": 40, "min_p": 0.01}}
    answer = ask(client, max_tokens=20, temperature=0.9, top_p=0.95, seed=5, n=3, **more)
    texts = [choice.message.content for choice in answer.choices]
    wanted = [
        alone(max_new_tokens=20, do_sample=True, top_k=40, seed=seed, **drawn) for seed in (5, 6, 7)
    ]
    assert texts == wanted
    assert len({*texts}) == 3
    assert answer.usage.completion_tokens == 60


def test_settings_of_the_api_are_those_of_generate(client, alone, served_model):
    _, tokenizer = served_model
    more = {"repetition_penalty": 1.4, "min_tokens": 8}
    text = ask(client, max_tokens=20, extra_body=more).choices[0].message.content
    assert text == alone(max_new_tokens=20, repetition_penalty=1.4, min_new_tokens=8)
    banned = tokenizer.encode(alone(max_new_tokens=1))[0]
    text = ask(client, max_tokens=20, logit_bias={banned: -100}).choices[0].message.content
    assert text == alone(max_new_tokens=20, suppress_tokens=[banned])
    assert text != alone(max_new_tokens=20)


def test_penalties_for_what_was_written(client, served_model):
    model, tokenizer = served_model
    ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)
    start = len(ids)

    def penalized(token_ids, scores):
        for token in token_ids[0, start:].tolist():
            scores[0, token] -= np.float32(0.5)
        for token in {*token_ids[0, start:].tolist()}:
            scores[0, token] -= np.float32(1.0)
        return scores

    output = specds.generate(model, ids, max_new_tokens=30, logits_processor=[penalized])
    wanted = tokenizer.decode(output.sequences[0, start:], skip_special_tokens=True)
    answer = ask(client, max_tokens=30, frequency_penalty=0.5, presence_penalty=1.0)
    assert answer.choices[0].message.content == wanted


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_ends_before_a_stop(client, alone, stream):
    whole = alone(max_new_tokens=40)
    stop = whole[12:15]
    asked = {"max_tokens": 40, "stop": ["never written", stop]}
    if stream:
        text, chunks = streamed(client, **asked)
        reason = chunks[-1].choices[0].finish_reason
    else:
        choice = ask(client, **asked).choices[0]
        text, reason = choice.message.content, choice.finish_reason
    assert (text, reason) == (whole[: whole.index(stop)], "stop")


def test_log_probabilities(client, served_model):
    model, tokenizer = served_model
    ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)
    output = specds.generate(model, ids, max_new_tokens=12, output_logits=True)
    answer = ask(client, max_tokens=12, logprobs=True, top_logprobs=3)
    found = answer.choices[0].logprobs.content
    np.testing.assert_allclose([each.logprob for each in found], output.log_probs[0], atol=1e-4)
    for each in found:
        assert [top.logprob for top in each.top_logprobs] == sorted(
            (top.logprob for top in each.top_logprobs), reverse=True
        )
        assert each.top_logprobs[0].token == each.token  # greedy
    text, chunks = streamed(client, max_tokens=12, logprobs=True)
    of_stream = [p for c in chunks if c.choices[0].logprobs for p in c.choices[0].logprobs.content]
    assert [each.logprob for each in of_stream] == [each.logprob for each in found]
    assert text == answer.choices[0].message.content


def test_a_prediction_is_counted(client, alone):
    text = alone(max_new_tokens=40)
    prediction = {"type": "content", "content": text}
    answer = ask(client, max_tokens=40, prediction=prediction)
    details = answer.usage.completion_tokens_details
    assert answer.choices[0].message.content == text
    assert details.accepted_prediction_tokens > 20


def test_structured_outputs_by_pydantic(client):
    class Person(BaseModel):
        name: str = Field(max_length=12)
        age: int = Field(ge=0, le=99)

    answer = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Person, max_tokens=100
    )
    assert isinstance(answer.choices[0].message.parsed, Person)
    plain = ask(client, max_tokens=100, response_format={"type": "json_object"}, n=2, seed=1)
    assert plain.choices[0].message.content.startswith("{")


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_forced_calls_of_tools(client, choice):
    asked = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 200}
    answer = ask(client, **asked).choices[0]
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
    _, chunks = streamed(client, **asked)
    deltas = [d for c in chunks for d in c.choices[0].delta.tool_calls or ()]
    assert deltas[0].function.name == "weather"
    assert "".join(d.function.arguments for d in deltas) == call.function.arguments


def test_a_conversation_with_calls_and_results(client):
    call = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    messages = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "a", "content": "12 C"},
    ]
    answer = ask(client, messages, tools=[WEATHER], max_tokens=5)
    assert answer.usage.completion_tokens == 5


def test_completions_of_texts_and_of_tokens(client, served_model):
    model, tokenizer = served_model
    prompts = ["import os\n", "def f(x):"]
    answer = client.completions.create(model="tiny", prompt=prompts, max_tokens=9, echo=True)
    for prompt, choice in zip(prompts, answer.choices, strict=True):
        ids = tokenizer.encode(prompt)
        output = specds.generate(model, ids, max_new_tokens=9)
        assert choice.text == prompt + tokenizer.decode(output.sequences[0, len(ids) :])
    ids = tokenizer.encode(prompts[0])
    of_ids = client.completions.create(model="tiny", prompt=ids, max_tokens=9, logprobs=2)
    assert prompts[0] + of_ids.choices[0].text == answer.choices[0].text
    assert all(len(top) <= 2 for top in of_ids.choices[0].logprobs.top_logprobs)
    stream = client.completions.create(model="tiny", prompt=ids, max_tokens=9, stream=True)
    with stream:
        assert "".join(c.choices[0].text for c in stream) == of_ids.choices[0].text


def test_the_asynchronous_client(address, alone):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as client:
            create = client.chat.completions.create
            asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 15}
            answers = await asyncio.gather(*(create(**asked) for _ in range(6)))
            async with await create(**asked, stream=True) as stream:
                texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return {answer.choices[0].message.content for answer in answers} | {"".join(texts)}

    assert asyncio.run(run()) == {alone(max_new_tokens=15)}


def test_models(client):
    (model,) = client.models.list()
    assert (model.id, model.object) == ("tiny", "model")
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.InternalServerError, match="no embeddings"):
        client.embeddings.create(model="tiny", input="text")


def test_a_prompt_beyond_the_context_names_both_numbers(client):
    messages = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(
        openai.BadRequestError, match=r"prompt of .* tokens .* has 1,024 tokens"
    ) as e:
        ask(client, messages)
    assert e.value.code == "context_length_exceeded"


def test_a_text_that_fills_the_context_ends_there(client):
    answer = ask(client, [{"role": "user", "content": "x = 1\n" * 100}], logit_bias={0: -100})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == 1024
    assert math.isfinite(answer.usage.completion_tokens)
