"""Fixtures of all tests: no network, one thread for torch, folders in memory, models."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"
# Small models lose more by handing work to a second thread than they gain, most of all on a
# busy machine. It is set before torch is imported, for every test and the processes it starts.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell ignores Ctrl-C in what it runs in the background, and programs inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Builds wait for the disk, so temporary folders lie in memory where there is room for them.
_IN_MEMORY = Path("/dev/shm")
if _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free > 1 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_IN_MEMORY))

# Machines that run tests are busy: how long an example takes says nothing.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Run by itself, in an environment that holds the wheel and nothing else (`make wheel`).
collect_ignore = ["smoke.py"]


@pytest.fixture(scope="session", autouse=True)
def _tables_of_models_are_kept_for_the_tests_alone(tmp_path_factory):
    os.environ["SPECDS_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["SPECDS_CACHE_LIMIT"] = "0"  # packed weights are as large as their file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that the examples of a property share."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="session")
def demo_tokenizer():
    from specds.models.load import load_tokenizer

    return load_tokenizer("demo")


@pytest.fixture(scope="session")
def tiny_model():
    """The smallest model of the demo, with its tokenizer: `(model, tokenizer)`."""
    from specds.models.load import load_model

    return load_model("demo-tiny", device="cpu")


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory, tiny_model):
    """The folder of a small model with a chat template, as a name for what loads models."""
    folder = tmp_path_factory.mktemp("chat-model")
    model, tokenizer = tiny_model
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": CHAT_TEMPLATE}))
    return folder


CHAT_TEMPLATE = (
    "{% for m in messages %}# {{ m['role'] }}:\n{{ m['content'] }}<|endoftext|>\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant:\n{% endif %}"
)


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command in this process: `run(*arguments) -> (exit code, stdout, stderr)`."""

    from specds.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["specds", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run
