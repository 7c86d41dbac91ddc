"""Which engine serves a model here, and by what command does it draft with specds?"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_ENGINES = ("vllm", "sglang", "transformers")
"""What serves folders and names of the hub; the first that is installed."""
_SYNC_INTERVAL = 60.0
LIBRARY = "SPECDS_LIBRARY"
"""The environment variable with the path of the C library."""


@dataclass(frozen=True)
class Command:
    """What is run, and what is added to its environment."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        settings = [f"{name}={shlex.quote(text)}" for name, text in self.environment.items()]
        return " ".join([*settings, shlex.join(self.words)])


def serving(
    model: str,
    *,
    datastore: Path | None = None,
    memory: Path | None = None,
    engine: str | None = None,
    more: Sequence[str] = (),
) -> Command:
    """The command that serves a model; `more` is passed on to the engine.

    Raises:
        ValueError: No engine for the model is here, or it cannot do what is asked.
    """
    options: dict[str, Any] = {} if datastore is None else {"datastore": str(datastore)}
    if memory is not None:
        kept = {"memory_scope": "shared", "snapshot": str(memory), "sync_interval": _SYNC_INTERVAL}
        options |= kept
    name = engine or engine_of(model)
    command = COMMANDS[name](model, options)
    return Command((*command.words, *more), command.environment)


def engine_of(model: str) -> str:
    if model.lower().endswith(".gguf"):
        return "llama-server"
    found = next((name for name in _ENGINES if find_spec(name)), None)
    if found is None:
        raise ValueError(f"no engine is installed: install one of {', '.join(_ENGINES)}")
    return found


def _llama_server(model: str, options: dict[str, Any]) -> Command:
    server = shutil.which("llama-server")
    if server is None:
        raise ValueError("llama-server is not on the PATH: integrations/llama.cpp builds it")
    said = subprocess.run([server, "--help"], capture_output=True, text=True, check=False)
    if "--spec-extern-lib" not in said.stdout:
        raise ValueError(
            f"{server} takes no external drafter: integrations/llama.cpp has the patch"
        )
    words = ["--spec-type", "extern", "--spec-extern-lib", _library(Path(server).parent)]
    config = ("--spec-extern-config", json.dumps(options))
    return Command((server, "--model", model, *words, *config))


def _library(beside: Path) -> str:
    """The C library: as `LIBRARY` says, beside the server, or where the system has it."""
    places = (beside / f"libspecds{end}" for end in (".so", ".dylib"))
    here = next((str(place) for place in places if place.is_file()), None)
    found = os.environ.get(LIBRARY) or here or find_library("specds")
    if found is None:
        raise ValueError(
            f"no libspecds: `make c-library` builds it; give its path as {LIBRARY}, or put it "
            f"into {beside}"
        )
    return found


def _vllm(model: str, options: dict[str, Any]) -> Command:
    speculative = {
        "method": "custom_class",
        "model": "specds.integrations.vllm.Proposer",
        "num_speculative_tokens": 8,
    }
    words = ("vllm", "serve", model, "--speculative-config", json.dumps(speculative))
    more = ("--additional-config", json.dumps({"specds": options}))
    return Command((*words, *more), {"VLLM_USE_V2_MODEL_RUNNER": "0"})


def _sglang(model: str, options: dict[str, Any]) -> Command:
    words = (sys.executable, "-m", "sglang.launch_server", "--model-path", model)
    draft = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "16")
    return Command((*words, *draft), {"SPECDS_CONFIG": json.dumps(options)})


def _transformers(model: str, options: dict[str, Any]) -> Command:
    if not (Path(model) / "custom_generate" / "generate.py").is_file():
        raise ValueError(
            f"{model} has no `custom_generate`: `specds export-generate FOLDER --into {model}` "
            "writes one, with `--datastore` for what it drafts from"
        )
    if options:
        raise ValueError("its `custom_generate` says what transformers drafts from: leave it out")
    return Command(("transformers", "serve", "--trust-remote-code", model))


COMMANDS = {
    "llama-server": _llama_server,
    "vllm": _vllm,
    "sglang": _sglang,
    "transformers": _transformers,
}
