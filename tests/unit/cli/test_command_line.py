"""What is typed: misspelt options of subcommands, and values of overrides, read by Hydra's own parser."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from sweeprof.cli.common import COMMANDS, command_parser
from sweeprof.cli.run import hydra_arguments, run_command
from sweeprof.config.override_syntax import doubled, spelled, with_quotes

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
    ],
)
def test_other_mistakes(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(arguments) == 1
    assert f"error: {error}" in capsys.readouterr().err


def read(value: object) -> object:
    """The value that Hydra reads where ``value`` is written."""
    return OverridesParser.create().parse_override(f"key={spelled(value)}").value()


@pytest.mark.parametrize(
    "text",
    [r"\d+", r"C:\data", "it's", r"ends with \\", r"\'quoted\'", "a, b", "1e5", "null", "", "Bänke/x.csv", "日本"],
)
def test_hydra_reads_the_text_that_was_written(text: str) -> None:
    assert read(text) == text
    assert read([text, 1]) == [text, 1]
    assert read({"key": text}) == {"key": text}


@given(st.text("a\\' ", max_size=8))
def test_quotes_and_backslashes_survive_in_any_order(text: str) -> None:
    assert read(text) == text


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("Bänke/läufe 1.csv", "Bänke/läufe 1.csv"),
        ("[größe, '~/ä,b', 3]", ["größe", "~/ä,b", 3]),
        ("{model: mäp, n: 2}", {"model": "mäp", "n": 2}),
        ("http://höst:5000/a", "http://höst:5000/a"),
        ("a/b~c", None),
        (r"C:\\Bänke", None),
        ("5", 5),
    ],
)
def test_letters_of_every_language_need_no_quotes(typed: str, value: object) -> None:
    if value is None:
        assert with_quotes(typed) == typed
    else:
        assert OverridesParser.create().parse_override(f"key={with_quotes(typed)}").value() == value


def test_the_command_line_quotes_them() -> None:
    typed = ["output=Läufe", "+sweep=nächtlich", "name=größe", "model.path=~/a.onnx"]
    assert hydra_arguments(typed)[1:] == [
        "output='Läufe'",
        "+sweep@_global_='nächtlich'",
        "name='größe'",
        "++model.path='~/a.onnx'",
    ]


def test_several_values_are_quoted_one_by_one() -> None:
    override = OverridesParser.create().parse_override(f"key={with_quotes('Bänke/a.csv,b.csv,größe')}")
    assert [value.strip("'") for value in override.sweep_string_iterator()] == ["Bänke/a.csv", "b.csv", "größe"]


def test_doubling() -> None:
    assert doubled("doubling(1,256)") == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert doubled(" doubling( 3 , 20 ) ") == [3, 6, 12]
    assert doubled("doubling(4,4)") == [4]
    assert doubled("range(1,4)") is None
    for text in ("doubling(0,64)", "doubling(8,4)"):
        with pytest.raises(ValueError, match="has no values"):
            doubled(text)
    for text in ("doubling(1)", "doubling(1,2,3)", "doubling(1.5,4)", "doubling(a,b)", "doubling(-1,4)"):
        with pytest.raises(ValueError, match="two whole numbers"):
            doubled(text)
