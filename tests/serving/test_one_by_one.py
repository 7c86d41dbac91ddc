"""Models of transformers by the same server."""

import openai
import pytest
import torch

import specds
from serving import listening
from specds.models.load import load_model
from specds.serving.app import ServedModel
from specds.serving.drafting import Drafting
from specds.serving.requests import RequestReader
from specds.transformers.serial_engine import SerialEngine, TransformersModel

MESSAGES = [{"role": "user", "content": "def add(a, b):"}]


@pytest.fixture(scope="module")
def torch_model(chat_model):
    model, tokenizer = load_model(str(chat_model), device="cpu")
    return model, tokenizer


@pytest.fixture(scope="module")
def client(torch_model):
    model, tokenizer = torch_model
    of_server = TransformersModel(model)
    engine = SerialEngine(of_server)
    reader = RequestReader(of_server, tokenizer)
    served = ServedModel("tiny", of_server, tokenizer, Drafting(tokenizer), engine, reader)
    with (
        listening(served) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def alone(torch_model, messages, **settings):
    model, tokenizer = torch_model
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    prompt = torch.tensor([ids["input_ids"]])
    output = specds.generate(model, prompt, max_nodes=0, **settings)
    return tokenizer.decode(output.sequences[0, prompt.shape[1] :], skip_special_tokens=True)


def ask(client, messages=MESSAGES, **settings):
    return client.chat.completions.create(model="tiny", messages=messages, **settings)


def test_texts_are_those_of_generate(client, torch_model):
    answer = ask(client, max_tokens=20)
    text = answer.choices[0].message.content
    assert text == alone(torch_model, MESSAGES, max_new_tokens=20, do_sample=False)
    longer = [*MESSAGES, {"role": "assistant", "content": text}, {"role": "user", "content": "x"}]
    again = ask(client, longer, max_tokens=20, logprobs=True, top_logprobs=2)
    assert again.choices[0].message.content == alone(
        torch_model, longer, max_new_tokens=20, do_sample=False
    )
    assert again.usage.prompt_tokens_details.cached_tokens > 5
    assert len(again.choices[0].logprobs.content) == 20
    drawn = {"temperature": 0.8, "top_p": 0.9}
    sample = ask(client, max_tokens=20, seed=3, **drawn).choices[0].message.content
    assert sample == alone(
        torch_model, MESSAGES, max_new_tokens=20, do_sample=True, seed=3, top_k=0, **drawn
    )


def test_streams_stops_and_penalties(client, torch_model):
    whole = alone(torch_model, MESSAGES, max_new_tokens=30, do_sample=False)
    with ask(client, max_tokens=30, stop=whole[8:10], stream=True) as stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole[: whole.index(whole[8:10])]
    penalized = ask(client, max_tokens=30, presence_penalty=2.0).choices[0].message.content
    assert penalized != whole
    with pytest.raises(openai.BadRequestError):
        ask(client, temperature=-1)
