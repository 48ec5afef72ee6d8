"""A layer table as CSV, Markdown, LaTeX, HTML and Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from support.nets import HOSTILE, hostile, lenet5, reused, untold
from sweeprof.errors import UserError
from sweeprof.profiling.layers import Layers
from sweeprof.report.latex import escaped
from sweeprof.report.layer_formats import to_csv, to_html, to_latex, to_markdown, to_parquet
from sweeprof.results.layers import FRAME_COLUMNS, LayerTable


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


class TestCsv:
    def test_it_has_every_column_exactly(self) -> None:
        rows = read_csv(to_csv(lenet5()))
        assert list(rows[0]) == FRAME_COLUMNS
        assert [int(row["macs"]) for row in rows] == [row.macs for row in lenet5().rows]
        assert [float(row["macs_share"]) for row in rows] == [(row.macs or 0) / 416_520 for row in lenet5().rows]
        assert json.loads(rows[2]["output_shapes"]) == [[1, 6, 28, 28]]
        assert json.loads(rows[2]["dtypes"]) == {"float32": 156}

    def test_it_can_include_what_is_within(self) -> None:
        assert [int(row["macs"]) for row in read_csv(to_csv(lenet5(), inclusive=True))[:2]] == [416_520, 405_600]
        assert [int(row["macs"]) for row in read_csv(to_csv(lenet5()))[:2]] == [0, 0]

    def test_what_is_not_known_is_empty(self) -> None:
        rows = read_csv(to_csv(untold()))
        assert {row["flops"] for row in rows} == {""}
        assert {row["act_bytes"] for row in rows} == {""}

    def test_a_name_keeps_its_line_breaks_and_quotes(self) -> None:
        shown = [row.path.replace("\x1b", r"\u001b") for row in hostile().rows]
        shown = [f"'{path}" if path.startswith("-") else path for path in shown]  # or a spreadsheet computes it
        assert [row["path"] for row in read_csv(to_csv(hostile()))] == shown


class TestMarkdown:
    def test_rows_and_totals(self) -> None:
        lines = to_markdown(lenet5()).splitlines()
        assert lines[0] == "| path | type | input shape | output shape | params | params % | MACs | FLOPs | trainable |"
        assert lines[1] == "| :-- | :-- | :-- | :-- | --: | --: | --: | --: | --: |"
        conv = r"| feature\_extractor.0 | Conv2d | \[1, 1, 32, 32\] | \[1, 6, 28, 28\] | 156 | 0.253 % | 117.6 KMACs | "
        assert conv.replace(r"feature\_", "feature_") in lines[4]
        assert lines[-1] == "| **total** |  |  |  | **61.71 k** |  | **416.52 KMACs** | **852.38 KFLOPs** |  |"
        assert len(lines) == 2 + 14 + 1

    def test_columns_and_inclusive_figures(self) -> None:
        lines = to_markdown(lenet5(), columns=("macs",), inclusive=True).splitlines()
        assert lines[3] == "| feature_extractor | Sequential | 405.6 KMACs |"

    def test_names_are_inert(self) -> None:
        lines = to_markdown(hostile(), columns=("macs",)).splitlines()
        assert len(lines) == 2 + 8 + 1
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}
        assert "<" not in "".join(lines)


class TestLatex:
    def test_rows_and_totals(self) -> None:
        lines = to_latex(lenet5()).splitlines()
        assert lines[:4] == [
            r"\begin{tabular}{lllrrrr}",
            r"\toprule",
            r"path & type & output shape & params & params \% & MACs & MACs \% \\",
            r"\midrule",
        ]
        assert lines[6].startswith(r"feature\_extractor.0 & Conv2d & {[}1, 6, 28, 28{]} & 156 & 0.253 \% & 117.6 KMACs")
        assert lines[-4:] == [
            r"\midrule",
            r"total &  &  & 61.71 k &  & 416.52 KMACs &  \\",
            r"\bottomrule",
            r"\end{tabular}",
        ]

    def test_every_special_character_is_escaped(self) -> None:
        assert escaped("a_b%&$#{}~^\\") == (r"a\_b\%\&\$\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}")
        assert escaped('–<>|"ü☃') == r"--\textless{}\textgreater{}\textbar{}{\char34}\"{u}(snowman)"
        assert escaped("-- [1] ''") == r"{-}{-} {[}1{]} {'}{'}"

    def test_it_is_well_formed_whatever_the_names(self) -> None:
        text = to_latex(hostile())
        assert text.isascii()
        rows = [line for line in text.splitlines() if line.endswith(r" \\")]
        assert len(rows) == 1 + 8 + 1
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {6}
        bare = re.sub(r"\\[{}%&$#_]", "", text)
        assert bare.count("{") == bare.count("}")
        assert not re.search(r"[%$#_^~]", bare)

    @pytest.mark.thorough
    @pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
    @pytest.mark.parametrize("table", [lenet5, reused, untold, hostile])
    def test_it_compiles(self, table: Callable[[], LayerTable], tmp_path: Path) -> None:
        (tmp_path / "table.tex").write_text(to_latex(table(), standalone=True), encoding="utf-8")
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
        assert (tmp_path / "table.pdf").read_bytes().startswith(b"%PDF")
        assert "Missing character" not in (tmp_path / "table.log").read_text(encoding="utf-8", errors="replace")


class Page(HTMLParser):
    """Elements of a page and the texts of its table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


class TestHtml:
    def test_rows_stand_in_the_tree(self) -> None:
        page = Page(to_html(reused()))
        depths = [int(str(a["data-depth"])) for tag, a in page.tags if tag == "tr" and "data-depth" in a]
        assert depths == [0, 1, 2, 3, 3, 2, 2, 1, 2, 2, 2, 1]
        toggles = [a["aria-label"] for tag, a in page.tags if a.get("class") == "toggle"]
        inside = ["__root__", "block", "block.steps", "block"]
        assert toggles == [f"layers within {path}" for path in inside]
        assert "(never called itself)" in page.texts
        assert page.texts.count("(recursive)") > 4

    def test_figures_are_own_or_inclusive(self) -> None:
        own, inclusive = to_html(lenet5()), to_html(lenet5(), inclusive=True, title="LeNet-5")
        assert own.count('data-value="405600"') == 0
        assert inclusive.count('data-value="405600"') == 1
        assert "without child layers" in own
        assert "include child layers" in inclusive
        assert inclusive.count('<h1 id="title">LeNet-5</h1>') == 1
        assert "36.75 KiB at <code>feature_extractor.1</code>" in own

    def test_what_is_not_known_is_a_dash_that_sorts_last(self) -> None:
        page = to_html(untold(), columns=("flops",))
        assert page.count('<td class="number">–</td>') == 4  # three rows and the total
        assert "None" not in page

    def test_names_are_inert_and_nothing_is_fetched(self) -> None:
        text = to_html(hostile(), title=HOSTILE)
        page = Page(text)
        names = [tag for tag, _ in page.tags]
        assert names.count("script") == 1
        assert {"b", "i", "a", "link", "img"}.isdisjoint(names)
        assert not any({"src", "href"} & set(attrs) for _, attrs in page.tags)
        assert "default-src 'none'" in text
        assert HOSTILE in "".join(page.texts)

    def test_inclusive_figures_of_a_table_that_has_none(self) -> None:
        with pytest.raises(ValueError, match="does not tell"):
            to_html(untold(), inclusive=True)


class TestParquet:
    def test_it_reads_back(self) -> None:
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        frame = pandas.read_parquet(io.BytesIO(to_parquet(lenet5())))
        assert list(frame.columns) == FRAME_COLUMNS
        assert frame["macs"].sum() == 416_520
        assert frame["path"].tolist() == [row.path for row in lenet5().rows]
        assert json.loads(frame["output_shapes"][2]) == [[1, 6, 28, 28]]
        inclusive = pandas.read_parquet(io.BytesIO(to_parquet(lenet5(), inclusive=True)))
        assert inclusive["macs"][0] == 416_520

    @pytest.mark.parametrize("table", [untold(), hostile(), LayerTable(())], ids=["untold", "hostile", "empty"])
    def test_types_do_not_depend_on_the_values(self, table: LayerTable) -> None:
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        usual = pandas.read_parquet(io.BytesIO(to_parquet(lenet5()))).dtypes
        found = pandas.read_parquet(io.BytesIO(to_parquet(table)))
        assert (found.dtypes == usual).all()
        assert found["flops"].isna().all()
        assert len(found) == len(table.rows)

    def test_without_pyarrow_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(UserError, match="pip install pyarrow"):
            to_parquet(lenet5())


def test_an_unknown_column_is_a_users_mistake() -> None:
    for export in (to_markdown, to_latex, to_html):
        with pytest.raises(UserError, match=r"'parms' is not a column of layers.*Did you mean 'params'"):
            export(lenet5(), columns=("parms",))


def test_the_tables_own_methods() -> None:
    table = Layers.of(lenet5())
    assert (table.to_csv(), table.to_csv(inclusive=True)) == (to_csv(table), to_csv(table, True))
    assert table.to_html(inclusive=True, title="LeNet-5") == to_html(table, inclusive=True, title="LeNet-5")
    assert (table.to_latex(), table.to_markdown(inclusive=True)) == (
        to_latex(table),
        to_markdown(table, inclusive=True),
    )
    assert table.to_parquet() == to_parquet(table)


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("name", ["csv", "html", "latex", "markdown", "parquet", "text"])
def test_a_path_is_written(name: str, kind: type, tmp_path: Path) -> None:
    export = getattr(Layers.of(lenet5()), f"to_{name}")
    path = tmp_path / f"layers.{name}"
    content = export(kind(path))
    assert content == export()
    data = content if isinstance(content, bytes) else content.encode()
    assert path.read_bytes() == data + (b"\n" if name == "text" else b"")


def test_a_path_may_go_with_options(tmp_path: Path) -> None:
    table = Layers.of(lenet5())
    table.to_html(tmp_path / "layers.html", columns="macs", title="LeNet-5")
    assert "<title>LeNet-5</title>" in (tmp_path / "layers.html").read_text(encoding="utf-8")
    table.to_latex(tmp_path / "layers.tex", standalone=True)
    assert (tmp_path / "layers.tex").read_text(encoding="utf-8").startswith(r"\documentclass")
    table.to_csv(tmp_path / "layers.csv", inclusive=True)
    assert (tmp_path / "layers.csv").read_text(encoding="utf-8") == to_csv(table, inclusive=True)
