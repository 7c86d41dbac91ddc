"""Predictions of OpenAI's client in SGLang's or vLLM's server: an edit of a file of 60 lines."""

import time
from importlib.util import find_spec

import pytest

pytest.importorskip("openai")

import openai

from edit_request import ASK, FILE
from engines.served import Served, server_command
from real.models import folder_of

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default"), pytest.mark.timeout(1200)]

if find_spec("sglang"):
    SERVERS, CARRIER, OPTIONS = [("sglang", 128)], "custom_params", {}
    ARGUMENTS = (
        "--device cpu --dtype float32 --attention-backend torch_tree --enable-metrics "
        "--max-total-tokens 8192 --max-running-requests 4 --api-key none"
    )
else:
    SERVERS, CARRIER = [("vllm", 400), ("vllm_v2", 64)], "vllm_xargs"
    OPTIONS = {"step_cost": "ignored", "min_prob": 0.1}
    ARGUMENTS = (
        "--dtype float32 --enforce-eager --max-model-len 4096 --max-num-seqs 4 "
        "--api-key none --middleware specds.integrations.openai.PredictedOutput"
    )


@pytest.fixture(scope="module", params=SERVERS, ids=lambda about: about[0])
def server(request, tmp_path_factory):
    engine, num_tokens = request.param
    folder, model = tmp_path_factory.mktemp("served"), str(folder_of("smollm2"))
    words, settings = server_command(engine, model, OPTIONS)
    (folder / "metrics").mkdir()
    settings["PROMETHEUS_MULTIPROC_DIR"] = str(folder / "metrics")
    settings |= {"VLLM_CPU_KVCACHE_SPACE": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    with Served([*words, *ARGUMENTS.split()], folder / "log", **settings) as served:
        address = f"http://127.0.0.1:{served.port}/v1"
        served.client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
        served.model, served.num_tokens = model, num_tokens
        yield served


def number(server, name):
    lines = server.text("/metrics").splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"specds:{name}"))


def answer(server, key="none", **about):
    messages, before = [{"role": "user", "content": ASK}], number(server, "row_steps_total")
    about = {"model": server.model, "temperature": 0, "max_tokens": server.num_tokens, **about}
    client = server.client.with_options(api_key=key)
    said = client.chat.completions.create(messages=messages, **about)
    if not about.get("stream"):
        return (
            said.choices[0].message.content,
            said.usage,
            number(server, "row_steps_total") - before,
        )
    *chunks, last = said
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return text, last.usage, number(server, "row_steps_total") - before


def test_prediction_halves_the_steps_of_an_edit_and_is_in_usage(server):
    off = {CARRIER: {"specds_off": 1}}
    began = time.perf_counter()
    expected, usage, _ = answer(server, extra_body=off)
    plain_s = time.perf_counter() - began
    assert usage.completion_tokens_details is None
    _, _, own = answer(server)  # drafts from the prompt alone
    prediction = {"type": "content", "content": FILE}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    for more in ({}, streamed):
        began = time.perf_counter()
        text, usage, steps = answer(server, prediction=prediction, **more)
        speedup = plain_s / (time.perf_counter() - began)
        details = usage.completion_tokens_details
        print(f"{usage.completion_tokens} tokens, {steps:.0f} steps, {own:.0f} without it")
        print(f"{speedup:.1f} times as fast as without drafts;", details)
        assert text == expected
        assert usage.completion_tokens / steps > 2
        assert details.accepted_prediction_tokens > usage.completion_tokens / 2
        assert details.rejected_prediction_tokens > 0
    assert number(server, 'accepted_tokens_total{source="predicted_output"') > 0
    # The expected answer itself as the prediction, as text in the option.
    own_text = {CARRIER: {"specds_predicted_output": expected}}
    text, usage, steps = answer(server, extra_body=own_text)
    assert (text, usage.completion_tokens_details.rejected_prediction_tokens) == (expected, 0)
    assert usage.completion_tokens / steps > 2


def test_invalid_prediction_is_a_bad_request(server):
    with pytest.raises(openai.BadRequestError, match="prediction must be"):
        answer(server, extra_body={"prediction": {"type": "content", "content": 3}})


def test_prediction_without_the_key_is_unauthorized(server):
    with pytest.raises(openai.AuthenticationError):
        answer(server, key="another", prediction={"type": "content", "content": FILE})
