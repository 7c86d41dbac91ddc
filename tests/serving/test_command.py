"""The command: it starts, says where it listens, and ends by a signal."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

import specds
from datastores import build, until
from serving import complete, metrics
from specds.models.load import load_vocabulary
from specds.models.tokenization import fingerprint, vocab_size
from specds.serving.app import listen


@pytest.fixture
def start(tmp_path):
    """Start the command; returns the process and its address."""
    processes = []

    def start(*arguments, program=("-m", "specds")):
        process = subprocess.Popen(
            [sys.executable, *program, "serve", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "SPECDS_DEFAULT_DATASTORE": "0"},
        )
        processes.append(process)
        line = process.stdout.readline()
        found = re.search(r"http://[\d.]+:\d+", line)
        return process, found[0] if found else line + process.stdout.read()

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_signal_ends_the_server_and_saves_the_request_cache(start, tmp_path):
    file = tmp_path / "requests.memory"
    process, address = start(
        "demo-small", "--port", 0, "--memory", file, "--activations", "float32"
    )
    complete(address, "def add(a, b):\n")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert process.stdout.read() == ""
    process, address = start(
        "demo-small", "--port", 0, "--memory", file, "--activations", "float32"
    )
    complete(address, "import os\n")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    forgotten = specds.Memory.forget_in(file, [""])
    assert forgotten == [2]


@pytest.mark.parametrize("grace_s", [5, 0])
def test_a_running_request_gets_its_time_after_a_signal(start, grace_s):
    program = (
        "-c",
        (
            "import functools, specds.serving.app as of\n"
            f"of.run = functools.partial(of.run, grace_s={grace_s})\n"
            "from specds.cli import main\nmain()"
        ),
    )
    process, address = start("demo-small", "--port", 0, program=program)
    asked = {"prompt": "def add(a, b):\n", "max_tokens": 300, "temperature": 1.5, "stream": True}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(asked).encode())
    with urllib.request.urlopen(request) as answer:
        assert answer.readline()
        process.send_signal(signal.SIGTERM)
        lines = answer.readlines()
    is_stopped = any(b"the server stops" in line for line in lines)
    assert (b"data: [DONE]\n" in lines, is_stopped) == (True, grace_s == 0), lines[-3:]
    assert process.wait(20) == 0
    assert process.stdout.read() == ""


def test_a_killed_server_keeps_the_request_cache_of_its_last_save(start, tmp_path):
    often = "import specds.serving.drafting as of\nof._SAVED_EVERY_S = 0.1\n"
    program = "-c", f"{often}from specds.cli import main\nmain()"
    file, prompts = tmp_path / "requests.memory", ["def add(a, b):\n", "class Tree:\n"]
    given = "demo-small", "--port", 0, "--memory", file
    process, address = start(*given, program=program)
    texts = [complete(address, prompt)["choices"][0]["text"] for prompt in prompts]
    vocabulary = load_vocabulary("demo-small")
    about = {"vocab_size": vocab_size(vocabulary), "tokenizer": fingerprint(vocabulary)}
    until(lambda: file.exists() and len(specds.Memory.open(file, **about).texts("")) == 2)
    process.kill()
    process.wait()
    _, address = start(*given)
    assert [complete(address, prompt)["choices"][0]["text"] for prompt in prompts] == texts
    assert metrics(address)['specds_accepted_tokens_total{source="memory"}'] > 5


def test_kept_texts_outlive_the_command(start, tmp_path):
    given = "demo-small", "--port", 0, "--slots-file", tmp_path / "slots.npz"
    prompt, answers = "def add(a, b):\n    return a + b\n\n\n" * 4, []
    for _ in range(2):
        process, address = start(*given)
        answers.append(complete(address, prompt))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    first, again = (answer["usage"]["prompt_tokens_details"] for answer in answers)
    assert first["cached_tokens"] == 0 < 16 < again["cached_tokens"]
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]


def test_a_datastore_of_another_tokenizer_is_an_error_before_the_weights_are_read(
    run, monkeypatch, tmp_path
):
    monkeypatch.setattr("specds.models.load.load_model", lambda *_, **__: pytest.fail("loaded"))
    build(tmp_path / "other", [[1, 2, 3]])
    status, _, err = run("serve", "demo-small", "--port", "0", "--datastore", tmp_path / "other")
    assert (status, "tokenizer" in err) == (1, True), err


def test_files_of_a_checkout_are_drafted_from(start, tmp_path):
    _, address = start("demo-small", "--port", 0)
    prompt = "def add(a, b):\n"
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (answer,) = complete(address, prompt)["choices"]
    (tmp_path / "a.py").write_text(f"{prompt}{answer['text']}\n" * 3)
    process, address = start("demo-small", "--port", 0, "--datastore", tmp_path)
    complete(address, prompt)
    assert metrics(address)['specds_accepted_tokens_total{source="datastore"}'] > 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_answers_are_sent_without_delay():
    with listen("127.0.0.1", 0) as sock, socket.create_connection(sock.getsockname()):
        accepted, _ = sock.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) > 0


def test_an_address_that_is_taken_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = str(sock.getsockname()[1])
        command = [sys.executable, "-m", "specds", "serve", "demo-small", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot listen at 127.0.0.1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["demo-small", "--api-key", "a", "--api-keys", "b"], "mutually exclusive"),
        (["demo-small", "--parallel", "0"], "--parallel must be from 1"),
        (["no-such.gguf"], "no such file"),
    ],
)
def test_wrong_arguments(run, arguments, reason):
    status, _, err = run("serve", *arguments)
    assert (status, reason in err) == (1, True), err
