"""A server on loopback: started, asked, stopped."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

MOST_S = 600  # a server may load its model on a busy machine


class Served:
    """Server started by a command, with its log in a file; its process ends with the context.

    `--host` and `--port` are added to the command.
    """

    def __init__(self, command, log, **environment):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.command = [*command, "--host", "127.0.0.1", "--port", str(self.port)]
        self.log, self.environment = Path(log), {**os.environ, **environment}

    def start(self):
        with self.log.open("wb") as log:
            about = {"env": self.environment, "stdout": log, "stderr": log}
            self.process = subprocess.Popen(self.command, start_new_session=True, **about)
        with ExitStack() as stack:
            stack.callback(self.stop)
            end = time.monotonic() + MOST_S
            while self.process.poll() is None and time.monotonic() < end:
                try:
                    self.text("/health")
                    stack.pop_all()
                    return
                except OSError:
                    time.sleep(0.1)
        raise RuntimeError(f"the server did not start:\n{self.log.read_text()[-2000:]}")

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Ends it, and what it left of the processes that it started."""
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    @contextmanager
    def asked(self, method, path, **body):
        """The response, not read yet; its connection ends with the block."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            with connection.getresponse() as response:
                if response.status != 200:
                    raise OSError(response.read())
                yield response
        finally:
            connection.close()

    def text(self, path):
        with self.asked("GET", path) as response:
            return response.read().decode()

    def get(self, path):
        return json.loads(self.text(path))


V2 = Path(__file__).with_name("vllm_cpu")


def server_command(engine, model, options):
    """Return the documented command that serves a model with specds, and its environment.

    `vllm` is the V1 runner, and `vllm_v2` the V2 runner on a CPU.
    """
    if engine.startswith("vllm"):
        speculative = {"method": "ngram_gpu", "num_speculative_tokens": 8}
        settings = {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1"}
        settings["PYTHONPATH"] = os.pathsep.join([str(V2), os.environ.get("PYTHONPATH", "")])
        if engine == "vllm":
            speculative |= {"method": "custom_class", "model": "specds.integrations.vllm.Proposer"}
            settings = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
        words = ("vllm", "serve", model, "--speculative-config", json.dumps(speculative))
        more = ("--additional-config", json.dumps({"specds": options}))
        return (*words, *more), settings
    words = (sys.executable, "-m", "sglang.launch_server", "--model-path", model)
    draft = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "16")
    return (*words, *draft), {"SPECDS_CONFIG": json.dumps(options)}
