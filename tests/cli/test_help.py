"""Help fits any terminal, names what is wanted, and has examples that can be copied."""

import re
import shlex

import pytest
import typer

from specds.cli import app

GROUPS = typer.main.get_command(app)
COMMANDS = [[name] for name in GROUPS.commands if name != "bench"]
COMMANDS += [["bench", name] for name in GROUPS.commands["bench"].commands]
NAMES = [" ".join(command) for command in COMMANDS]


def helped(run, monkeypatch, width, *command):
    from specds import terminal

    monkeypatch.setattr(terminal.out, "_width", width)
    code, out, err = run(*command, "-h")
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("command", [*COMMANDS, [], ["bench"]], ids=[*NAMES, "specds", "group"])
def test_no_word_is_broken_and_no_line_is_too_long(run, monkeypatch, width, command):
    shown = helped(run, monkeypatch, width, *command)
    assert max(map(len, shown.splitlines())) <= width
    widest = helped(run, monkeypatch, 1000, *command)
    # Of one example a line may end in a backslash.
    assert shown.replace("\\\n", " ").split() == widest.replace("\\\n", " ").split()
    assert not re.search("<(str|int|bool|path|float)|None", shown)


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_each_option_says_what_it_wants_and_what_it_is_for(command):
    parameters = GROUPS
    for name in command:
        parameters = parameters.commands[name]
    for parameter in parameters.params:
        is_flag = getattr(parameter, "is_flag", False)
        assert parameter.help, parameter.name
        assert is_flag or parameter.metavar, parameter.name


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_examples_name_options_that_exist(run, monkeypatch, command):
    shown = helped(run, monkeypatch, 70, *command)
    examples = shown.split("Examples\n")[1].split("\n\n")[0].replace("\\\n", "")
    ours = [line for line in examples.splitlines() if "specds " in line]
    assert ours
    for line in ours:
        words = shlex.split(line)
        called = words[words.index("specds") + 1 :] if "specds" in words else []
        if called[: len(command)] == command:
            for option in (word for word in called if word.startswith("--")):
                assert re.search(rf"^ +(\S+, |\S+ / )?{option}\b", shown, re.MULTILINE), option


def test_help_is_a_command_too(run, monkeypatch):
    shown = helped(run, monkeypatch, 80, "bench", "replay")
    assert run("help", "bench", "replay")[1] == shown
    assert run("help")[0] == 0
    assert run()[0] == run("bench")[0] == 0
