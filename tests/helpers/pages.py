"""Command lines of README and the pages."""

import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WITH_CODE = ("README.md", "docs/tutorial.md")
"""Pages whose commands and Python code run together, in `test_tutorial`."""
_FOUND = (*ROOT.glob("docs/*.md"), *ROOT.glob("docs/engines/*.md"))
PAGES = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in _FOUND))

_PROGRAMS = (
    *("specds", "pip", "make", "git", "cat", "echo", "hf", "transformers", "vllm", "cargo"),
    *("docker", "brew"),
)
_LIKE_A_PROGRAM = re.compile(r"[a-z][\w./-]*")
# First words of indented lines of Python, of output and of drawings.
_NOT_PROGRAMS = ("a", "import", "for")
_CODE = re.compile(r"^```(?!bash)\w+\n.*?^```", re.DOTALL | re.MULTILINE)
_LINES = re.compile(
    r"^ {4}(?P<indented>[^\s>][^\n]*)$"
    r"|^```bash\n(?P<fenced>.*?)^```"
    r"|`(?P<inline>(?:specds|pip|hf|transformers|cargo) [^`\n]+)`",
    re.DOTALL | re.MULTILINE,
)


@functools.cache
def lines(page: str) -> list[tuple[str, str]]:
    """Return the command lines of a page in order, each after the text that is before it."""
    text = _CODE.sub("", re.sub(r"\\\n *", "", (ROOT / page).read_text()))
    found = []
    for each in _LINES.finditer(text):
        for line in each[each.lastgroup].splitlines():
            words = line.split()
            is_sentence = each.lastgroup == "inline" and not _is_whole(words)
            if not is_sentence and (each.lastgroup != "indented" or is_command(page, words)):
                found.append((text[: each.start()], re.sub(r"\s+# .*", "", line)))
    return found


def _is_whole(words: list[str]) -> bool:
    """Return whether a command in a sentence has arguments, of which one option is none."""
    names = 3 if words[1:2] in (["bench"], ["memory"]) else 2
    return len(words) > names + "".join(words[names:]).startswith("--")


def is_command(page: str, words: list[str]) -> bool:
    """Return whether a line is a command; what may be one must be known as something else."""
    if words[0].startswith(("python", "llama.cpp/", "SPECDS_")) or words[0] in _PROGRAMS:
        return True
    if not _LIKE_A_PROGRAM.fullmatch(words[0]) or "=" in words or "->" in words:
        return False
    assert words[0] in _NOT_PROGRAMS, f"{page}: is this a command? {' '.join(words)}"
    return False
