"""Help fits a terminal, names what is wanted, and has examples that can be copied."""

import re
import shlex

import pytest
import typer

from specds.cli import app

GROUPS = typer.main.get_command(app)
COMMANDS = [[name] for name in GROUPS.commands if name not in ("bench", "memory")]
COMMANDS += [
    [group, name] for group in ("bench", "memory") for name in GROUPS.commands[group].commands
]
NAMES = [" ".join(command) for command in COMMANDS]


def helped(run, *command):
    code, out, err = run(*command, "-h")
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("command", [*COMMANDS, [], ["bench"]], ids=[*NAMES, "specds", "group"])
def test_help_fits_width_and_shows_no_python_types(run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "84")
    shown = helped(run, *command)
    assert max(map(len, shown.splitlines())) <= 84
    assert not re.search("<(str|int|bool|path|float)|None|typer", shown)


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_each_option_has_a_metavar_and_a_help_text(command):
    parameters = GROUPS
    for name in command:
        parameters = parameters.commands[name]
    for parameter in parameters.params:
        is_flag = getattr(parameter, "is_flag", False)
        assert parameter.help, parameter.name
        assert is_flag or parameter.metavar, parameter.name


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_examples_name_options_that_exist(run, command):
    shown = helped(run, *command)
    examples = re.split("Examples?:\n", shown)[1].split("\n\n")[0]
    ours = [line for line in examples.splitlines() if "specds " in line]
    assert ours
    for line in ours:
        words = shlex.split(line.partition(" -- ")[0])  # the rest is another's
        called = words[words.index("specds") + 1 :] if "specds" in words else []
        if called[: len(command)] == command:
            for option in (word for word in called if word.startswith("--")):
                assert re.search(rf"^ +(\S+, |\S+ / )?{option}\b", shown, re.MULTILINE), option


def test_help_is_a_command_too(run):
    shown = helped(run, "bench", "acceptance")
    assert run("help", "bench", "acceptance")[1] == shown
    assert run("help")[0] == 0
    assert run()[0] == run("bench")[0] == 0
