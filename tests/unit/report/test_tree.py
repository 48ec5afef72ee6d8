"""The module tree as text."""

from __future__ import annotations

import dataclasses
import re

import pytest

from support.nets import hostile, lenet5, reused, untold
from sweeprof.errors import UserError
from sweeprof.profiling.layers import Layers
from sweeprof.report.layer_formats import tree
from sweeprof.report.layer_table import nodes
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import LayerRow, LayerTable


def line(text: str, start: str) -> list[str]:
    """The cells of the one line that begins so."""
    (found,) = [cells for row in text.splitlines() if (cells := re.split(r"\s{2,}", row.strip()))[0].startswith(start)]
    return found


def total(text: str, name: str) -> str:
    return line(text, name)[1]


def test_the_table_has_the_inclusive_figures() -> None:
    text = tree(lenet5())
    assert line(text, "layer") == "layer|input shape|output shape|params|params %|MACs|FLOPs|trainable".split("|")
    assert line(text, "LeNet5")[1:7] == [
        "[1, 1, 32, 32]",
        "[1, 10]",
        "61.71 k",
        "100 %",
        "416.52 KMACs",
        "852.38 KFLOPs",
    ]
    features = line(text, "├─Sequential (feature_extractor)")
    assert features[3:6] == ["50.69 k", "82.151 %", "405.6 KMACs"]
    assert line(text, "│ ├─Conv2d (0)")[1:6] == ["[1, 1, 32, 32]", "[1, 6, 28, 28]", "156", "0.253 %", "117.6 KMACs"]
    assert line(text, "└─Sequential (classifier)")[5] == "10.92 KMACs"


def test_the_totals() -> None:
    text = tree(lenet5())
    names = "params trainable frozen MACs activations".split()
    assert [total(text, f"{name} " if name == "params" else name) for name in names[1:]] == [
        "61.71 k",
        "0",
        "416.52 KMACs",
        "57.04 KiB",
    ]
    assert total(text, "params size") == "241.04 KiB"
    assert total(text, "input size") == "4 KiB"
    assert total(text, "peak live") == "36.75 KiB at feature_extractor.1"


def test_columns_are_aligned() -> None:
    body = tree(lenet5()).split("─" * 20)[0].splitlines() + tree(lenet5()).splitlines()[2:16]
    ends = {len(row) for row in body if row.strip("─")}
    assert len(ends) == 1


def test_it_is_drawn_like_the_repr_of_the_module() -> None:
    text = tree(lenet5(), style="repr")
    head = "61.71 k params, 100 % params, 416.52 KMACs, 100 % MACs, 852.38 KFLOPs, 57.04 KiB activations"
    assert text.splitlines()[:2] == ["LeNet5(", f"  {head}"]
    assert "  (feature_extractor): Sequential(\n    50.69 k params, 82.151 % params, 405.6 KMACs, 97.378 % MACs" in text
    assert "\n    (6): Conv2d(48.12 k params, 77.983 % params, 48 KMACs, 11.524 % MACs," in text
    assert text.count("(") == text.count(")") == 2 * 14 - 1
    assert text.endswith("\n  )\n)")


def test_the_depth_hides_rows_and_changes_no_figure() -> None:
    text = tree(lenet5(), depth=1)
    assert "Conv2d" not in text
    assert line(text, "├─Sequential")[3] == "50.69 k"
    assert total(text, "MACs") == "416.52 KMACs"
    assert tree(lenet5(), depth=0, style="repr").count("\n") == 0
    assert len(tree(lenet5(), depth=2)) == len(tree(lenet5()))


def test_columns_and_prefix_can_be_chosen() -> None:
    text = tree(lenet5(), columns=("macs", "macs_share", "act_bytes"), unit="M")
    assert line(text, "LeNet5") == ["LeNet5", "0.42 MMACs", "100 %", "57.04 KiB"]
    assert tree(lenet5(), depth=0, columns=("output_shapes", "trainable", "dtypes"), style="repr") == (
        "LeNet5(output shape [1, 10], trainable True, param types float32)"
    )
    with pytest.raises(ValueError, match="'Mi' is no prefix"):
        tree(lenet5(), unit="Mi")


def test_rows_can_be_called_by_more() -> None:
    text = tree(reused(), rows=("type", "path", "depth", "call"))
    assert line(text, "├─Block (block) depth 1 call 0")
    assert line(text, "├─Block (block) depth 1 call 1 (recursive)")
    assert line(text, "│ │ └─Linear (block.steps.1) depth 3 call 0")
    assert line(tree(lenet5(), rows=("name",)), "├─feature_extractor")
    assert line(tree(lenet5(), rows=("type",)), "└─Sequential")
    assert "(steps): ModuleList(\n      block.steps, depth 2, 40 params" in tree(
        reused(), rows=("path", "depth"), style="repr"
    )


def test_weights_of_a_repeated_call_stand_with_the_first() -> None:
    text = tree(reused())
    first, again = (row for row in text.splitlines() if "─Block" in row)
    assert "80" in first
    assert again.count("(recursive)") == 4  # the mark, params, params %, trainable
    assert "96 MACs" in first
    assert "96 MACs" in again
    block = tree(reused(), style="repr").split("(block): Block(")[2]
    assert block.splitlines()[1].strip().startswith("96 MACs")
    assert block.splitlines()[1].endswith("recursive")


def test_what_is_never_called_is_shown_and_says_so() -> None:
    text = tree(reused())
    unused = line(text, "│ └─Linear (unused) (never called)")
    assert unused[1:4] == ["–", "–", "20"]
    steps = line(text, "│ ├─ModuleList (steps) (never called itself)")
    assert steps[1:5] == ["–", "–", "40", "45.455 %"]
    assert text.index("(steps)") < text.index("(unused)") < text.index("(recursive)")
    assert ", never called)" in tree(reused(), style="repr")


def test_a_part_of_which_nothing_is_called_is_not_said_to_be_called_below() -> None:
    rows = (LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 0), LayerRow("a", "Sequential", 1, -1, 0, 0, 0, 0, 0))
    text = tree(LayerTable((*rows, LayerRow("a.0", "Linear", 2, -1, 2, 2, 8, 0, 0))))
    assert line(text, "└─Sequential (a)")[0].endswith("(a) (never called)")
    assert line(text, "└─Linear (0)")[0].endswith("(0) (never called)")


def test_what_is_trainable() -> None:
    text = tree(reused())
    assert line(text, "Reused")[-1] == "Partial"
    assert line(text, "│ ├─Linear (frozen)")[-1] == "False"
    assert line(text, "└─Linear (head)")[-1] == "True"
    assert line(tree(lenet5()), "│ ├─Tanh (1)")[-1] == "–"
    assert (total(text, "trainable"), total(text, "frozen")) == ("68", "20")


def test_a_table_that_tells_no_callers_shows_own_figures_and_says_so() -> None:
    for style in ("table", "repr"):
        text = tree(untold(), style=style)
        reason = "Values are each layer's own, without child layers: this backend does not tell"
        assert text.splitlines()[-1].startswith(reason)
        assert "each layer's own" not in tree(lenet5(), style=style)
    text = tree(untold())
    assert line(text, "Net")[3] == "0"
    assert line(text, "└─Dense (a)")[3:7] == ["20", "66.667 %", "16 MACs", "–"]
    assert line(text, "└─Dense (inner)")[-1] == "Partial"
    assert total(text, "FLOPs") == total(text, "peak live") == total(text, "input size") == "–"


def test_rows_of_a_layer_that_stand_before_it_are_drawn_in_it() -> None:
    table = untold()
    turned = dataclasses.replace(table, rows=(table.rows[0], table.rows[2], table.rows[1]))
    assert [(node.label, node.depth) for node in nodes(turned)] == [("", 0), ("a", 1), ("inner", 2)]


def test_an_inclusive_table_is_not_summed_again() -> None:
    assert tree(reused().inclusive()) == tree(reused())


def test_what_runs_outside_any_module_stands_beside_the_model() -> None:
    table = LayerTable(
        (LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 5), LayerRow(OUTSIDE, "", 0, 0, 0, 0, 0, 0, 7)), {"aten.mv": 2}
    )
    text = tree(table)
    assert line(text, "outside any module")[5] == "7 MACs"
    assert total(text, "MACs") == "12 MACs"
    assert text.endswith("Not counted, because there is no formula: 2 × aten.mv.")
    assert tree(table, style="repr").count("__outside__(") == 1


def test_a_module_of_another_owner_is_called_by_its_whole_path() -> None:
    rows = [
        LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 0),
        LayerRow("embed.table", "Embedding", 2, 0, 4, 4, 16, 0, 0, parent=0),
        LayerRow("head", "Head", 1, 0, 0, 0, 0, 0, 0, parent=0),
        LayerRow("embed.table", "Embedding", 2, 1, 0, 0, 0, 0, 1, parent=2),
    ]
    assert [(n.label, n.depth, n.parent) for n in nodes(LayerTable(tuple(rows)))] == [
        ("", 0, None),
        ("embed.table", 1, 0),
        ("head", 1, 0),
        ("embed.table", 2, 2),
    ]


def test_a_node_of_each_row_comes_before_the_rows_within() -> None:
    found = nodes(reused())
    assert sorted((n.row.path, n.row.call) for n in found) == sorted((r.path, r.call) for r in reused().rows)
    assert all(node.parent is None or node.parent < place for place, node in enumerate(found))
    assert [n.label for n in found if n.holds_calls] == ["", "block", "steps", "block"]


def test_names_keep_to_their_line() -> None:
    for style in ("table", "repr"):
        text = tree(hostile(), style=style)
        assert "\x1b" not in text
        assert sum("x y" in row for row in text.splitlines()) == 1


def test_what_does_not_exist_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match=r"'mac' is not a column of layers.*Did you mean 'macs'"):
        tree(lenet5(), columns=("mac",))
    with pytest.raises(UserError, match="'list' is not a style of a tree"):
        tree(lenet5(), style="list")
    with pytest.raises(UserError, match="'kind' is not a row annotation"):
        tree(lenet5(), rows=("kind",))


def test_an_empty_table() -> None:
    assert total(tree(LayerTable(())), "trainable") == "0"
    assert tree(LayerTable(()), style="repr") == ""


def test_the_table_is_its_own_text() -> None:
    layers = Layers.of(lenet5())
    assert str(layers) == repr(layers) == str(lenet5()) == layers.tree(rows=("type", "name", "arguments"))
    assert layers.tree() == tree(lenet5())
    assert layers.tree(1, ("macs",), "k", "repr", ("type",)) == tree(lenet5(), 1, ("macs",), "k", "repr", ("type",))
