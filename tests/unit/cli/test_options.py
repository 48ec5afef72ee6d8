"""Misspelt options of subcommands, in any order and beside other mistakes."""

from __future__ import annotations

import pytest

from sweeprof.cli.common import COMMANDS, command_parser
from sweeprof.cli.run import run_command

OPTIONS = [
    (name, option)
    for name in COMMANDS
    for option in command_parser(name)._option_string_actions
    if option.startswith("--")
]


@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=lambda text: text.lstrip("-"))
def test_a_misspelt_option_has_its_nearest(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    misspelt = f"{option[:-2]}{option[-1]}{option[-2]}x"
    for arguments in ([misspelt, "a", "b"], ["a", f"{misspelt}=3"], [misspelt]):
        if command == "lines" and arguments[0] == "a":  # the options of the script
            continue
        assert run_command([command, *arguments]) == 1
        message = capsys.readouterr().err
        assert message.startswith(
            f"error: sweeprof {command}: '{misspelt}' is not an option. Did you mean '{option}'? Known: --"
        )
        assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["compare", "a", "b", "c"], "unrecognized arguments: c; see sweeprof compare --help"),
        (["ui", "--port"], "argument --port: expected one argument; see sweeprof ui --help"),
        (["ui", "--port", "-x"], "sweeprof ui: '-x' is not an option. Known: "),
        (["prune", "a"], "the following arguments are required: --keep; see sweeprof prune --help"),
        (
            ["prun", "a"],
            "command line: 'prun' is not an override (expected KEY=VALUE) or a subcommand. A sweep is started by overrides alone, ",
        ),
    ],
)
def test_other_mistakes(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(arguments) == 1
    assert f"error: {error}" in capsys.readouterr().err
