"""A server on the loopback address in a thread, which stops by itself."""

import json
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import replace

import uvicorn

from specds.models.load import load_model
from specds.serving.app import ServedModel, listen, make_app
from specds.serving.drafting import Drafting
from specds.serving.passes import PassEngine
from specds.serving.requests import RequestReader
from specds.serving.slots import Slots

TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"


def tiny(template=TEMPLATE, context_length=1024):
    """The small model of the demo, computed by the core, with a chat template."""
    model, tokenizer = load_model(
        "demo-small", device="cpu", framework="numpy", context_length=context_length
    )
    return model, replace(tokenizer, chat_template=template)


def make_served(
    model, tokenizer, *, tenants=(), parallel=4, max_waiting=64, rows=12, memory=None, **slots
):
    drafting = Drafting(tokenizer, memory=memory)
    slots = {"max_bytes": 1 << 28, "deleted_at": drafting.deleted_at, **slots}
    slots = Slots(model, parallel + rows, slots.pop("max_bytes"), **slots)
    engine = PassEngine(model, drafting.drafter, slots, parallel=parallel, max_waiting=max_waiting)
    reader = RequestReader(model, tokenizer)
    return ServedModel("tiny", model, tokenizer, drafting, engine, reader, dict(tenants))


@contextmanager
def listening(served):
    """Yield the address of a server."""
    sock = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        make_app(served), log_level="error", ws="none", lifespan="on", timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        sock.close()


def post(address, path, body, key=None):
    """The status and the body of an answer."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def complete(address, prompt, key=None, **settings):
    body = {"prompt": prompt, "max_tokens": 24, **settings}
    status, answer = post(address, "/v1/completions", body, key)
    assert status == 200, answer
    return answer


def metrics(address):
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if line[0] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
