"""Predictions of OpenAI's client in `transformers serve`: an edit of a file of 60 lines."""

import os
import shutil
import sys
import time

import pytest

pytest.importorskip("openai")
pytest.importorskip("fastapi")
pytest.importorskip("accelerate")

import openai

from edit_request import ASK, FILE
from engines.served import Served
from real.models import folder_of
from specds import __version__
from specds.transformers.custom_generate import export_generate

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]

SERVE = (sys.executable, "-m", "transformers.cli.transformers", "serve", "--device", "cpu")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A path with which transformers takes specds for installed."""
    folder = tmp_path_factory.mktemp("installed")
    about = folder / f"specds-{__version__}.dist-info"
    about.mkdir()
    text = f"Metadata-Version: 2.1\nName: specds\nVersion: {__version__}\n"
    (about / "METADATA").write_text(text)
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def served(model, log, path, *arguments):
    cache = {"PYTHONPATH": path, "HF_MODULES_CACHE": str(log.parent / "modules")}
    return Served([*SERVE, "--dtype", "float32", *arguments, str(model)], log, **cache)


def answer(server, model, **about):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    about = {"model": str(model), "temperature": 0, "max_tokens": 128, **about}
    began = time.perf_counter()
    said = client.chat.completions.create(messages=[{"role": "user", "content": ASK}], **about)
    if about.get("stream"):
        chunks = [*said]
        text, usage = "".join(part.choices[0].delta.content or "" for part in chunks), chunks[-1]
    else:
        text, usage = said.choices[0].message.content, said
    return text, usage.usage, time.perf_counter() - began


def test_prediction_is_in_usage_and_the_text_is_the_server_s_own(tmp_path, installed):
    plain = folder_of("smollm2")
    with served(plain, tmp_path / "plain", installed) as server:
        expected, usage, plain_s = answer(server, plain)
    assert usage.completion_tokens_details is None
    model = shutil.copytree(plain, tmp_path / "model", copy_function=os.symlink)
    export_generate(model)
    prediction = {"type": "content", "content": FILE}
    with served(model, tmp_path / "log", installed, "--trust-remote-code") as server:
        own, usage, own_s = answer(server, model)
        assert (own, usage.completion_tokens_details) == (expected, None)
        for more in ({}, {"stream": True}):
            text, usage, seconds = answer(server, model, prediction=prediction, **more)
            print(f"plain {plain_s:.1f} s, no prediction {own_s:.1f} s, prediction {seconds:.1f} s")
            details = usage.completion_tokens_details
            assert text == expected
            assert details.accepted_prediction_tokens > usage.completion_tokens / 2
            assert details.rejected_prediction_tokens > 0
        invalid = {"prediction": {"type": "content", "content": 3}}
        with pytest.raises(openai.BadRequestError, match="prediction must be"):
            answer(server, model, extra_body=invalid)
