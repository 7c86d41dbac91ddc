"""`transformers serve` with a model folder that specds wrote to."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from models import GREEDY
from specds import build_datastore

NUM_TOKENS = 24
MESSAGES = [{"role": "user", "content": "def add(a, b):\n"}]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads the maps of a process"),
]


@pytest.fixture
def serve(tmp_path):
    """Start `transformers serve` with these arguments: `serve(...) -> (process, address)`."""
    for package in ("accelerate", "fastapi", "openai", "uvicorn"):
        pytest.importorskip(package, reason=f"transformers[serving] needs {package}")
    processes = []

    def serve(*arguments):
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
        where = f"--host 127.0.0.1 --port {port} --device cpu --dtype float32".split()
        command = [sys.executable, "-m", "transformers.cli.transformers", "serve", *where]
        env = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
        processes.append(subprocess.Popen([*command, *map(str, arguments)], env=env))
        address = f"http://127.0.0.1:{port}"
        wait_for(address, processes[-1])
        return processes[-1], address

    yield serve
    for process in processes:
        process.terminate()
        process.wait()


def wait_for(address, process):
    for _ in range(900):
        assert process.poll() is None, "the server ended"
        try:
            return urlopen(f"{address}/health", timeout=5).close()
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(address)


def chat(address, model, **about):
    asked = {"model": str(model), "messages": MESSAGES, "max_tokens": NUM_TOKENS, "temperature": 0}
    request = Request(
        f"{address}/v1/chat/completions",
        json.dumps(asked | about).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=100) as answer:
        told = answer.read().decode()
    if not about.get("stream"):
        return json.loads(told)["choices"][0]["message"]["content"]
    lines = [line.removeprefix("data: ") for line in told.splitlines() if line.startswith("data: ")]
    parts = [json.loads(line)["choices"] for line in lines if line != "[DONE]"]
    return "".join(part[0]["delta"].get("content") or "" for part in parts if part)


def test_server_of_a_model_folder_drafts_and_gives_the_baseline_answers(
    run, tmp_path, chat_model, demo_tokenizer, serve
):
    (tmp_path / "code.txt").write_text("def add(a, b):\n    return a + b\n" * 9)
    corpus = str(tmp_path / "code.txt")
    datastore = build_datastore(corpus, demo_tokenizer, tmp_path / "code.specds").path
    home = shutil.copytree(chat_model, tmp_path / "model")
    code, _, err = run(
        *("export-generate", tmp_path / "own", "--datastore", datastore, "--into", home)
    )
    assert code == 0, err
    tokenizer = AutoTokenizer.from_pretrained(home)
    plain = AutoModelForCausalLM.from_pretrained(home, dtype="float32")
    ids = tokenizer.apply_chat_template(
        MESSAGES, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = plain.generate(**ids, max_new_tokens=NUM_TOKENS, **GREEDY)
    expected = tokenizer.decode(output[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert expected.strip()

    process, address = serve("--trust-remote-code", home)
    maps = Path(f"/proc/{process.pid}/maps")
    assert str(datastore) not in maps.read_text()
    assert chat(address, home) == expected
    # Only specds' generation opens the datastore, and what it cannot serve it refuses.
    assert str(datastore) in maps.read_text()
    assert chat(address, home, stream=True) == expected
