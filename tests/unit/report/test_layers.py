"""A layer table as text, as files and in a page: figures, options, names that mean something to a format."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.nets import hostile, lenet5, reused, untold
from support.timed_layers import partly, timed_lenet5
from sweeprof.errors import UserError
from sweeprof.profiling.layers import Layers
from sweeprof.report.layer_formats import embedded, to_csv, to_html, to_latex, to_markdown, tree
from sweeprof.report.layer_table import FigurePair, by_type, nodes, side_by_side, summary_lines, top_layers
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import LayerRow, LayerTable

SAMPLES: dict[str, Callable[[], LayerTable]] = {
    "lenet5": lenet5,
    "reused": reused,
    "untold": untold,
    "hostile": hostile,
    "timed": timed_lenet5,
    "partly_timed": partly,
}
_CODE = re.compile(r"(<(script|style)>).*?(</\2>)", re.DOTALL)
_LONG = re.compile(r"\d+\.\d{9,}(?:e[+-]\d+)?")


def comparable(text: str) -> str:
    """Without the last digits, in which versions of Python may differ."""
    return _LONG.sub(lambda found: f"{float(found[0]):.9g}", text)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_is_as_agreed(name: str, golden: Callable[[str, str], None]) -> None:
    table = SAMPLES[name]()
    formats = {
        "tree": tree(table),
        "tree like a repr": tree(table, style="repr"),
        "tree of paths and calls": tree(table, columns=("params",), rows=("type", "path", "depth", "call")),
        "repr of paths and calls": tree(table, columns=("params",), style="repr", rows=("path", "depth", "call")),
        "summary": Layers.of(table).summary(),
        "lines": "\n".join(summary_lines(table, depth=None)),
        "csv": to_csv(table),
        "markdown": to_markdown(table),
        "latex": to_latex(table),
        "html": _CODE.sub(r"\1…\3", to_html(table)),
    }
    if name in ("lenet5", "timed"):
        formats["lines of the leaves"] = "\n".join(summary_lines(table, depth=2))
        formats["markdown, inclusive"] = to_markdown(table, inclusive=True)
        formats["latex, inclusive"] = to_latex(table, inclusive=True)
        formats["html"] = _CODE.sub(r"\1…\3", to_html(table, inclusive=True, title="LeNet-5"))
    golden(f"layers/{name}.txt", "\n\n".join(f"==== {format}\n{comparable(text)}" for format, text in formats.items()))


# The tree


def line(text: str, start: str) -> list[str]:
    """The cells of the one line that begins so."""
    (found,) = [cells for row in text.splitlines() if (cells := re.split(r"\s{2,}", row.strip()))[0].startswith(start)]
    return found


def test_the_tree_has_the_inclusive_figures() -> None:
    """Of LeNet-5 as the profilers' documents have it."""
    text = tree(lenet5())
    assert line(text, "LeNet5")[1:] == ["61.7 k", "417 kMAC", "[1, 10]", "852 kFLOP", "100%", "[1, 1, 32, 32]", "True"]
    whole = line(text, "├─Sequential (feature_extractor)")
    assert (whole[1], whole[2], whole[5]) == ("50.7 k", "406 kMAC", "82.2%")
    part = line(text, "│ ├─Conv2d (0)")
    assert (part[1], part[2], part[5]) == ("156", "118 kMAC", "0.253%")
    totals = {name: line(text, name)[1] for name in ("params size", "input size", "activations", "peak live")}
    assert list(totals.values()) == ["241 KiB", "4.00 KiB", "57.0 KiB", "36.8 KiB at feature_extractor.1"]
    body = text.split("─" * 20)[0].splitlines() + text.splitlines()[2:16]
    assert len({len(row) for row in body if row.strip("─")}) == 1, "columns are aligned"


def test_the_depth_hides_rows_and_changes_no_figure() -> None:
    text = tree(lenet5(), depth=1)
    assert "Conv2d" not in text
    assert (line(text, "├─Sequential")[1], line(text, "MACs")[1]) == ("50.7 k", "417 kMAC")
    assert tree(lenet5(), depth=0, style="repr").count("\n") == 0
    assert tree(lenet5(), depth=-1) == tree(lenet5(), depth=2) == tree(lenet5())


def test_columns_prefix_and_rows_can_be_chosen() -> None:
    text = tree(lenet5(), columns=("macs", "macs_share", "act_bytes"), unit="M")
    assert line(text, "LeNet5") == ["LeNet5", "0.417 MMAC", "100%", "57.0 KiB"]
    assert tree(lenet5(), depth=0, columns=("output_shapes", "trainable", "dtypes"), style="repr") == (
        "LeNet5(output shape [1, 10], trainable True, param types float32)"
    )
    assert line(tree(lenet5(), rows=("name",)), "├─feature_extractor")
    assert line(tree(lenet5(), rows=("type",)), "└─Sequential")


def test_a_part_of_which_nothing_is_called_is_not_said_to_be_called_below() -> None:
    rows = (LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 0), LayerRow("a", "Sequential", 1, -1, 0, 0, 0, 0, 0))
    text = tree(LayerTable((*rows, LayerRow("a.0", "Linear", 2, -1, 2, 2, 8, 0, 0))))
    assert line(text, "└─Sequential (a)")[0].endswith("(a) (never called)")
    assert line(text, "└─Linear (0)")[0].endswith("(0) (never called)")


def test_what_runs_outside_any_module_stands_beside_the_model() -> None:
    rows = (LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 5), LayerRow(OUTSIDE, "", 0, 0, 0, 0, 0, 0, 7))
    table = LayerTable(rows, {"aten.mv": 2})
    text = tree(table)
    assert (line(text, "outside any module")[2], line(text, "MACs")[1]) == ("7 MAC", "12 MAC")
    assert text.endswith("Not counted, because there is no formula: 2 × aten.mv.")
    assert tree(table, style="repr").count("__outside__(") == 1


def test_rows_are_drawn_within_their_callers() -> None:
    first, second, third = untold().rows
    turned = LayerTable((first, third, second))
    assert [(node.label, node.depth) for node in nodes(turned)] == [("", 0), ("a", 1), ("inner", 2)]
    rows = (
        LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 0),
        LayerRow("embed.table", "Embedding", 2, 0, 4, 4, 16, 0, 0, parent=0),
        LayerRow("head", "Head", 1, 0, 0, 0, 0, 0, 0, parent=0),
        LayerRow("embed.table", "Embedding", 2, 1, 0, 0, 0, 0, 1, parent=2),
    )
    shown = [("", 0, None), ("embed.table", 1, 0), ("head", 1, 0), ("embed.table", 2, 2)]
    assert [(node.label, node.depth, node.parent) for node in nodes(LayerTable(rows))] == shown
    found = nodes(reused())
    assert sorted((n.row.path, n.row.call) for n in found) == sorted((r.path, r.call) for r in reused().rows)
    assert all(node.parent is None or node.parent < place for place, node in enumerate(found))
    assert [node.label for node in found if node.holds_calls] == ["", "block", "steps", "block"]


def test_an_inclusive_or_empty_table_has_a_tree() -> None:
    assert tree(reused().inclusive()) == tree(reused())
    assert line(tree(LayerTable(())), "trainable")[1] == "0"
    assert tree(LayerTable(()), style="repr") == ""


# Sums by type, and the largest rows


@pytest.mark.parametrize(
    ("table", "options", "found"),
    [
        (
            lenet5,
            {"depth": 2, "top": 2},
            [("Conv2d", 405_600, 405_600 / 416_520), ("Linear", 10_920, 10_920 / 416_520)],
        ),
        (lenet5, {"depth": 2, "top": 1, "column": "params"}, [("Conv2d", 50_692, 50_692 / 61_706)]),
        (lenet5, {"depth": 1, "column": "params"}, [("Sequential", 61_706, 1.0)]),
        # Two layers of a list, each called twice; the innermost depth is 3.
        (reused, {"depth": 3}, [("Linear", 4 * 32, 128 / 208)]),
        (reused, {"depth": 4}, []),
        # Weights of a module that is called twice count once.
        (reused, {"depth": 1, "column": "params"}, [("Block", 80, 80 / 88), ("Linear", 8, 8 / 88)]),
        (reused, {"depth": 1, "column": "frozen", "top": 1}, [("Block", 20, 1.0)]),
        (untold, {"column": "params"}, [("Dense", 30, 1.0), ("Net", 0, 0.0)]),
        (untold, {"column": "flops"}, [("Net", None, None), ("Dense", None, None)]),
    ],
)
def test_exact_sums_and_shares(table: Callable[[], LayerTable], options: dict[str, Any], found: object) -> None:
    assert by_type(table(), **options) == found


def test_without_a_depth_every_row_counts_once() -> None:
    found = by_type(reused())
    assert sum(value or 0 for _, value, _ in found) == reused().macs
    assert sum(share or 0 for _, _, share in found) == pytest.approx(1)
    assert summary_lines(reused(), depth=9) == ["params: –", "MACs: –", "FLOPs: –", "activations: –"]


def test_the_largest_rows() -> None:
    found = top_layers(lenet5(), "macs", 2)
    shown = [("feature_extractor.3", 240_000, 240_000 / 416_520), ("feature_extractor.0", 117_600, 117_600 / 416_520)]
    assert [(row.path, value, share) for row, value, share in found] == shown
    with_params = [row.path for row, value, _ in top_layers(reused(), "params", 99) if value]
    assert with_params == ["block.steps.0", "block.steps.1", "block.frozen", "block.unused", "head"]
    assert top_layers(untold(), "flops") == []


# Two tables side by side, and many in one page


def table(*paths: str) -> LayerTable:
    rows = [LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 0)]
    rows += [LayerRow(path, "Linear", path.count(".") + 1, 0, 2, 2, 8, 0, 1, parent=0) for path in paths]
    return LayerTable(tuple(rows))


def test_the_figures_of_both() -> None:
    rows = {row.path: row for row in side_by_side(lenet5(1), lenet5(8), ("batch 1", "batch 8"))}
    conv, tanh = rows["feature_extractor.0"], rows["feature_extractor.1"]
    assert (conv.names, conv.is_in_both) == (("batch 1", "batch 8"), True)
    macs, params = conv.figures["macs"], conv.figures["params"]
    assert (macs, macs.difference, macs.ratio) == (FigurePair(117_600, 8 * 117_600), 7 * 117_600, 8.0)
    assert (params.difference, params.ratio) == (0, 1.0)
    assert (tanh.figures["macs"].difference, tanh.figures["macs"].ratio) == (0, None)
    (root, *_) = side_by_side(untold(), lenet5(), columns=("flops", "macs"))
    assert root.figures == {"flops": FigurePair(None, 10), "macs": FigurePair(0, 0)}
    assert root.figures["flops"].difference is None, "what is not counted is not zero"


def test_the_union_keeps_both_orders_and_a_row_of_one_table_has_no_difference() -> None:
    found = [row.path for row in side_by_side(table("a", "c", "d"), table("0", "a", "b", "d", "e"))]
    assert found == [ROOT, "0", "a", "b", "c", "d", "e"]
    assert [row.path for row in side_by_side(LayerTable(()), table("a"))] == [ROOT, "a"]
    rows = {row.path: row for row in side_by_side(table("a", "b"), table("a", "x"))}
    assert (rows["b"].left is None, rows["b"].right is None) == (False, True)
    assert rows["b"].figures["macs"] == FigurePair(1, None)
    only_right = rows["x"].figures["macs"]
    assert (only_right, only_right.difference, only_right.ratio) == (FigurePair(None, 1), None, None)


def test_calls_of_one_module_are_matched_by_number() -> None:
    rows = side_by_side(reused(), reused().inclusive(), columns=("macs",))
    assert [(row.path, row.call) for row in rows] == [(row.path, row.call) for row in reused().rows]
    assert [row.figures["macs"] for row in rows if row.path == "block"] == [FigurePair(96, 96)] * 2


def test_every_row_is_embedded_with_its_own_figures() -> None:
    data = json.loads(json.dumps(embedded({"one": lenet5(), "eight": lenet5(8), "untold": untold()})))
    assert [column["title"] for column in data["columns"]] == ["MACs", "FLOPs", "params", "activations"]
    one, eight, other = data["tables"]
    lists = [data["vectors"][place] for place in one["vectors"]]
    paths = [data["strings"][int(place or 0)] for place in lists[0]]
    assert paths[:3] == ["(model)", "feature_extractor", "feature_extractor.0"]
    assert lists[2][:3] == [0, 1, 2]
    assert lists[5][:3] == [0, 0, 117_600]
    assert one["totals"] == [sum(values) for values in lists[5:]] == [416_520, 852_380, 61_706, 58_408]
    assert (eight["label"], other["step_s"]) == ("eight", None)
    # Paths, types, depths, calls and parameters of both batch sizes are one list each.
    shared = [a == b for a, b in zip(one["vectors"], eight["vectors"], strict=True)]
    assert shared == [True] * 4 + [False] * 3 + [True, False]


# What breaks a format


def test_names_are_inert_in_text_and_csv() -> None:
    for style in ("table", "repr"):
        text = tree(hostile(), style=style)
        assert "\x1b" not in text
        assert sum("x y" in row for row in text.splitlines()) == 1
    shown = [row.path.replace("\x1b", r"\u001b") for row in hostile().rows]
    shown = [f"'{path}" if path.startswith("-") else path for path in shown]  # or a spreadsheet computes it
    assert [row["path"] for row in csv.DictReader(io.StringIO(to_csv(hostile())))] == shown


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("table", [lenet5, reused, untold, hostile])
def test_latex_compiles(table: Callable[[], LayerTable], tmp_path: Path) -> None:
    (tmp_path / "table.tex").write_text(to_latex(table(), standalone=True), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "table.pdf").read_bytes().startswith(b"%PDF")
    assert "Missing character" not in (tmp_path / "table.log").read_text(encoding="utf-8", errors="replace")


# Files


def test_the_tables_own_methods() -> None:
    layers = Layers.of(lenet5())
    assert str(layers) == repr(layers) == str(lenet5())
    assert layers.to_text(width=1000) == layers.tree(rows=("type", "name", "arguments"))
    assert layers.tree() == tree(lenet5())
    assert layers.tree(1, ("macs",), "k", "repr", ("type",)) == tree(lenet5(), 1, ("macs",), "k", "repr", ("type",))
    assert layers.by_type(2, 3, "params") == by_type(lenet5(), 2, 3, "params")
    assert layers.by_type(depth=-1) == layers.by_type(depth=2) != []
    assert layers.summary(depth=-1) == layers.summary()
    assert layers.top("params", 2) == top_layers(lenet5(), "params", 2)
    assert layers.to_csv(inclusive=True) == to_csv(layers, True)
    assert layers.to_html(inclusive=True, title="LeNet-5") == to_html(layers, inclusive=True, title="LeNet-5")
    assert layers.to_markdown(inclusive=True) == to_markdown(layers, inclusive=True)


@pytest.mark.parametrize(
    ("name", "kind"), [("csv", str), ("html", Path), ("latex", Path), ("markdown", Path), ("text", str)]
)
def test_a_path_is_written(name: str, kind: type, tmp_path: Path) -> None:
    export = getattr(Layers.of(lenet5()), f"to_{name}")
    path = tmp_path / f"layers.{name}"
    content = export(kind(path))
    assert content == export()
    data = content if isinstance(content, bytes) else content.encode()
    assert path.read_bytes() == data + (b"\n" if name == "text" else b"")


# Mistakes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tree(lenet5(), columns=("mac",)), r"'mac' is not a column of layers.*Did you mean 'macs'"),
        (lambda: tree(lenet5(), style="list"), "'list' is not a style of a tree"),
        (lambda: tree(lenet5(), rows=("kind",)), "'kind' is not a row annotation"),
        (lambda: tree(lenet5(), unit="Mi"), "'Mi' is not a prefix of params"),
        (lambda: to_html(lenet5(), columns=("parms",)), r"'parms' is not a column.*Did you mean 'params'"),
        (lambda: to_html(untold(), inclusive=True), "does not tell"),
        (lambda: by_type(untold(), depth=1), "does not tell which call was made within which"),
        (lambda: by_type(reused().inclusive()), "include one another"),
        (lambda: by_type(reused(), column="dtypes"), "'dtypes' is not a figure of layers"),
        (lambda: top_layers(reused(), "macs_share"), "'macs_share' is not a figure"),
        (lambda: side_by_side(lenet5(), lenet5(), columns=("mac",)), "'mac' is not a figure of layers"),
        (lambda: Layers.of(lenet5()).by_type(depth=-2), "^depth: -2 must be at least 0"),
        (lambda: Layers.of(lenet5()).by_type(top=-1), "^top: -1 must be at least 0"),
    ],
)
def test_what_does_not_exist_is_a_users_mistake(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        call()
    names_a_name = not any(text in message for text in ("does not tell", "include one"))
    assert isinstance(error.value, UserError) == names_a_name
