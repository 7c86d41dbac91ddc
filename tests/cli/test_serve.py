"""`specds serve` finds the engine, says what it runs, and becomes it."""

import json
import os
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from specds.integrations import serve

DOCS = (Path(__file__).parents[2] / "docs/serving.md").read_text()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A llama-server that takes a drafter, alone on the PATH, with the library beside it."""
    path = tmp_path / "llama-server"
    path.write_text("#!/bin/sh\n[ $1 = --help ] && echo --spec-extern-lib || /bin/echo ran $@\n")
    path.chmod(0o755)
    (tmp_path / "libspecds.so").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(serve.LIBRARY, raising=False)
    return path


def installed(monkeypatch, *names):
    engines = set(serve._ENGINES) - set(names)
    monkeypatch.setattr(serve, "find_spec", lambda name: name not in engines and find_spec("json"))


def words(line):
    """The words of a command line, JSON read."""
    read = (word.partition("{") for word in shlex.split(line))
    return [(start, json.loads(brace + rest)) if brace else start for start, brace, rest in read]


def test_a_gguf_file_is_served_by_llama_server(run, server, datastore, monkeypatch):
    monkeypatch.setattr(os, "execvpe", lambda *given: executed.append(given))
    executed = []
    more = ("--port", "80", "--memory", "of the engine")
    given = ("m.gguf", "--datastore", datastore, "--memory", "kept")
    code, out, err = run("serve", *given, "--", *more)
    assert code == 0
    options = {"memory_scope": "shared", "snapshot": "kept", "sync_interval": 60.0}
    extern = ["--spec-type", "extern", "--spec-extern-lib", str(server.with_name("libspecds.so"))]
    config = ("", {"datastore": str(datastore), **options})
    assert words(out) == [
        *(str(server), "--model", "m.gguf", *extern, "--spec-extern-config", config, *more)
    ]
    assert "earlier requests" in err
    assert str(datastore) in err
    [(program, arguments, _)] = executed
    assert program == str(server)
    assert shlex.join(arguments) == out.strip()


def test_what_llama_server_lacks_is_told(run, server, monkeypatch):
    server.with_name("libspecds.so").unlink()
    assert "no libspecds" in run("serve", "m.gguf", "--dry-run")[2]
    monkeypatch.setenv(serve.LIBRARY, "/opt/libspecds.so")
    assert "/opt/libspecds.so" in run("serve", "m.gguf", "--dry-run")[1]
    server.write_text("#!/bin/sh\n")
    assert "takes no external drafter" in run("serve", "m.gguf")[2]
    server.unlink()
    assert "not on the PATH" in run("serve", "m.gguf")[2]


@pytest.mark.parametrize(("engine", "first"), [("vllm", "VLLM_USE"), ("sglang", "SPECDS_CONFIG")])
def test_lines_are_those_of_the_documentation(run, monkeypatch, tmp_path, engine, first):
    installed(monkeypatch, engine, "transformers")
    monkeypatch.chdir(tmp_path)
    block = re.search(rf"(?:^    {first}.*\n)(?:^    .*\n)+", DOCS, re.MULTILINE)[0]
    block = block.replace("\\\n", " ").replace(" MODEL", " org/model")
    code, out, _ = run("serve", "org/model", "--datastore", "chat.specds", "--dry-run")
    assert code == 0
    told = [sys.executable if word == "python" else word for word in words(block)]
    assert words(out) == told


def test_transformers_serves_a_folder_that_generates_with_specds(run, monkeypatch, tmp_path):
    installed(monkeypatch, "transformers")
    assert "export-generate" in run("serve", tmp_path)[2]
    (tmp_path / "custom_generate").mkdir()
    (tmp_path / "custom_generate" / "generate.py").touch()
    code, out, _ = run("serve", tmp_path, "--dry-run", "--", "--port", "80")
    assert code == 0
    line = ["transformers", "serve", "--trust-remote-code", str(tmp_path), "--port", "80"]
    assert words(out) == line
    assert "leave it out" in run("serve", tmp_path, "--memory", "kept")[2]
    installed(monkeypatch)
    assert "no engine is installed" in run("serve", tmp_path)[2]
