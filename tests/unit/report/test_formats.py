"""A comparison in the terminal, as Markdown, CSV, LaTeX and as the comment for a pull request; nothing in a name does anything."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console

from support.samples import (
    LONG,
    NOISY,
    SCRIPT,
    build,
    chosen,
    comparison,
    furlongs,
    hostile,
    renamed,
    trained,
    with_added_memory,
    with_cells,
    worse,
)
from sweeprof.errors import UserError
from sweeprof.report import csv as csv_tables
from sweeprof.report import latex as tex
from sweeprof.report.changes import changes_of, comparison_markdown, junit
from sweeprof.report.csv import Tidy, csv_chunks, csv_text, measurements, problems, rounds, samples, write_parquet
from sweeprof.report.latex import latex
from sweeprof.report.markdown import Comment, escaped, sanitised
from sweeprof.report.terminal import Report, text
from sweeprof.results.compared_rows import Comparison, set_against
from sweeprof.results.constraints import with_selection
from sweeprof.results.differences import Cell
from sweeprof.results.measurement import Better, Measurement
from sweeprof.results.record import Record, Warning

LIMIT = 65_536
"""Bytes of a comment on GitHub."""


def nightly() -> Comparison:
    """The quickstart beside a sweep in which nothing was broken and a row was missing; a clock was lost since."""
    now, base = comparison(broken=True), comparison(broken=False)
    base = dataclasses.replace(base, name="yesterday", rows=base.rows[:-1], sweep_id="s0")
    cell = now.rows[0].cells["latency/forward"]
    lost = dataclasses.replace(cell.measurement, value=None, reason="no clock")
    cells = {**now.rows[0].cells, "latency/forward": dataclasses.replace(cell, measurement=lost)}
    now = dataclasses.replace(now, rows=(dataclasses.replace(now.rows[0], cells=cells), *now.rows[1:]))
    return set_against(now, base, "tag:nightly")


def alone() -> Comparison:
    """The quickstart without a baseline, and without anything to say of the machine."""
    sample = dataclasses.replace(comparison(), baseline={}, excluded=(), environment={}, command="")
    sample = with_cells(sample, "latency/forward", ratio=None, verdict=None, verdict_reason=None)
    rows = tuple(dataclasses.replace(row, baseline_id=None, baseline_status=None) for row in sample.rows)
    return dataclasses.replace(sample, rows=rows)


SAMPLES: dict[str, Comparison] = {
    "quickstart": comparison(),
    "worse": worse(),
    "nightly": nightly(),
    "alone": alone(),
    "modes": trained("inference", "training"),
    "training": trained("training"),
    "chosen": with_selection(chosen(), ["latency", "accuracy"], ["latency < 5 ms"]),
    "furlongs": furlongs(),
}
FORMATS: dict[str, Callable[[Comparison], str]] = {
    "txt": text,
    "md": comparison_markdown,
    "csv": csv_text,
    "tex": latex,
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_it_is_as_agreed(sample: str, format: str, golden: Callable[[str, str], None]) -> None:
    golden(f"reports/{sample}.{format}", FORMATS[format](SAMPLES[sample]))


# The terminal


@pytest.mark.parametrize("width", [20, 40, 60, 100, 200])
def test_the_terminal_keeps_to_its_width(width: int) -> None:
    for sample in (comparison(), hostile()):
        assert max(cell_len(line) for line in text(sample, width).splitlines()) <= width


def test_a_narrow_terminal_shows_four_figures_instead_of_an_interval() -> None:
    shown = text(with_added_memory(comparison()), 80)
    heads = [line for line in shown.splitlines() if re.match("batch_size +backend", line)]
    columns = ["batch_size", "backend", "latency ↓", "vs torch ↓", "throughput ↑", "added memory ↓"]
    assert {tuple(re.split("  +", head)) for head in heads} == {tuple(columns)}
    assert "128 µs  " in shown
    assert shown.count("not shown at this width: agreement, latency interval") == 1
    assert "128 µs [126–132]" in text(with_added_memory(comparison()), 90)


@pytest.mark.parametrize(("height", "times"), [(200, 1), (20, 2)])
def test_a_terminal_that_is_too_low_ends_with_the_answer(height: int, times: int) -> None:
    out = io.StringIO()
    terminal = Console(file=out, width=100, height=height, force_terminal=True, color_system=None)
    terminal.print(Report(comparison()))
    finding = "No certain difference between torch and tensorflow in 7 of 9 cases"
    assert out.getvalue().count(finding) == times
    assert (finding in out.getvalue()[-1800:]) == (times == 2)


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
    assert "\x1b[31mcrashed: timing" in out.getvalue()
    assert "\x1b[32m×0.50 better\x1b[0m" in out.getvalue()


# Markdown


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
    shown = comparison_markdown(dataclasses.replace(comparison(), command="echo ```\n# not a heading"))
    assert "````sh\necho ```\n" in shown


# CSV


@pytest.mark.parametrize(("reason", "is_left_out"), [("mode=training: of inference", True), ("no counter", False)])
def test_the_csv_leaves_out_metrics_of_modes_that_no_row_has(reason: str, is_left_out: bool) -> None:
    found = build([{"model": "a"}, {"model": "b"}], {"m/a": ("s", "lower"), "m/b": ("s", "lower")}, [{"m/a": 1.0}] * 2)
    rows = []
    for row in found.rows:
        empty = Measurement("m/b", "s", "lower", None, reason)
        rows.append(dataclasses.replace(row, cells={**row.cells, "m/b": Cell(empty)}))
    (header, *_) = csv.reader(io.StringIO(csv_text(dataclasses.replace(found, rows=tuple(rows)))))
    assert header == ["model", "status", "reason", "m/a", *([] if is_left_out else ["m/b"])]


def test_csv_quotes_what_would_break_it() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(hostile()))))
    assert len(rows) == 18
    assert {row["model"] for row in rows} == {f"{SCRIPT}|`*_$ [31m", LONG, '"><img src=x onerror=alert(2)>'}


# The answer first, short enough for a comment


def test_the_worst_is_first() -> None:
    rows = list(worse().rows)
    place = next(i for i, row in enumerate(rows) if row.axes == {**row.axes, "model": "mlp", "backend": "tensorflow"})
    cell = dataclasses.replace(rows[place].cells["latency/forward"], ratio=7.0)
    rows[place] = dataclasses.replace(rows[place], cells={**rows[place].cells, "latency/forward": cell})
    shown = comparison_markdown(dataclasses.replace(worse(), rows=tuple(rows)))
    assert "×7.00" in shown[shown.index("**Worse") :].splitlines()[4]


@pytest.mark.parametrize("count", [18, 990])
def test_it_fits_whatever_the_sweep(count: int) -> None:
    shown = comparison_markdown(repeated(worse(), count // 18))
    assert len(shown) < LIMIT
    assert f"of {count} combinations measured" in shown
    assert shown.count("<details>") == shown.count("</details>") > (2 if count > 18 else 0)
    assert ("… and" in shown) == (count > 18)
    assert ("fits here" in shown) == (count > 18)
    assert "How it was measured" in shown


def repeated(of: Comparison, times: int) -> Comparison:
    rows = []
    for time in range(times):
        for row in of.rows:
            id, base = (f"{one}-{time}" if one else None for one in (row.combination_id, row.baseline_id))
            assert id is not None
            axes = {**row.axes, "seed": time}
            rows.append(dataclasses.replace(row, combination_id=id, baseline_id=base, axes=axes))
    return dataclasses.replace(of, axes=(*of.axes, "seed"), rows=tuple(rows))


@pytest.mark.parametrize("name", ["@" * 300, "<" * 300, "💥" * 300])
def test_it_fits_whatever_the_names(name: str) -> None:
    shown = comparison_markdown(repeated(renamed(name, name + "2", name + "3"), 30))
    assert len(shown.encode()) < LIMIT
    assert shown.startswith("**")


def test_what_does_not_fit_is_counted() -> None:
    comment = Comment("`x.csv`", room=400)
    assert comment.add("a" * 100)
    assert not comment.add("b" * 400)
    assert not comment.table("T", [("a", False), ("n", True)], [("é" * 20, "1")] * 50, 50)
    shown = comment.text()
    assert len(shown.encode()) <= 400
    kept = shown.count("éé |")
    assert kept == shown.count("| 1 |") > 0
    assert f"… and {50 - kept} more in `x.csv`." in shown
    assert "| :-- | --: |" in shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("@torvalds", "@&#8203;torvalds"),
        ("see #123 and GH-45", r"see #&#8203;123 and GH&#8203;-45"),
        ("org/repo#1", "org/repo#&#8203;1"),
        ("https://e.org", "https:&#8203;//e.org"),
        ("www.e.org", "www&#8203;.e.org"),
        (":boom:", ":&#8203;boom:"),
        ("$x^2$", "&#36;x^2&#36;"),
        ("a|b\n</details>", r"a\|b &lt;/details&gt;"),
        ("\\@me \\#1", r"\\@&#8203;me \\#&#8203;1"),
        ("timing: killed by SIGKILL (signal 9)", "timing: killed by SIGKILL (signal 9)"),
    ],
)
def test_names_mean_nothing(given: str, shown: str) -> None:
    assert sanitised(given) == shown


class Page(HTMLParser):
    """What a page of rendered Markdown has: its tags, its tables as cells, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.tables: list[list[list[str]]] = []
        self.feed(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(text))

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_data(self, data: str) -> None:
        if self.tables and self.tables[-1] and self.tables[-1][-1]:
            self.tables[-1][-1][-1] += data


def test_a_layer_and_a_unit_of_ones_own_have_no_meaning_in_markdown() -> None:
    slowest = "layers/slowest_self_s"
    metrics: dict[str, tuple[str, Better]] = {slowest: ("s", "lower"), "mine/rate": ("|<b>@octocat", "lower")}
    made = build([{"model": "a"}, {"model": "b"}], metrics, [dict.fromkeys(metrics, 2.0)] * 2)
    placed = Measurement(slowest, "s", "lower", 2.0, detail={"layer": "x|<img src=//e> @octocat"})
    page = Page(comparison_markdown(with_cells(made, slowest, measurement=placed)))
    assert not page.tags & {"img", "b", "a"}
    for table in page.tables:
        assert len({len(row) for row in table}) == 1


def test_a_character_that_xml_does_not_have_is_in_no_junit_report() -> None:
    now, before = (
        build([{"model": "a\uffff"}], {"params/total": ("params", "lower")}, [{"params/total": n}]) for n in (2, 1)
    )
    compared = set_against(now, before, "last~1")
    ElementTree.fromstring(junit(changes_of(compared, compared.metrics), compared, ["worse"]))


def test_hostile_names_stay_in_their_cells() -> None:
    shown = comparison_markdown(hostile())
    assert SCRIPT not in shown
    page = Page(shown)
    marks = {"h3", "p", "strong", "ul", "li", "code", "pre", "details", "summary"}
    assert page.tags <= marks | {"table", "thead", "tbody", "tr", "th", "td"}
    assert len(page.tables) == 6
    for table in page.tables:
        assert len({len(row) for row in table}) == 1
    cells = " / ".join(cell for table in page.tables for row in table for cell in row)
    assert f"model={SCRIPT}|`*_$ [31m, backend=tensorflow, batch_size=64" in cells
    assert 'model="><img src=x onerror=alert(2)>, backend=tensorflow, batch_size=1' in cells


# LaTeX: one unit per column, as many digits as the interval bears


@pytest.mark.parametrize(
    ("value", "interval", "shown"),
    [
        (1.2345e-3, (1.2e-3, 1.3e-3), r"$1.234\,^{+0.066}_{-0.035}$"),
        (1.5e-3, (1.4e-3, 1.6e-3), r"$1.50 \pm 0.10$"),
        (1e-3, (0.9999999e-3, 1.0000001e-3), r"$1.0000 \pm 0.0001$"),
        (123.4e-3, (100e-3, 400e-3), r"$123\,^{+277}_{-24}$"),
        (2e-3, (2e-3, 2e-3), "$2.00$"),
        (1234567e-3, None, r"$1.2 \cdot 10^{6}$"),
    ],
)
def test_digits_follow_the_interval(value: float, interval: tuple[float, float] | None, shown: str) -> None:
    odd = build([{"n": n} for n in range(3)], {"m": ("s", None)}, [{"m": 1e-3}] * 3)
    assert f"0 & {shown} \\\\" in latex(measured(odd, [(value, interval)]))


def measured(of: Comparison, values: list[tuple[float, tuple[float, float] | None]]) -> Comparison:
    """With these values and intervals of ``m`` in the first rows."""
    rows = list(of.rows)
    for place, (value, interval) in enumerate(values):
        cell = rows[place].cells["m"]
        own = dataclasses.replace(cell.measurement, value=value, interval=interval)
        rows[place] = dataclasses.replace(rows[place], cells={"m": dataclasses.replace(cell, measurement=own)})
    return dataclasses.replace(of, rows=tuple(rows))


def test_what_the_intervals_do_not_tell_apart_is_bold_with_the_best() -> None:
    odd = build([{"kind": name} for name in "abc"], {"m": ("s", "lower")}, [{"m": 1.0}] * 3)
    shown = latex(measured(odd, [(1.0, (0.9, 1.1)), (1.2, (1.05, 1.3)), (2.0, (1.9, 2.1))]))
    assert [line[0] for line in shown.splitlines() if "mathbf" in line] == ["a", "b"]


def test_a_long_table_breaks_over_pages_and_a_very_long_one_ends() -> None:
    shown = latex(build([{"n": n} for n in range(500)], {"m": ("s", "lower")}, [{"m": 1.0 + n} for n in range(500)]))
    assert r"\begin{longtable}" in shown
    assert r"The first 400 of 500 rows." in shown
    assert sum(line.endswith(r"\\") and line[0].isdigit() for line in shown.splitlines()) == 400


def models(count: int) -> Comparison:
    points: list[dict[str, Any]] = [{"model": f"m{number}", "n": n} for number in range(count) for n in range(2)]
    return build(points, {"m": ("s", "lower")}, [{"m": 1.0 + point["n"]} for point in points])


def test_no_more_tables_wait_for_a_page_than_latex_can_hold() -> None:
    shown = latex(models(60)).split(r"\clearpage")
    assert [part.count(r"\begin{table}") for part in shown] == [10] * 6
    assert r"\clearpage" not in latex(models(10))


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a…b", r"a\ldots{}b"),
        ("é ü ç İ ñ e\u0301 Łø", "é ü ç İ ñ é Łø"),
        ("≤ → µ", r"$\leq$ $\rightarrow$ $\mu$"),
        ("α 💥 型", "{[}U+03B1{]} {[}U+1F4A5{]} {[}U+578B{]}"),
        ("ｆｕｌｌ ½ a\u200db ﬁ", "full 1/2 ab fi"),
        ("[1, 2] *", "{[}1, 2{]} {*}"),
        ("a_b%&$#{}~^\\", r"a\_b\%\&\$\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}"),
        ('–<>|"', r"--\textless{}\textgreater{}\textbar{}{\char34}"),
        ("-- [1] ''", r"{-}{-} {[}1{]} {'}{'}"),
    ],
)
def test_latex_escapes(given: str, shown: str) -> None:
    assert tex.escaped(given) == shown


def test_every_character_of_unicode_is_one_that_latex_knows() -> None:
    for character in map(chr, range(0x30000)):
        assert re.fullmatch(r"[\x20-\x7e\u00c0-\u017f]*", tex.escaped(character)), character


EVERY_KIND = "… é ệ ß Ω λ ς 模 💥 Ж カ שׁ ½ € ™ ≤ → ° \u0301 \x1b \ud800 { } % & # _ ^ ~ $ [ * \\ ` '' -- |"
ODD = {
    "sample": comparison(),
    "hostile": hostile(),
    "tex": renamed("\\input{/etc/passwd}", "$$ % # & _ { } ~ ^ \\", "模型 é 💥"),
    "ratios": with_cells(comparison(), "latency/forward", verdict="better", ratio=1e-9, ratio_interval=(1e-10, 1e9)),
    "long": build([{"n": n} for n in range(90)], {"m": ("odd_unit%", None)}, [{"m": -1.5e9 * n} for n in range(90)]),
    "many models": models(60),
    "Unicode": renamed(EVERY_KIND, EVERY_KIND),
}


@pytest.mark.parametrize("name", ODD)
def test_nothing_opens_that_is_not_closed(name: str) -> None:
    shown = latex(ODD[name])
    assert SCRIPT not in shown
    assert re.fullmatch(r"[\x20-\x7e\n\u00c0-\u017f]*", shown)
    bare = re.sub(r"\\[\\{}$%&#_]", "", shown)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    begun, ended = re.findall(r"\\begin\{(\w+)\}", shown), re.findall(r"\\end\{(\w+)\}", shown)
    assert sorted(begun) == sorted(ended) != []
    assert r"\input{/etc" not in shown


@pytest.mark.thorough
@pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="pdflatex is not installed: apt install texlive-latex-recommended"
)
@pytest.mark.parametrize("name", ODD)
def test_latex_makes_a_page_of_it(name: str, tmp_path: Path) -> None:
    packages = "".join(rf"\usepackage{{{package}}}" for package in ("booktabs", "longtable", "graphicx"))
    paper = rf"\documentclass{{article}}{packages}\begin{{document}}\input{{{tex.TABLES}}}\end{{document}}"
    (tmp_path / "paper.tex").write_text(paper, encoding="utf-8")
    (tmp_path / f"{tex.TABLES}.tex").write_text(latex(ODD[name]), encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape", "paper.tex"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False, errors="replace"
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000
    assert "Missing character" not in (tmp_path / "paper.log").read_text(errors="replace")


def test_figures_of_several_rows_are_examples() -> None:
    warnings = [
        Warning("load_high", f"other processes used {cpus} of 2 CPUs during the trial: make {cpus}", "end them")
        for cpus in (1.1, 1.9)
    ]
    noisy = [Warning("spread_high", "IQR is 11% of the median", "measure longer"), Warning("drift", "drifted", "wait")]
    rows = [dataclasses.replace(row, warnings=()) for row in comparison(broken=False).rows]
    cases: list[tuple[Warning, Warning, str]] = [
        (warnings[0], warnings[1], "Other processes used 1.1 of 2 CPUs during the trial, for example (2 rows)\n"),
        (noisy[0], noisy[1], "Noisy times in 2 rows: IQR is 11% of the median, for example\n"),
        (noisy[0], noisy[0], "Noisy times in 2 rows: IQR is 11% of the median\n"),
        (warnings[0], noisy[0], "Other processes used 1.1 of 2 CPUs during the trial (1 row); noisy times in 1 row\n"),
    ]
    for first, second, told in cases:
        marked = (dataclasses.replace(rows[0], warnings=(first,)), dataclasses.replace(rows[1], warnings=(second,)))
        assert told in text(dataclasses.replace(comparison(), rows=(*marked, *rows[2:])), 120)


# Tidy tables: everything measured is in them once, and reads back as what it was


def read(table: Tidy) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO("".join(csv_chunks(table)))))


def typed(table: Tidy) -> pd.DataFrame:
    content = io.BytesIO()
    write_parquet(table, content)
    return pd.read_parquet(io.BytesIO(content.getvalue()), dtype_backend="numpy_nullable")


def test_every_measurement_is_a_row_with_its_axes() -> None:
    sample = comparison()
    found = read(measurements(sample))
    assert len(found) == len(sample.rows) * len(sample.metrics)
    by_key = {(row["combination"], row["metric"]): row for row in found}
    for row in sample.rows:
        for name, cell in row.cells.items():
            one, value = by_key[row.combination_id, name], cell.measurement.value
            assert one["value"] == ("" if value is None else repr(value))
            assert one["reason"] == (cell.measurement.reason or "")
            assert [one[axis] for axis in sample.axes] == [str(row.axes[axis]) for axis in sample.axes]
            assert one["ratio"] == ("" if cell.ratio is None else repr(cell.ratio))
            assert one["verdict"] == (cell.verdict or "")
    detail = json.loads(by_key["c000000000000", "latency/forward"]["detail"])
    assert detail["p99"] == "n<299"


def test_a_missing_value_is_a_reason_and_never_a_number() -> None:
    missing = Measurement("latency/forward", "s", "lower", math.nan, interval=(math.nan, math.inf))
    odd = with_cells(comparison(), "latency/forward", measurement=missing, ratio=math.inf, base=math.nan)
    found = [row for row in read(measurements(odd)) if row["metric"] == "latency/forward"]
    assert {(row["value"], row["low"], row["high"], row["ratio"], row["estimator"]) for row in found} == {("",) * 5}
    assert {row["reason"] for row in found} == {"not a finite number: nan"}
    assert typed(measurements(odd))["value"].dropna().map(math.isfinite).all()


@pytest.mark.parametrize(
    ("values", "kind", "shown"),
    [
        ([1, 2.5], "number", ["1", "2.5"]),
        ([1, 2**70], "number", ["1", str(2**70)]),
        ([True, False], "truth", ["true", "false"]),
        ([1, "auto"], "text", ["1", "auto"]),
        ([True, 1], "text", ["true", "1"]),
        ([[3, 8, 8], None], "text", ["[3, 8, 8]", ""]),
        ([math.nan, 1.0], "text", ["nan", "1.0"]),
    ],
)
def test_axes_are_typed_by_their_values(values: list[Any], kind: str, shown: list[str]) -> None:
    odd = build([{"a": value} for value in values], {"m": ("s", "lower")}, [{"m": 1.0}] * len(values))
    table = measurements(odd)
    assert table.columns["a"] == kind
    assert [row["a"] for row in read(table)] == shown
    assert len(typed(measurements(odd))) == len(values)


def test_axes_that_are_called_like_columns_or_each_others_columns_keep_apart() -> None:
    point = {"status": "a", "axis.status": 1, "combination": 2, "metric": 3}
    odd = build([point] * 2, {"m": ("s", "lower")}, [{"m": 1.0}, {"m": 2.0}])
    row = read(measurements(odd))[0]
    expected = {"axis.axis.status": "a", "axis.status": "1", "status": "ok", "axis.combination": "2", "metric": "m"}
    assert {name: row[name] for name in expected} == expected
    header = csv_text(odd).splitlines()[0]
    assert header == "axis.axis.status,axis.status,combination,metric,status,reason,m"


def test_rounds_are_one_row_each() -> None:
    own = Measurement("m", "s", "lower", 2.0, rounds=(1.0, 3.0), round_numbers=(0, 2), paired=(1.5, 2.5))
    odd = with_cells(build([{"a": 1}], {"m": ("s", "lower")}, [{"m": 2.0}]), "m", measurement=own)
    found = [(row["round"], row["estimate"], row["paired"]) for row in read(rounds(odd))]
    assert found == [("0", "1.0", "1.5"), ("2", "3.0", "2.5")]


def test_every_sample_of_every_phase_is_a_row() -> None:
    sample = comparison()
    seen = {"samples": [0.1, 0.2], "loops": 4, "phases": {"backward": [0.05]}, "transfers": {"h2d": [0.01]}}
    records = [
        Record(sample.sweep_id, id, "timing", "ok", round=1, observations=seen)
        for id in (sample.rows[0].combination_id, "of another sweep")
    ]
    found = read(samples(sample, records))
    assert [(row["phase"], row["index"], row["seconds"], row["loops"]) for row in found] == [
        *(("step", "0", "0.1", "4"), ("step", "1", "0.2", "4")),
        *(("backward", "0", "0.05", ""), ("h2d", "0", "0.01", "")),
    ]
    assert {(row["combination"], row["round"], row["model"]) for row in found} == {("c000000000000", "1", "lenet5")}


def test_problems_are_told_once_with_their_advice() -> None:
    sample = comparison()
    twice = Measurement("m", "s", "lower", 1.0, warnings=(NOISY,))
    sample = with_cells(sample, "latency/forward", measurement=twice)
    rows = tuple(dataclasses.replace(row, misses=("latency is 3 s",)) for row in sample.rows[:1]) + sample.rows[1:]
    found = read(problems(dataclasses.replace(sample, rows=rows)))
    first = [row for row in found if row["combination"] == "c000000000000"]
    assert [(row["kind"], row["code"]) for row in first] == [("warning", "spread_high"), ("disqualified", "")]
    assert first[0]["advice"] == NOISY.advice
    failures = [(row["code"], row["text"]) for row in found if row["kind"] == "failure"]
    assert failures == [
        ("crashed", "timing: killed by SIGKILL (signal 9)"),
        ("unsupported", "the model names no builder for tensorflow"),
    ]
    assert found[-1]["kind"] == "excluded"
    assert found[-1]["batch_size"] == "512"


def test_without_pyarrow_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_tables, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"need pyarrow: pip install 'sweeprof\[parquet\]'"):
        write_parquet(measurements(comparison()), io.BytesIO())


def test_nothing_measured_is_an_empty_table(tmp_path: Path) -> None:
    nothing = dataclasses.replace(comparison(), rows=(), excluded=())
    assert [len(read(table(nothing))) for table in (measurements, rounds, problems)] == [0, 0, 0]
    assert len(typed(measurements(nothing))) == 0


def test_a_comparison_is_a_frame_of_its_measurements() -> None:
    sample = comparison()
    frame = sample.to_frame()
    assert list(frame.columns) == list(measurements(sample).columns)
    assert len(frame) == len(sample.rows) * len(sample.metrics)
    assert str(frame["batch_size"].dtype) == "Int64"
    assert build([], {"x": ("s", "lower")}, []).to_frame().empty
