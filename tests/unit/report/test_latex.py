"""Tables for a paper: one unit per column, as many digits as the interval bears, and no name that breaks the document."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.odd import SCRIPT, build, hostile, renamed, with_cells
from support.samples import comparison
from sweeprof.report.latex import TABLES, escaped, latex
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.measurement import Measurement

Golden = Callable[[str, str], None]


def test_it_is_as_agreed(golden: Golden) -> None:
    golden("comparison-tables.tex", latex(comparison()))


def test_a_column_has_one_unit_and_says_it() -> None:
    odd = build(
        [{"n": 1}, {"n": 2}, {"n": 3}],
        {"latency/forward": ("s", "lower")},
        [{"latency/forward": t} for t in (2e-4, 3e-3, 4e-3)],
    )
    shown = latex(odd)
    assert r"latency (ms) $\downarrow$" in shown
    assert r"$\mathbf{0.200}$" in shown
    assert "$4.00$" in shown
    own = build([{"n": 1}, {"n": 2}], {"speed/walk": ("furlongs", None)}, [{"speed/walk": 12.25}, {"speed/walk": 3}])
    assert latex(own).count("(furlongs)") == 1


@pytest.mark.parametrize(
    ("value", "interval", "shown"),
    [
        (1.2345e-3, (1.2e-3, 1.3e-3), r"$1.234\,^{+0.066}_{-0.035}$"),
        (1.5e-3, (1.4e-3, 1.6e-3), r"$1.50 \pm 0.10$"),
        (1e-3, (0.9999999e-3, 1.0000001e-3), r"$1.0000 \pm 0.0001$"),
        (123.4e-3, (100e-3, 400e-3), r"$123\,^{+277}_{-24}$"),
        (2e-3, (2e-3, 2e-3), "$2.00$"),
        (2e-3, None, "$2.00$"),
        (1234567e-3, None, r"$1.2 \cdot 10^{6}$"),
    ],
)
def test_digits_follow_the_interval(value: float, interval: tuple[float, float] | None, shown: str) -> None:
    odd = build([{"n": n} for n in range(3)], {"latency/forward": ("s", None)}, [{"latency/forward": 1e-3}] * 3)
    own = Measurement("latency/forward", "s", None, value, interval=interval)
    row = odd.rows[0]
    cell = dataclasses.replace(row.cells["latency/forward"], measurement=own)
    odd = dataclasses.replace(odd, rows=(dataclasses.replace(row, cells={"latency/forward": cell}), *odd.rows[1:]))
    assert f"0 & {shown} \\\\" in latex(odd)


def test_what_the_intervals_do_not_tell_apart_is_bold_with_the_best() -> None:
    names = {"a": (1.0, (0.9, 1.1)), "b": (1.2, (1.05, 1.3)), "c": (2.0, (1.9, 2.1))}
    odd = build(
        [{"kind": name} for name in names], {"m": ("s", "lower")}, [{"m": value} for value, _ in names.values()]
    )
    rows = []
    for row in odd.rows:
        value, interval = names[row.axes["kind"]]
        own = Measurement("m", "s", "lower", value, interval=interval)
        rows.append(dataclasses.replace(row, cells={"m": dataclasses.replace(row.cells["m"], measurement=own)}))
    shown = latex(dataclasses.replace(odd, rows=tuple(rows)))
    bold = [line[0] for line in shown.splitlines() if "mathbf" in line]
    assert bold == ["a", "b"]


def test_a_failure_is_a_line_with_its_reason() -> None:
    assert r"64 & tensorflow & \multicolumn{5}{l}{\emph{crashed: timing: killed by SIGKILL (signal 9)}} \\" in latex(
        comparison()
    )


def test_a_long_table_breaks_over_pages_and_a_very_long_one_ends() -> None:
    many = build([{"n": n} for n in range(500)], {"m": ("s", "lower")}, [{"m": 1.0 + n} for n in range(500)])
    shown = latex(many)
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


ODD: list[Comparison] = [
    comparison(),
    hostile(),
    renamed("\\input{/etc/passwd}", "$$ % # & _ { } ~ ^ \\", "模型 é 💥"),
    with_cells(comparison(), "latency/forward", verdict="better", ratio=1e-9, ratio_interval=(1e-10, 1e9)),
    build([{"n": n} for n in range(90)], {"m": ("odd_unit%", None)}, [{"m": -1.5e9 * n} for n in range(90)]),
]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a…b", r"a\ldots{}b"),
        ("é ü ç İ ñ e\u0301", r"\'{e} \"{u} \c{c} \.{I} \~{n} \'{e}"),
        ("αΩΛς Α", r"$\alpha$$\Omega$$\Lambda$$\varsigma$ A"),
        ("≤ → ±", r"$\leq$ $\rightarrow$ $\pm$"),
        ("💥", "(collision symbol)"),
        ("Жук カ", "Zheuka ka"),
        ("模型", "{[}6A21{]}{[}578B{]}"),
        ("ｆｕｌｌ ½ a\u200db", "full 1/2 ab"),
        ("[1, 2] *", "{[}1, 2{]} {*}"),
    ],
)
def test_characters_outside_of_ascii_can_be_read(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_every_character_of_unicode_is_written_in_ascii() -> None:
    for character in map(chr, range(0x30000)):
        assert re.fullmatch(r"[\x20-\x7e]*", escaped(character)), character
        assert "U+" not in escaped(character)


EVERY_KIND = "… é ệ ß Ω λ ς 模 💥 Ж カ שׁ ½ € ™ ≤ → ° \u0301 \x1b \ud800 { } % & # _ ^ ~ $ [ * \\ ` '' -- |"


@pytest.mark.parametrize("odd", ODD, ids=["sample", "hostile", "tex", "ratios", "long"])
def test_nothing_opens_that_is_not_closed(odd: Comparison) -> None:
    shown = latex(odd)
    assert SCRIPT not in shown
    assert re.fullmatch(r"[\x20-\x7e\n]*", shown)
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
@pytest.mark.parametrize(
    "odd",
    [*ODD, models(60), renamed(EVERY_KIND, EVERY_KIND)],
    ids=["sample", "hostile", "tex", "ratios", "long", "many models", "Unicode"],
)
def test_latex_makes_a_page_of_it(odd: Comparison, tmp_path: Path) -> None:
    packages = "".join(rf"\usepackage{{{name}}}" for name in ("booktabs", "longtable", "graphicx"))
    paper = rf"\documentclass{{article}}{packages}\begin{{document}}\input{{{TABLES}}}\end{{document}}"
    (tmp_path / "paper.tex").write_text(paper, encoding="utf-8")
    (tmp_path / f"{TABLES}.tex").write_text(latex(odd), encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape", "paper.tex"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False, errors="replace"
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000
    assert "Missing character" not in (tmp_path / "paper.log").read_text(errors="replace")
