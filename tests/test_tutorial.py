"""Code of README and the tutorial, run with a demo model."""

import io
import re
import shlex
import sys

import pytest

from gguf_models import byte_tokenizer, write_model
from pages import ROOT, WITH_CODE

NAME = re.compile(r"Qwen/[\w.-]+")
BLOCK = re.compile(r"^```python\n(.*?)^```|^((?: {4}specds [^\n]*\n)+)", re.MULTILINE | re.DOTALL)


def steps(page, section=""):
    """Return the Python blocks and commands of a page in order: `(code, commands)`."""
    text = (ROOT / page).read_text()
    return BLOCK.findall(text[text.index(section) :])


@pytest.mark.parametrize("page", WITH_CODE)
def test_page_code_runs(page, run, chat_model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("def main(argv):\n    return len(argv)\n" * 9)
    extra = byte_tokenizer("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    write_model(tmp_path / "model.gguf", "llama", ("Q8_0",), vocab=258, extra=extra)
    names, done, wrote = {}, [], ""
    for code, commands in steps(page):
        if code and ">>>" not in code:
            # Shorter texts suffice.
            code = NAME.sub(str(chat_model), code).replace("=256", "=24").replace("=64", "=24")
            exec(compile(code, page, "exec"), names)
            done.append(code)
            wrote += capsys.readouterr().out
        for command in map(str.strip, commands.splitlines()):
            words = [NAME.sub(str(chat_model), word) for word in shlex.split(command)]
            monkeypatch.setattr(sys, "stdin", io.StringIO("What is a trie?\n"))
            limit = ["--max-new-tokens", 24] if words[1] in ("chat", "generate") else []
            status, _, err = run(*words[1:], *limit)
            assert status == 0, f"{command}: {err}"
            done.append(command)
    assert len(done) >= 4
    assert " tokens in " in wrote
