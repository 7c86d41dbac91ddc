"""Options of `generate` and `chat` for structured output."""

import io
import json
import re

import pytest

SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}},
    "required": ["size"],
    "additionalProperties": False,
}


def test_text_matches_the_json_schema_of_a_file(run, tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    code, out, _ = run(
        *("generate", "--model", "demo-tiny", "--max-new-tokens", "40", "--temperature", "0"),
        *("--json-schema", str(path), "def main(", "--json"),
    )
    report = json.loads(out)
    assert code == 0
    assert json.loads(report["text"])["size"] in ("small", "large")


@pytest.mark.parametrize(
    ("option", "value", "pattern"),
    [
        ("--regex", "[a-c]{3}", "[a-c]{3}"),
        ("--json-schema", json.dumps(SCHEMA), r'\{"size": "(small|large)"\}'),
    ],
)
def test_replies_of_a_chat_match_the_grammar(run, chat_model, monkeypatch, option, value, pattern):
    monkeypatch.setattr("sys.stdin", io.StringIO("def add(a, b):\nimport os\n"))
    code, out, _ = run("chat", "--model", chat_model, "--max-new-tokens", 40, option, value)
    assert code == 0
    assert len(re.findall(pattern, out)) == 2


def test_text_that_ends_at_once_is_noted_without_the_end_token(run):
    options = ("generate", "--model", "demo-tiny", "x", "--regex")
    code, out, err = run(*options, "")
    assert (code, out.strip()) == (0, "")
    assert "the model ended the text at once" in err
    assert "ended the text at once" not in run(*options, "[a-c]{3}")[2]
