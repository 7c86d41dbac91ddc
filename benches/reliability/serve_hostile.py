"""Times for which hostile requests hold `specds serve`: its event loop, and another stream."""

import http.client
import json
import multiprocessing as mp
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROUNDS = 5
_HELPERS = Path(__file__).parents[2] / "tests" / "helpers"
_SERVER = """
import sys
sys.path.insert(0, sys.argv[1])
from serving import make_served, tiny
from specds.serving.app import listen, run
sock = listen("127.0.0.1", 0)
print(sock.getsockname()[1], flush=True)
run(make_served(*tiny()), sock)
"""
"""The small model of the demo, with a chat template."""
_LEAST_S = 1.0
_MESSAGE = [{"role": "user", "content": "def add(a, b):"}]


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return {"response_format": form}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def requests() -> dict[str, dict[str, Any]]:
    """Return bodies of chat completions by what they are."""
    names = [f"property_{number}" for number in range(2_000)]
    endless = {
        "$defs": {"node": {"type": "object", "required": ["next"],
                           "properties": {"next": {"$ref": "#/$defs/node"}},
                           "additionalProperties": False}},
        "$ref": "#/$defs/node",
    }  # fmt: skip
    tool = {"type": "object", "properties": {name: {"type": "string"} for name in names[:200]}}
    return {
        "none": {},
        "a prompt of 4 MB": {"messages": [{"role": "user", "content": "ab " * 1_400_000}]},
        "20,000 messages": {"messages": _MESSAGE * 20_000},
        "a stop string of 100,000 characters": {"stop": ["a" * 100_000]},
        "a predicted output of 1 MB": {
            "prediction": {"type": "content", "content": "return a + b\n" * 80_000}
        },
        "a schema of 2,000 properties": _schema(
            {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
        ),
        "a schema of 300 levels": _schema(_nested(300)),
        "a schema of 20,000 alternatives": _schema({"enum": [f"v{n}" for n in range(20_000)]}),
        "a schema whose text has no end": _schema(endless),
        "a pattern of many repetitions": _schema(
            {"type": "string", "pattern": "^(a|b|(c|d){0,300}){0,300}$"}
        ),
        "128 tools of 200 arguments": {
            "tools": [{"type": "function", "function": {"name": f"t{n}", "parameters": tool}}
                      for n in range(128)],
            "tool_choice": "required",
        },
    }  # fmt: skip


def figures() -> list[str]:
    """Return the rows of the table."""
    command = [sys.executable, "-c", _SERVER, str(_HELPERS)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        host = f"127.0.0.1:{int(server.stdout.readline())}"
        return [
            "| request | answer | `/health`, ms | between two pieces of a stream, ms |",
            "| --- | ---: | ---: | ---: |",
            *(_row(host, name, given) for name, given in requests().items()),
        ]
    finally:
        server.terminate()
        server.wait()


def _row(host: str, name: str, given: dict[str, Any]) -> str:
    body = json.dumps({"messages": _MESSAGE, "max_tokens": 24, **given}).encode()
    longest: dict[str, list[float]] = {"health": [], "stream": []}
    status = 0
    for _ in range(ROUNDS):
        ended, started = mp.Event(), mp.Barrier(3)
        found: Any = mp.Queue()
        watchers = [mp.Process(target=watch, args=(host, started, ended, found))
                    for watch in (_watch_health, _watch_stream)]  # fmt: skip
        for watcher in watchers:
            watcher.start()
        started.wait()
        until = time.monotonic() + _LEAST_S
        if given:
            status = _post(host, "/v1/chat/completions", body)
        time.sleep(max(until - time.monotonic(), 0.0))
        ended.set()
        for _ in watchers:
            kind, seconds = found.get()
            longest[kind].append(seconds * 1e3)
        for watcher in watchers:
            watcher.join()
    cells = " | ".join(f"{median(of):.0f}" for of in longest.values())
    return f"| {name} | {status or ''} | {cells} |"


def _post(host: str, path: str, body: bytes) -> int:
    connection = http.client.HTTPConnection(host, timeout=120)
    connection.request("POST", path, body)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def _watch_health(host: str, started: Any, ended: Any, found: Any) -> None:
    connection = http.client.HTTPConnection(host, timeout=120)

    def ask() -> None:
        connection.request("GET", "/health")
        connection.getresponse().read()

    found.put(("health", _longest(ask, started, ended)))


def _watch_stream(host: str, started: Any, ended: Any, found: Any) -> None:
    asked = {"prompt": "def add(a, b):\n", "max_tokens": 900, "stream": True}
    asked |= {"temperature": 1.5, "seed": 1, "ignore_eos": True}
    connection = http.client.HTTPConnection(host, timeout=120)

    def pieces() -> Any:
        while True:
            connection.request("POST", "/v1/completions", json.dumps(asked).encode())
            answer = connection.getresponse()
            answer.readline()
            while answer.readline():
                yield

    lines = pieces()
    next(lines)
    found.put(("stream", _longest(lambda: next(lines), started, ended)))


def _longest(work: Callable[[], object], started: Any, ended: Any) -> float:
    """Return the longest of the calls until the event, in seconds."""
    work()
    started.wait()
    longest = 0.0
    while not ended.is_set():
        start = time.perf_counter()
        work()
        longest = max(longest, time.perf_counter() - start)
    return longest
