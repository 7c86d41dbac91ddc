"""Consistency of the documentation with the repository."""

import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import tables
from specds.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "scripts/README.md"]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)|(?:src|srcset)=\"([^\"]+)\"")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_outside_the_site_exist(page: Path) -> None:
    targets = [a or b for a, b in LINK.findall(page.read_text())]
    assert targets
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_acceptance_tables_equal_the_committed_rows(page: Path) -> None:
    text = page.read_text()
    assert "| `rest" in text
    assert tables.with_tables(text) == text


def test_architecture_describes_each_folder() -> None:
    described = set(re.findall(r"\*\*`(\w+)`", (ROOT / "docs/ARCHITECTURE.md").read_text()))
    crates = [ROOT / "rust/index", ROOT / "rust/core", ROOT / "python/specds"]
    names = ("mod.rs", "__init__.py")
    folders = {path.parent.name for of in crates for each in names for path in of.glob(f"*/{each}")}
    assert folders - described == set()


def test_crates_are_on_their_page() -> None:
    page = (ROOT / "docs/rust.md").read_text()
    for manifest in ROOT.glob("rust/*/Cargo.toml"):
        crate = tomllib.loads(manifest.read_text())
        name, is_binding = crate["package"]["name"], "crate-type" in crate["lib"]
        assert (f"| [`{name}`]" in page) != is_binding, name
        assert is_binding or (manifest.parent / "README.md").read_text().startswith(f"# {name}\n")
        is_published = crate["package"].get("publish", True)
        releasing = (ROOT / "docs/releasing.md").read_text()
        assert (f"    cargo publish -p {name}\n" in releasing) == is_published


@pytest.mark.parametrize("name", ["CONTRIBUTING", "docs/ARCHITECTURE", "docs/FORMAT", "docs/rust"])
def test_paths_named_by_pages_of_the_code_exist(name: str) -> None:
    text = (ROOT / f"{name}.md").read_text().replace("NAME.rs", "mod.rs")
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_.-]+)+)`", text))
    roots = [ROOT, ROOT / "python/specds", *ROOT.glob("rust/*")]
    ends = ("", ".rs")
    assert [
        path
        for path in named
        if not any((of / f"{path}{end}").exists() for of in roots for end in ends)
    ] == []


def test_names_in_comments_of_rust_exist() -> None:
    texts = [path.read_text() for path in ROOT.glob("rust/**/*.rs")]
    comments = re.findall(r"^ *//.*", "\n".join(texts), re.M)
    sources = [*texts, *(path.read_text() for path in ROOT.glob("python/**/*.py*"))]
    code = set(re.findall(r"\w+", re.sub(r"^ *//.*", "", "\n".join(sources), flags=re.M)))
    named = {name for line in comments for name in re.findall(r"`([a-z]\w*_\w+)`", line)}
    assert len(named) > 50
    assert named - code == set()


def test_tests_named_by_guarantees_exist() -> None:
    table = (ROOT / "docs/RELIABILITY.md").read_text().split("## Tests by guarantee")[1]
    named = set(re.findall(r"`([\w/]+\.(?:py|rs))`", table))
    assert len(named) > 15
    folders = [ROOT / "tests", *ROOT.glob("rust/*/tests")]
    assert [name for name in named if not any((of / name).exists() for of in folders)] == []


def test_make_rules_named_by_docs_exist() -> None:
    rules = set(re.findall(r"^([\w-]+(?: [\w-]+)*):", (ROOT / "Makefile").read_text(), re.M))
    rules = {rule for line in rules for rule in line.split()}
    named = {
        rule
        for page in DOCS
        for rule in re.findall(r"(?:`|^    )make ([a-z][\w-]*)", page.read_text(), re.M)
    }
    assert len(named) > 10
    assert named - rules == set()


# Options of other programs: pip, engines, cargo, transformers.
FOREIGN = {
    *("--additional-config", "--async-scheduling", "--speculative-config"),
    *("--max-model-len", "--middleware", "--model-path", "--shutdown-timeout"),
    *("--enable-log-requests", "--enable-log-outputs"),
    *("--speculative-algorithm", "--speculative-num-draft-tokens", "--ubatch-size"),
    "--speculative-ngram-max-bfs-breadth",
    *("--spec-type", "--spec-extern-lib", "--spec-extern-config", "--spec-extern-n-max"),
    *("--allow-requantize", "--no-repack", "--batch-size"),
    *("--rm", "--package-name", "--exclude-packages", "--extra-packages", "--build-from-source"),
    *("--no-deps", "--trust-remote-code", "--release", "--test", "--check", "--open"),
}
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*\w")
COMMAND = re.compile(r"(?:^    (?:[^`\n]*\| )?|`|&& |-m )specds ((?:[a-z-]+ )+)([^`|\n]*)", re.M)


@functools.cache
def help_of(*command: str) -> str:
    """Return the help of a command, and fail if there is none."""
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0, command
    return result.output


def names_of(command: str) -> tuple[str, ...]:
    """Return the words of a command line that are names of commands."""
    words = command.split()
    groups = [name for name, each in get_command(app).commands.items() if hasattr(each, "commands")]
    return tuple(words[: 2 if words[0] in groups else 1])


def bench_options() -> set[str]:
    """Return the options of the benchmarks, from their parsers."""
    texts = [path.read_text() for path in (ROOT / "benches").rglob("*.py")]
    options = {option for text in texts for option in re.findall(r'"(--[\w-]+)"', text)}
    names = [name for text in texts for name in re.findall(r"^    (\w+): Annotated", text, re.M)]
    return options | {"--" + name.replace("_", "-") for name in names}


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_named_by_docs_exist(page: Path) -> None:
    text = page.read_text().split("\n## Word list")[0].replace("\\\n", " ")
    for command, arguments in COMMAND.findall(text):
        options = set(OPTION.findall(arguments.split(" -- ")[0]))
        help_text = help_of(*names_of(command))
        assert options <= set(OPTION.findall(help_text)), (command, options)
    every = {"--version", "--help", *FOREIGN, *bench_options()}
    for command in commands():
        every.update(OPTION.findall(help_of(*command)))
    assert set(OPTION.findall(text)) - every == set()


def commands() -> Iterator[tuple[str, ...]]:
    for name, command in get_command(app).commands.items():
        yield from [(name, each) for each in getattr(command, "commands", {})] or [(name,)]


def test_environment_variables_of_the_package_are_documented() -> None:
    texts = [path.read_text() for path in (ROOT / "python").rglob("*.py")]
    variables = {name for text in texts for name in re.findall(r'"((?:SPECDS|XDG)_[A-Z_]+)"', text)}
    page = (ROOT / "docs/environment.md").read_text()
    assert variables
    assert [name for name in variables if f"`{name}`" not in page] == []
