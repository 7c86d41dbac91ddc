"""CPU seconds of `specds serve` and of llama-server, for the same file, threads and requests.

`make bench-serve` runs it. Both servers answer in turns, with their default settings and greedy
requests. llama-server is that of the package `xllamacpp`.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import textwrap
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

LLAMA = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.n_ctx, params.n_parallel, params.kv_unified = 0, 4, True
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
time.sleep(1e9)
"""
CHAT = """
import json, sys, time
import specds
path, turns, most = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
model, tokenizer = specds.load_gguf(path, activations="int8")
chat = specds.Chat(model, tokenizer, do_sample=False, max_new_tokens=most, repetition_penalty=1.0)
began, number, first = time.process_time(), 0, []
class Streamer:
    def put(self, tokens):
        first.append(time.process_time())
    def end(self):
        pass
for turn in turns:
    last, _ = time.process_time(), first.clear()
    chat.send(turn, streamer=Streamer())
    number += chat.last_stats.num_emitted_tokens
print(number / (time.process_time() - began), first[1] - last, began)
"""
NUM_TURNS, NUM_NEW = 8, 96


def source(name, start, most):
    """Lines of a module of the standard library, from a line on, up to a number of characters."""
    lines = Path(sys.modules[name].__file__).read_text().splitlines(keepends=True)
    return "".join(lines[start:])[:most]


def agent_turns(most):
    """The messages that each turn of an agent adds: a long file first, then edits of its parts."""
    text = source("argparse", 80, most)
    parts = textwrap.wrap(source("textwrap", 120, 6000), 420, replace_whitespace=False)
    turns = [f"Here is a file:\n```python\n{text}\n```\nRewrite this part of it:\n{text[:400]}"]
    turns += [
        f"The tool returned:\n```python\n{part}\n```\nRewrite it with `text` in place of `self`."
        for part in parts[: NUM_TURNS - 1]
    ]
    return turns


class MeasuredServer:
    """A server in a process of its own; a model without a chat template gets the texts alone."""

    def __init__(self, kind, path, threads, llama, *, is_chat):
        self._is_chat = is_chat
        port = free_port()
        if kind == "specds":
            command = [sys.executable, "-m", "specds", "serve", path, "--port", str(port)]
            command += ["--threads", str(threads), "--alias", "model"]
        else:
            command = [llama, "-c", LLAMA, path, str(port), str(threads)]
        log = None if "SHOW" in os.environ else subprocess.DEVNULL
        env = {**os.environ, "SPECDS_DEFAULT_DATASTORE": "0"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env)
        self.process.stdout.readline()
        self.address = f"http://127.0.0.1:{port}"
        self.start_s = self.cpu_s()

    def cpu_s(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, messages):
        """Return a reply, its tokens, and the CPU seconds of the server until the first of them."""
        body = {"model": "model", "max_tokens": NUM_NEW, "temperature": 0}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self._is_chat:
            body["messages"] = messages
        else:
            body["prompt"] = "\n".join(message["content"] for message in messages)
        route = "chat/completions" if self._is_chat else "completions"
        url, headers = f"{self.address}/v1/{route}", {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        began, first, text, number = self.cpu_s(), None, "", 0
        with urllib.request.urlopen(request) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                for choice in chunk["choices"]:
                    piece = choice["delta"].get("content") if self._is_chat else choice["text"]
                    if piece:
                        first, text = first or self.cpu_s() - began, text + piece
                number = (chunk.get("usage") or {}).get("completion_tokens", number)
        return text, number, first or 0.0

    def close(self):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def conversation(server, turns):
    """Return the tokens of all replies, and the CPU seconds of the last turn's first token."""
    messages, total, first = [], 0, 0.0
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        text, number, first = server.ask(messages)
        messages.append({"role": "assistant", "content": text})
        total += number
    return total, first


def measure(kind, path, threads, llama, most, *, is_chat):
    server = MeasuredServer(kind, path, threads, llama, is_chat=is_chat)
    try:
        began = server.cpu_s()
        tokens, first = conversation(server, agent_turns(most))
        agent = tokens / (server.cpu_s() - began)
        names = ("json.decoder", "textwrap", "argparse", "contextlib")
        clients = [
            [f"```python\n{source(name, 40, 1500)}\n```\nRepeat it with more comments.", "Again."]
            for name in names
        ]
        began = server.cpu_s()
        with ThreadPoolExecutor(4) as pool:
            found = [*pool.map(lambda turns: conversation(server, turns), clients)]
        four = sum(number for number, _ in found) / (server.cpu_s() - began)
    finally:
        server.close()
    return {"agent": agent, "first": first, "four": four, "start": server.start_s}


def measure_chat(path, threads, most):
    """Return the figures of the agent's turns in a Python program, without a server."""
    command = [sys.executable, "-c", CHAT, path, json.dumps(agent_turns(most)), str(NUM_NEW)]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "SPECDS_DEFAULT_DATASTORE": "0"}
    written = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    agent, first, start = map(float, written.split())
    return {"agent": agent, "first": first, "four": float("nan"), "start": start}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["smollm2"])
    parser.add_argument("--llama", required=True, help="a Python with the package xllamacpp")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chars", type=int, default=22_000, help="of the first turn's file")
    asked = parser.parse_args()
    from real.models import MODELS, gguf_of
    from specds._core import GgufFile
    from specds.bench.turns import in_turns
    from specds.models.gguf import field
    from specds.models.resolve import ModelRef

    print("| model | server | tokens a CPU second, agent | first token of turn 8, CPU s "
          "| tokens a CPU second, four clients | start, CPU s |")  # fmt: skip
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for model in asked.models:
        path = str(gguf_of(model)) if model in MODELS else ModelRef.resolve(model).path
        given = path, asked.threads, asked.llama, asked.chars
        is_chat = bool(field(GgufFile(path), "tokenizer.chat_template", ""))
        kinds = ("llama-server", "specds")
        calls = {kind: partial(measure, kind, *given, is_chat=is_chat) for kind in kinds}
        if is_chat:
            calls["Chat in Python"] = partial(measure_chat, path, asked.threads, asked.chars)
        turns = [in_turns(calls, turn) for turn in range(asked.rounds)]
        for kind in calls:
            of = [turn[kind].result for turn in turns]
            middle = [statistics.median(row[name] for row in of) for name in of[0]]
            print(
                f"| {model} | {kind} | " + " | ".join(f"{v:.2f}" for v in middle) + " |", flush=True
            )


if __name__ == "__main__":
    main()
