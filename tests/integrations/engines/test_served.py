"""SGLang's or vLLM's server with a real model, with and without drafts."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

pytest.importorskip("openai")

import openai
from tokenizers import Tokenizer

from engines.served import Served, server_command
from real.kinds import kinds, messages
from real.models import folder_of

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default"), pytest.mark.timeout(1800)]

ENGINE = "sglang" if find_spec("sglang") else "vllm"
ABOUT = {
    "sglang": SimpleNamespace(
        plain=(sys.executable, "-m", "sglang.launch_server", "--model-path"),
        arguments="--device cpu --dtype float32 --attention-backend torch_tree --enable-metrics "
        "--max-total-tokens 8192 --max-running-requests 8 --chunked-prefill-size 512",
        settings={"SGLANG_USE_CPU_ENGINE": "1"},
        always={},
        carries="custom_params",
        refuses=(),
    ),
    "vllm": SimpleNamespace(
        plain=("vllm", "serve"),
        arguments="--dtype float32 --enforce-eager --max-model-len 4096 --max-num-seqs 8 "
        "--max-num-batched-tokens 512",
        settings={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        always={"step_cost": "ignored", "min_prob": 0.1},
        carries="vllm_xargs",
        refuses=("bias",),
    ),
}[ENGINE]

TALK, TURNS = messages("edit")[1], messages("turns")[0]
ASKED = [messages(kind)[1] for kind in kinds()[:8]]
LONG = [{"role": "user", "content": str(ASKED)[:6000]}]
NAMES = ("name", "city")
PERSON = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": 20} for name in NAMES},
    "required": [*NAMES],
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
REQUESTS = {
    "streamed": {"stream": True},
    "stop strings": {"stop": ["\n\n", " the"]},
    "stop strings, streamed": {"stop": [" of"], "stream": True},
    "JSON schema": {"response_format": SCHEMA, "max_tokens": 60},
    "JSON": {"response_format": {"type": "json_object"}, "max_tokens": 60},
    "probabilities": {"logprobs": True, "top_logprobs": 2},
    "penalties": {"frequency_penalty": 2, "presence_penalty": 0.5},
    "repetition penalty": {"extra_body": {"repetition_penalty": 1.2}},
    "least length": {"messages": TURNS, "extra_body": {"min_tokens": 30}},
    "past the end": {"extra_body": {"ignore_eos": True}, "max_tokens": 48},
    "bias": {"logit_bias": {"260": -100}},
    "two answers": {"n": 2, "max_tokens": 16},
    "one token": {"max_tokens": 1},
    "long prompt": {"messages": LONG},
    "long prompt, from the cache": {"messages": LONG},
    "turns": {"messages": TURNS},
}


def model():
    return str(folder_of("smollm2"))


class PythonServer(Served):
    """Asked through OpenAI's client."""

    def __init__(self, folder, options=None):
        words, settings = (*ABOUT.plain, model()), {}
        if options is not None:
            words, settings = server_command(ENGINE, model(), {**ABOUT.always, **options})
        (folder / "metrics").mkdir()
        settings |= {"SPECDS_TENANT_FROM": "body"}  # all requests have one API key
        settings |= {"PROMETHEUS_MULTIPROC_DIR": str(folder / "metrics")}
        super().__init__(
            [*words, *ABOUT.arguments.split()], folder / "log", **ABOUT.settings, **settings
        )
        address = f"http://127.0.0.1:{self.port}/v1"
        self.client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)

    def answer(self, messages=TALK, **about):
        about = {"model": model(), "temperature": 0, "max_tokens": 24, **about}
        return self.client.chat.completions.create(messages=messages, **about)

    def said(self, **about):
        """The text, or of each answer the text, why it ended, and the probabilities."""
        try:
            answer = self.answer(**about)
        except openai.BadRequestError as error:
            return str(error)
        if about.get("stream"):
            parts = [part.choices[0].delta.content or "" for part in answer if part.choices]
            return "".join(parts)
        return [
            (choice.message.content, choice.finish_reason, likely(choice.logprobs))
            for choice in answer.choices
        ]

    def at_once(self):
        with ThreadPoolExecutor(len(ASKED)) as pool:
            return list(pool.map(lambda asked: self.said(messages=asked), ASKED))

    def number(self, name):
        """The sum of our metrics whose names begin with this."""
        lines = self.text("/metrics").splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"specds:{name}"))


def likely(probs):
    if not probs:
        return None
    rows = [[place, *place.top_logprobs] for place in probs.content]
    return [(each.token, round(each.logprob, 2)) for row in rows for each in row]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    with PythonServer(tmp_path_factory.mktemp("plain")) as server:
        told = {name: server.said(**about) for name, about in REQUESTS.items()}
        return {**told, "at once": server.at_once()}


@pytest.fixture(scope="module")
def ours(tmp_path_factory, plain):
    folder = tmp_path_factory.mktemp("ours")
    kept = {"memory_scope": "tenant", "snapshot": str(folder / "kept"), "sync_interval": 3600}
    with PythonServer(folder, kept) as server:
        yield server


@pytest.mark.parametrize("kind", REQUESTS)
def test_answers_equal_those_without_drafts(plain, ours, kind):
    said = ours.said(**REQUESTS[kind])
    if kind in ABOUT.refuses:
        assert "not yet supported with speculative decoding" in said
    else:
        assert said == plain[kind]


def test_eight_requests_at_once_are_drafted_for(plain, ours):
    before = ours.number("accepted_tokens_total")
    assert ours.at_once() == plain["at once"]
    assert ours.number("accepted_tokens_total") > before + 50
    assert ours.number("failures_total") == 0


def test_aborted_requests_end_and_harm_no_others(plain, ours):
    endless = {"max_tokens": 2000, "stream": True, "extra_body": {"ignore_eos": True}}
    for _ in range(4):
        with ours.answer(**endless) as answer:
            next(iter(answer))
    steps = [-1, ours.number("row_steps_total")]
    for _ in range(30):
        time.sleep(1)
        steps.append(ours.number("row_steps_total"))
        if steps[-1] == steps[-2] == steps[-3]:
            break
    assert len(steps) < 30
    assert ours.said(**REQUESTS["streamed"]) == plain["streamed"]


def test_requests_specify_a_tenant_a_predicted_output_or_no_drafts(plain, ours):
    [[expected, *_]] = ours.said(max_tokens=64)

    def row_steps(extra_body=None, **wishes):
        carried = {ABOUT.carries: {f"specds_{key}": value for key, value in wishes.items()}}
        before = ours.number("row_steps_total")
        assert ours.said(max_tokens=64, extra_body=extra_body or carried)[0][0] == expected
        return ours.number("row_steps_total") - before

    first = row_steps(tenant="ann")
    assert row_steps(tenant="ann") < first / 2
    assert abs(row_steps(tenant="bob") - first) <= first / 8
    if ENGINE == "sglang":
        assert row_steps(extra_body={"cache_salt": "bob"}) < first / 2
        assert row_steps(extra_body={"extra_key": "ann"}) < first / 2
    tokenizer = Tokenizer.from_file(f"{model()}/tokenizer.json")
    predicted = tokenizer.encode(expected, add_special_tokens=False).ids
    assert row_steps(predicted_output=predicted) < first / 2
    assert row_steps(off=1) == 0


def test_memory_outlives_the_server(ours):
    about = {"extra_body": {ABOUT.carries: {"specds_tenant": "eve"}}}
    expected = ours.said(**about)
    time.sleep(3)  # both kill their workers, which save when they have become idle
    ours.stop()
    ours.start()
    assert "specds drafts at most" in ours.log.read_text()
    before = ours.number('accepted_tokens_total{source="memory"')
    assert ours.said(**about) == expected
    assert ours.number('accepted_tokens_total{source="memory"') > before + 10
