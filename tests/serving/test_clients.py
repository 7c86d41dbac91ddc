"""Programs for OpenAI's API in an environment of their own (`make test-clients`)."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import specds
from serving import listening, make_served, tiny
from specds._lazy import imported

pytestmark = pytest.mark.client

PROMPT = "def add(a, b):"
FILE, EDITED = "add.py", "def add(a, b):\n    return a + b\n"
LITELLM = """
import json, sys, litellm
base, kind = sys.argv[1:]
asked = {"model": f"{kind}/tiny", "api_base": base, "api_key": "none", "max_tokens": 20}
asked["messages"] = [{"role": "user", "content": "def add(a, b):"}]
asked["temperature"] = 0
whole = litellm.completion(**asked)
parts = litellm.completion(**asked, stream=True)
text = "".join(part.choices[0].delta.content or "" for part in parts)
print(json.dumps([whole.choices[0].message.content, text, whole.usage.completion_tokens]))
"""


@pytest.fixture(scope="module")
def model():
    return tiny(context_length=8192)


@pytest.fixture
def run(tmp_path):
    """Run a program of the environment without this one's packages; returns what it prints."""

    def run(program, *arguments, **more):
        path = shutil.which(program)
        assert path is not None, "`make test-clients` installs the programs"
        own = {"HOME": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
        done = subprocess.run(
            [path, *arguments], env={**os.environ, **own, **more}, cwd=tmp_path,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def wanted(model):
    """The text of the model alone."""
    model, tokenizer = model
    ids = tokenizer.apply_chat_template([{"role": "user", "content": PROMPT}])
    output = specds.generate(model, ids, max_nodes=0, max_new_tokens=20)
    return tokenizer.decode(output.sequences[0, len(ids) :], skip_special_tokens=True)


@pytest.mark.parametrize(("kind", "path"), [("openai", "/v1"), ("ollama_chat", "")])
def test_litellm(model, run, wanted, kind, path):
    with listening(make_served(*model)) as address:
        program = str(Path(shutil.which("litellm") or "").with_name("python"))
        output = run(program, "-c", LITELLM, address + path, kind)
    assert json.loads(output.splitlines()[-1]) == [wanted, wanted, 20]


@pytest.mark.parametrize("more", [["--no-stream"], []])
def test_llm(model, run, wanted, tmp_path, more):
    with listening(make_served(*model)) as address:
        about = {"model_id": "tiny", "model_name": "tiny", "api_base": f"{address}/v1"}
        (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([about]))
        options = ["--key", "none", "-o", "max_tokens", "20", "-o", "temperature", "0", *more]
        output = run("llm", "-m", "tiny", PROMPT, *options, LLM_USER_PATH=str(tmp_path))
    assert output.strip() == wanted.strip()


def test_aider_edits_a_file(model, run, tmp_path):
    """A grammar has the small model write the edit, whose file the program then changes."""
    served = make_served(*model)
    reply = f"{FILE}\n```\n{EDITED}```\n"
    read = served.reader.chat

    def forced(body, tenant):
        call = read(body, tenant)
        source = f"start: {json.dumps(reply)}"
        known = served.reader._known_tokens
        call.prompts[0].__dict__["grammar"] = imported("llguidance").LLMatcher(known, source)
        return call

    served.reader.chat = forced
    (tmp_path / FILE).write_text("def add(a, b):\n    return a - b\n")
    with listening(served) as address:
        off = ["--no-git", "--no-show-model-warnings", "--no-check-update", "--analytics-disable"]
        off += ["--no-pretty", "--no-gitignore", "--no-show-release-notes", "--yes-always"]
        of_server = ["--model", "openai/tiny", "--openai-api-base", f"{address}/v1"]
        of_server += ["--openai-api-key", "none", "--edit-format", "whole"]
        output = run("aider", *off, *of_server, "--message", "Mend the sum.", FILE)
    assert "Applied edit" in output
    assert (tmp_path / FILE).read_text() == EDITED
