"""Requests of `specds serve`, some of which are aborted, wrong or read slowly."""

import http.client
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NUM_REQUESTS, NUM_CLIENTS = 10_000, 8
PROMPTS = [f"def {name}({argument}):\n" for name in ("add", "read", "main") for argument in "abxy"]
WRONG = [b"{", b"[]", b'{"prompt": 5}', b'{"prompt": "a", "temperature": "hot"}', b"\xff"]
KINDS = ("whole", "stream", "abort", "wrong", "slow")


def figures() -> list[str]:
    """Return the rows of the table."""
    command = [sys.executable, "-m", "specds", "serve", "demo-small", "--port", "0"]
    environment = {**os.environ, "SPECDS_DEFAULT_DATASTORE": "0"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        found = re.search(r"http://([\d.]+:\d+)", server.stdout.readline())
        assert found is not None
        return _figures(found[1], server.pid)
    finally:
        server.terminate()
        server.wait()


def _figures(host: str, process: int) -> list[str]:
    alone = {prompt: _ask(host, "whole", prompt) for prompt in PROMPTS}
    outcomes: Counter[tuple[str, str]] = Counter()
    sizes = []

    def one(number: int) -> tuple[str, str]:
        chosen = random.Random(number)
        kind, prompt = chosen.choice(KINDS), chosen.choice(PROMPTS)
        try:
            text = _ask(host, kind, prompt)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return kind, type(error).__name__
        return kind, "right" if text in (alone[prompt], None) else "another text"

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        for part in range(10):
            size = NUM_REQUESTS // 10
            outcomes.update(pool.map(one, range(part * size, part * size + size)))
            sizes.append(_resident_mb(process))
    rows = ["| requests | number | right | lost or another text |", "| --- | ---: | ---: | ---: |"]
    for kind in KINDS:
        number = sum(count for (of, _), count in outcomes.items() if of == kind)
        right = outcomes[kind, "right"]
        rows.append(f"| {kind} | {number:,} | {right:,} | {number - right} |")
    rows.append(f"| resident memory after each tenth, MB | {sizes[0]:.0f} | {sizes[4]:.0f} "
                f"| {sizes[-1]:.0f} |")  # fmt: skip
    return rows


def _ask(host: str, kind: str, prompt: str) -> str | None:
    """Return the text of an answer; None if the request is to have none."""
    connection = http.client.HTTPConnection(host, timeout=120)
    try:
        asked = {"prompt": prompt, "max_tokens": 24, "stream": kind not in ("whole", "wrong")}
        body = json.dumps(asked).encode()
        if kind == "wrong":
            body = WRONG[len(prompt) % len(WRONG)]
        connection.request("POST", "/v1/completions", body)
        answer = connection.getresponse()
        if kind == "wrong":
            if answer.status != 400 or "error" not in json.loads(answer.read()):
                raise ValueError(answer.status)
            return None
        if answer.status != 200:
            raise ValueError(answer.status)
        if kind == "whole":
            return str(json.loads(answer.read())["choices"][0]["text"])
        if kind == "abort":
            answer.readline()
            return None
        text = ""
        while line := answer.readline():
            if kind == "slow":
                time.sleep(0.01)
            if line.startswith(b"data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
        return text
    finally:
        connection.close()


def _resident_mb(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
