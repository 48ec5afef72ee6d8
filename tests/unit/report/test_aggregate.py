"""Sums by class name and the largest rows."""

from __future__ import annotations

from typing import Any

import pytest

from support.nets import lenet5, reused, untold
from sweeprof.errors import UserError
from sweeprof.profiling.layers import Layers
from sweeprof.report.layer_table import by_type, summary_lines, top_layers


def test_the_lines_of_lenet5() -> None:
    assert summary_lines(lenet5()) == [
        "params: Conv2d 50.69 k, Linear 11.01 k, Tanh 0",
        "MACs: Conv2d 405.6 KMACs, Linear 10.92 KMACs, Tanh 0 MACs",
        "FLOPs: Conv2d 817.62 KFLOPs, Linear 21.93 KFLOPs, Tanh 6.51 KFLOPs",
        "activations: Tanh 25.42 KiB, Conv2d 25.09 KiB, AvgPool2d 6.16 KiB",
    ]


def test_exact_sums_and_shares() -> None:
    assert by_type(lenet5(), depth=2, top=2) == [
        ("Conv2d", 405_600, 405_600 / 416_520),
        ("Linear", 10_920, 10_920 / 416_520),
    ]
    assert by_type(lenet5(), depth=2, top=1, column="params") == [("Conv2d", 50_692, 50_692 / 61_706)]


def test_a_depth_sums_what_is_within() -> None:
    assert by_type(lenet5(), depth=0) == [("LeNet5", 416_520, 1.0)]
    assert by_type(lenet5(), depth=1, column="params") == [("Sequential", 61_706, 1.0)]


def test_the_innermost_depth_works_and_there_is_none_below() -> None:
    innermost = max(row.depth for row in reused().rows)
    assert innermost == 3
    # Two layers of a list, each called twice.
    assert by_type(reused(), depth=innermost) == [("Linear", 4 * 32, 128 / 208)]
    assert by_type(reused(), depth=-1) == by_type(reused(), depth=innermost)
    assert by_type(reused(), depth=innermost + 1) == []
    assert summary_lines(reused(), depth=9) == ["params: –", "MACs: –", "FLOPs: –", "activations: –"]


def test_weights_of_a_module_that_is_called_twice_count_once() -> None:
    assert by_type(reused(), depth=1, column="params") == [("Block", 80, 80 / 88), ("Linear", 8, 8 / 88)]
    assert by_type(reused(), depth=1, column="macs")[0] == ("Block", 192, 192 / 208)
    assert by_type(reused(), depth=1, column="frozen")[0] == ("Block", 20, 1.0)


def test_without_a_depth_every_row_counts_once() -> None:
    found = by_type(reused())
    assert sum(value or 0 for _, value, _ in found) == reused().macs
    assert sum(share or 0 for _, _, share in found) == pytest.approx(1)
    assert by_type(untold(), column="params") == [("Dense", 30, 1.0), ("Net", 0, 0.0)]


def test_what_is_not_counted_has_no_sum() -> None:
    assert by_type(untold(), column="flops") == [("Net", None, None), ("Dense", None, None)]
    assert top_layers(untold(), "flops") == []
    assert summary_lines(untold(), depth=None)[2] == "FLOPs: Net –, Dense –"


def test_what_cannot_be_summed_is_refused() -> None:
    with pytest.raises(ValueError, match="does not tell which call was made within which"):
        by_type(untold(), depth=1)
    with pytest.raises(ValueError, match="include one another"):
        by_type(reused().inclusive())
    with pytest.raises(UserError, match="'dtypes' is not a figure of layers"):
        by_type(reused(), column="dtypes")
    with pytest.raises(UserError, match="'macs_share' is not a figure"):
        top_layers(reused(), "macs_share")


def test_the_largest_rows() -> None:
    found = top_layers(lenet5(), "macs", 3)
    assert [(row.path, value) for row, value, _ in found] == [
        ("feature_extractor.3", 240_000),
        ("feature_extractor.0", 117_600),
        ("feature_extractor.6", 48_000),
    ]
    assert found[0][2] == 240_000 / 416_520


def test_the_largest_rows_by_weights_name_a_module_once() -> None:
    found = top_layers(reused(), "params", 99)
    with_params = [row.path for row, value, _ in found if value]
    assert with_params == ["block.steps.0", "block.steps.1", "block.frozen", "block.unused", "head"]


def test_the_tables_own_methods() -> None:
    assert Layers.of(lenet5()).by_type(2, 3, "params") == by_type(lenet5(), 2, 3, "params")
    assert Layers.of(lenet5()).top("params", 2) == top_layers(lenet5(), "params", 2)


def test_depth_minus_one_is_the_deepest_level_everywhere() -> None:
    layers = Layers.of(lenet5())
    assert layers.by_type(depth=-1) == layers.by_type(depth=2) != []
    assert layers.tree(depth=-1) == layers.tree()
    assert layers.summary(depth=-1) == layers.summary()


@pytest.mark.parametrize("given", [{"depth": -2}, {"top": -1}])
def test_what_is_below_is_an_error(given: dict[str, Any]) -> None:
    ((key, value),) = given.items()
    with pytest.raises(UserError, match=f"^{key}: {value} must be at least 0"):
        Layers.of(lenet5()).by_type(**given)
