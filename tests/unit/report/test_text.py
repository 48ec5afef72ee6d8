"""Terminal, Markdown and CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console

from support.odd import LONG, SCRIPT, build, hostile, renamed, with_cells
from support.samples import comparison, with_added_memory
from sweeprof.report.csv import csv_text
from sweeprof.report.markdown import escaped, markdown
from sweeprof.report.terminal import Report, text
from sweeprof.results.measurement import Measurement

Golden = Callable[[str, str], None]


def test_markdown_is_as_agreed(golden: Golden) -> None:
    golden("comparison.md", markdown(comparison()))


def test_csv_is_as_agreed(golden: Golden) -> None:
    golden("comparison.csv", csv_text(comparison()))


def test_terminal_is_as_agreed(golden: Golden) -> None:
    golden("terminal.txt", text(comparison(), width=100))


@pytest.mark.parametrize("width", [20, 40, 60, 100, 200])
def test_the_terminal_keeps_to_its_width(width: int) -> None:
    for sample in (comparison(), hostile()):
        assert max(cell_len(line) for line in text(sample, width).splitlines()) <= width


def test_a_narrow_terminal_keeps_the_key_columns_and_says_what_it_dropped() -> None:
    narrow = text(comparison(), 60)
    assert "latency ↓  vs torch" in narrow
    assert "not shown at this width: throughput, peak memory" in narrow


def test_a_narrow_terminal_shows_the_added_memory_instead_of_an_interval() -> None:
    shown = text(with_added_memory(comparison()), 64)
    heads = [line for line in shown.splitlines() if line.startswith("batch_size")]
    assert re.split("  +", heads[0]) == ["batch_size", "backend", "latency ↓", "vs torch ↓", "added memory ↓"]
    assert "128 µs  " in shown
    assert shown.count("not shown at this width: throughput, agreement, latency interval") == 1
    assert "128 µs [126–132]" in text(with_added_memory(comparison()), 80)


@pytest.mark.parametrize(("height", "times"), [(200, 1), (20, 2)])
def test_a_terminal_that_is_too_low_ends_with_the_answer(height: int, times: int) -> None:
    out = io.StringIO()
    terminal = Console(file=out, width=100, height=height, force_terminal=True, color_system=None)
    terminal.print(Report(comparison()))
    finding = "torch is faster than tensorflow in all 7 cases"
    assert out.getvalue().count(finding) == times
    assert (finding in out.getvalue()[-400:]) == (times == 2)


def test_a_dumb_terminal_gets_ascii() -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as out:
        Console(file=out, width=100).print(Report(hostile()))
        out.flush()
        shown = raw.getvalue().decode("ascii")
    assert "latency v" in shown
    assert "x1.90 ~" in shown


def test_the_terminal_is_safe_from_escapes_and_markup() -> None:
    shown = text(renamed("a\x1b[2J", "[red]b[/red]"))
    assert "\x1b" not in shown
    assert "[red]b[/red]" in shown


def test_colours_only_repeat_what_words_say() -> None:
    out = io.StringIO()
    odd = with_cells(comparison(), "latency/forward", ratio=0.5, verdict="better")
    Console(file=out, width=100, force_terminal=True, color_system="standard").print(Report(odd))
    coloured = out.getvalue()
    assert "\x1b[31mcrashed: timing" in coloured
    assert "\x1b[32m×0.50 better\x1b[0m" in coloured


def test_the_answer_comes_first_and_then_the_headline() -> None:
    first = markdown(comparison()).splitlines()[0]
    assert first.startswith(
        "**torch is faster than tensorflow in all 7 cases, 1.9× overall.** "
        "16 of 18 combinations measured; 1 crashed, 1 unsupported. Confidence: low"
    )


def test_markdown_tables_stay_tables() -> None:
    shown = markdown(hostile())
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert len(rows) == 18 + 3 * 2
    assert {line.replace(r"\|", "").count("|") for line in rows} <= {8, 9}
    assert SCRIPT not in shown
    assert "&lt;script&gt;" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a|b\nc", r"a\|b c"),
        ("batch_size _x_", r"batch_size \_x\_"),
        ("![x](http://e.org)", r"\!\[x\](http://e.org)"),
        ("a & <b>", "a &amp; &lt;b&gt;"),
    ],
)
def test_markdown_escapes(given: str, expected: str) -> None:
    assert escaped(given) == expected


def test_a_command_cannot_close_its_fence() -> None:
    shown = markdown(dataclasses.replace(comparison(), command="echo ```\n# not a heading"))
    assert "````sh\necho ```\n" in shown


def test_markdown_says_what_was_excluded_and_where_it_ran() -> None:
    shown = markdown(comparison())
    assert "**Excluded** (1)\n\n- model=mlp, batch_size=512 – exclude: model=mlp batch_size=512" in shown
    assert "**Environment** host node1 · os Linux 6.1" in shown
    assert shown.endswith("```sh\npython -m sweeprof +sweep=quickstart\n```\n")
    bare = dataclasses.replace(comparison(broken=False), excluded=(), environment={}, command="")
    assert "Environment" not in markdown(bare)
    assert "| status |" not in markdown(bare)


def test_csv_values_are_exact() -> None:
    sample = comparison()
    rows = list(csv.DictReader(io.StringIO(csv_text(sample))))
    assert list(rows[0]) == [*sample.axes, "status", "reason", *(info.name for info in sample.metrics)]
    for row, found in zip(sample.rows, rows, strict=True):
        for name, cell in row.cells.items():
            value = cell.measurement.value
            assert found[name] == ("" if value is None else repr(value))
        assert found["reason"] == (row.reason or "")


def test_columns_of_the_csv_have_different_names_whatever_an_axis_is_called() -> None:
    names = ("status", "axis.status", "reason", "m/a", "size.model", "model", "qualifies")
    point = {name: f"value of {name}" for name in names}
    odd = build([point, {**point, "model": "b"}], {"m/a": ("s", "lower")}, [{"m/a": 1.0}, {"m/a": 2.0}])
    odd = dataclasses.replace(odd, constraints=("m/a < 3 s",))
    header = next(csv.reader(io.StringIO(csv_text(odd))))
    assert len(set(header)) == len(header)
    row = next(csv.DictReader(io.StringIO(csv_text(odd))))
    assert (row["status"], row["axis.axis.status"], row["axis.status"]) == (
        "ok",
        "value of status",
        "value of axis.status",
    )
    assert (row["axis.m/a"], row["m/a"], row["axis.qualifies"]) == ("value of m/a", "1.0", "value of qualifies")
    assert (row["model"], row["size.model"]) == ("value of model", "value of size.model")


@pytest.mark.parametrize("render", [csv_text, markdown, text])
def test_missing_values_are_never_a_number(render: Callable[..., str]) -> None:
    missing = Measurement("latency/forward", "s", "lower", math.nan)
    shown = render(with_cells(comparison(), "latency/forward", measurement=missing, ratio=None)).replace(
        "not a finite number: nan", ""
    )
    assert "nan" not in shown.lower()
    crashed = next(line for line in csv_text(comparison()).splitlines() if ",crashed," in line)
    assert crashed.endswith("," * 13)


def test_csv_quotes_what_would_break_it() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(hostile()))))
    assert len(rows) == 18
    assert {row["model"] for row in rows} == {f"{SCRIPT}|`*_$ [31m", LONG, '"><img src=x onerror=alert(2)>'}


@pytest.mark.parametrize("render", [csv_text, markdown, text])
def test_a_users_own_metric_is_shown(render: Callable[..., str]) -> None:
    odd = build([{"n": 1}, {"n": 2}], {"speed/walk": ("furlongs", None)}, [{"speed/walk": 12.25}, {"speed/walk": 3}])
    assert "speed/walk" in render(odd)
