"""Checker of the house's English: the word list of CONTRIBUTING and the rules of first words.

`python tests/helpers/words.py PATH...` prints each violation below the paths as `file:line: text`.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDERS = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "Makefile",
    "docs",
    "rust",
)
FOLDERS += ("python", "tests", "benches", "examples", "integrations", "scripts")

_SUFFIXES = (".md", ".py", ".pyi", ".rs", ".c", ".h", ".cpp", ".sh")
_LIST_HEADING = "## Word list"
_QUESTION_WORDS = "What|Whether|How|Where|When|Why|Who|Whom|Whose"
_FIRST_WORD = re.compile(rf"(?:{_QUESTION_WORDS}|Which|Of|As|The same)\b(?! `?--)")
_HEADING = re.compile(rf"(?:{_QUESTION_WORDS}|Which)\b|.*\?$")
_TEST_NAME = re.compile(r"test (?:what|it|no|of|at|nothing|who|whom|how|where|whether) ")
_RUST_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass
class Fragment:
    line: int
    text: str
    # Docstrings and headings obey the rules of first words.
    kind: str


def banned() -> list[re.Pattern[str]]:
    """Return the patterns that the word list says not to write."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split(_LIST_HEADING)[1].split("\n## ")[0]
    rows = re.findall(r"^\* .*?: not (.*)$", section, re.M)
    words = [word for row in rows for word in re.findall(r"`([^`]+)`", row)]
    return [re.compile(rf"(?<![\w`/.-]){word}(?![\w`/-])", re.I) for word in words]


def _of_markdown(text: str) -> Iterator[Fragment]:
    fenced = False
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced or line.startswith("    "):
            continue
        if line.startswith("## "):
            section = line
        if section == _LIST_HEADING:
            continue
        heading = re.match(r"#+ (.*)", line)
        prose = re.sub(r"`[^`]*`|\]\([^)]*\)|<[^>]*>", " ` ", heading[1] if heading else line)
        yield Fragment(number, prose, "heading" if heading else "prose")


def _of_python(text: str, strings: bool) -> Iterator[Fragment]:
    tree = ast.parse(text)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node) and isinstance(first, ast.Expr):
                docstrings.add(id(first.value))
                kind = "heading" if isinstance(node, ast.Module) else "docstring"
                lines = str(ast.get_docstring(node)).splitlines()
                yield Fragment(first.lineno, lines[0], kind)
                for offset, line in enumerate(lines[1:], 1):
                    yield Fragment(first.lineno + offset, line, "prose")
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield Fragment(node.lineno, node.name.replace("_", " "), "test")
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if strings and is_text and id(node) not in docstrings and len(node.value.split()) > 2:
            yield Fragment(node.lineno, node.value, "prose")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Fragment(token.start[0], token.string, "prose")


def _of_rust(text: str, strings: bool) -> Iterator[Fragment]:
    documented = False
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.match(r"\s*(//[/!]?) ?(.*)", line)
        if comment:
            kind = "prose" if documented or comment[1] == "//" else "docstring"
            yield Fragment(number, comment[2], kind)
            documented = True
            continue
        documented = False
        if strings:
            for literal in _RUST_STRING.findall(line):
                if len(literal.split()) > 2:
                    yield Fragment(number, literal, "prose")


def _of_other(text: str) -> Iterator[Fragment]:
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.search(r"(?:^|\s)(?:##?|//|\*) (.*)", line)
        if comment:
            yield Fragment(number, comment[1], "prose")


def fragments(path: Path) -> Iterator[Fragment]:
    """Yield the prose of a file: pages, docstrings, comments, and messages outside tests."""
    if path.suffix not in _SUFFIXES and path.name != "Makefile":
        return
    text = path.read_text()
    strings = not {"tests", "benches"} & set(path.relative_to(ROOT).parts)
    if path.suffix == ".md":
        yield from _of_markdown(text)
    elif path.suffix in (".py", ".pyi"):
        yield from _of_python(text, strings)
    elif path.suffix == ".rs":
        yield from _of_rust(text, strings)
    else:
        yield from _of_other(text)


def violations(paths: list[Path]) -> list[str]:
    """Return `file:line: text` for each fragment that breaks the word list or a rule."""
    patterns = banned()
    found = []
    for path in paths:
        for fragment in fragments(path):
            text = re.sub(r"`[^`]*`", "`", fragment.text)
            # A pattern sees a line's words alone: a sentence may go over several lines.
            hits = [hit[0] for pattern in patterns for hit in pattern.finditer(text)]
            if fragment.kind == "docstring" and (first := _FIRST_WORD.match(text)):
                hits.append(f"begins with {first[0]}")
            if fragment.kind == "heading" and _HEADING.match(text):
                hits.append("not a noun phrase")
            if fragment.kind == "test" and _TEST_NAME.match(text):
                hits.append("names no subject")
            if hits:
                place = f"{path.relative_to(ROOT)}:{fragment.line}"
                found.append(f"{place}: [{', '.join(hits)}] {fragment.text.strip()[:90]}")
    return found


def files(below: list[str]) -> list[Path]:
    """Return the files of the repository below the given paths."""
    command = ["git", "-C", str(ROOT), "ls-files", "--", *below]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).is_file()]


if __name__ == "__main__":
    found = violations(files(sys.argv[1:] or list(FOLDERS)))
    print(*found, f"{len(found)} violations", sep="\n")
