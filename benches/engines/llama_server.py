"""llama-server on the loopback interface, with the API of OpenAI clients."""

import json
import sys
import time
from pathlib import Path

from engines.served import Served
from real.models import gguf_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "target" / "llama.cpp"
CHAT = "/v1/chat/completions"
PLAINLY = {"temperature": 0, "cache_prompt": False}
LIBRARY = ROOT / "target" / "release" / "libspecds.so"


def drafting(options=None, library=LIBRARY, **switches):
    """Return the arguments of a server that drafts with a library and its configuration."""
    config = options if isinstance(options, str) else json.dumps(options or {})
    command = ["--spec-type", "extern", "--spec-extern-lib", str(library)]
    more = (text for name, value in switches.items() for text in (option(name), str(value)))
    return [*command, "--spec-extern-config", config, *more]


def option(name):
    return f"--{name.replace('_', '-')}"


class LlamaServer(Served):
    """Server of a build in FOLDER: `extern`, or `plain` if that was built too.

    It repacks weights, but not for AMX (see `without_amx`).
    """

    def __init__(self, build, arguments, log, *, model="smollm2", threads=1, slots=1, context=2048):
        numbers = {"threads": threads, "threads-batch": threads}
        numbers |= {"parallel": slots, "ctx-size": slots * context, "log-verbosity": 4}
        build = build if (FOLDER / build).exists() else "extern"
        command = [sys.executable, "-m", "engines.without_amx", FOLDER / build]
        command += ["--model", gguf_of(model), *arguments]
        pairs = ((option(name), str(value)) for name, value in numbers.items())
        super().__init__([*command, *(text for pair in pairs for text in pair)], log)

    def chat(self, messages, max_tokens=32, **more):
        """Return the text and the whole answer."""
        body = {**PLAINLY, "messages": messages, "max_tokens": max_tokens, **more}
        with self.asked("POST", CHAT, **body) as response:
            answer = json.load(response)
        return answer["choices"][0]["message"]["content"], answer

    def stream(self, messages, max_tokens=32, **more):
        events = self.events(messages, max_tokens, **more)
        deltas = [choice["delta"] for event in events for choice in event.get("choices", [])]
        return [delta["content"] for delta in deltas if delta.get("content")]

    def events(self, messages, max_tokens, **more):
        body = {**PLAINLY, "messages": messages, "max_tokens": max_tokens, "stream": True, **more}
        with self.asked("POST", CHAT, **body) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    def complete(self, prompt, n_predict=48, **more):
        """Return the server's own answer, with the text as `content`."""
        body = {**PLAINLY, "prompt": prompt, "n_predict": n_predict, **more}
        with self.asked("POST", "/completion", **body) as response:
            return json.load(response)

    def measured(self, messages, max_tokens, **more):
        """Return the CPU seconds, counts and text of decoding, without prompt and first token."""
        start, first, parts, timings = self.cpu_seconds(), None, [], {}
        for event in self.events(messages, max_tokens, **more):
            for choice in event.get("choices", []):
                if text := choice["delta"].get("content"):
                    first = first or self.cpu_seconds()
                    parts.append(text)
            timings = event.get("timings", timings)
        return {
            "seconds": self.cpu_seconds() - (first or start),
            "tokens": timings["predicted_n"] - 1,
            "passes": timings["predicted_n"] - 1 - timings.get("draft_n_accepted", 0),
            "drafted": timings.get("draft_n", 0),
            "accepted": timings.get("draft_n_accepted", 0),
            "texts": ["".join(parts)],
        }

    def answered(self, ids, max_tokens):
        """Return the times, counts and tokens of a greedy answer, the prompt included."""
        start, cpu = time.monotonic(), self.cpu_seconds()
        answer = self.complete(ids, max_tokens, return_tokens=True)
        row = {"seconds": self.cpu_seconds() - cpu, "wall": time.monotonic() - start}
        timings = answer["timings"]
        accepted = timings.get("draft_n_accepted", 0)
        row |= {"texts": [answer["tokens"]], "tokens": timings["predicted_n"]}
        row |= {"drafted": timings.get("draft_n", 0), "accepted": accepted}
        return row | {"passes": row["tokens"] - accepted}

    def cpu_seconds(self):
        """Return the CPU time of all threads of the server."""
        seconds = 0.0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
            except OSError:  # the thread has ended
                continue
        return seconds
