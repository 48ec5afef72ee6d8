"""The overview of one model: counts, sizes and times in one call, as moduleprofiler gives them."""

from __future__ import annotations

import re

from support.nets import lenet5, untold
from support.timed_layers import cells_of, timed_lenet5
from sweeprof.profiling.layers import Layers


def test_totals_sums_and_the_tree() -> None:
    text = timed_lenet5().summary()
    assert cells_of(text, "forward MACs") == ["forward MACs", "416.52 KMACs"]
    assert cells_of(text, "forward time") == ["forward time", "105 ms"]
    assert cells_of(text, "forward FLOP/s") == ["forward FLOP/s", "8.12 MFLOP/s"]
    assert cells_of(text, "backward time") == ["backward time", "210 ms"]
    # 2 · 852,380 FLOPs in 210 ms, 3 · 852,380 in 315 ms.
    assert cells_of(text, "backward FLOP/s")[1].startswith("8.12 MFLOP/s, if it does twice")
    assert cells_of(text, "both FLOP/s")[1].startswith("8.12 MFLOP/s")
    assert re.findall(r"^depth (\d):$", text, re.MULTILINE) == ["0", "1", "2"]
    assert "  forward: Tanh 34.0 ms, Linear 26.0 ms, Conv2d 18.0 ms" in text
    assert text.count("Times are medians") == 1
    assert "(classifier): Sequential(" in text


def test_depth_top_and_detail() -> None:
    text = timed_lenet5().summary(depth=1, top=1, detailed=False)
    assert re.findall(r"^depth (\d):$", text, re.MULTILINE) == ["0", "1"]
    assert "LeNet5(" not in text
    assert text.count("Times are medians") == 1
    assert "Linear" not in timed_lenet5().summary(depth=2, top=1).split("depth 2:")[1].split("forward:")[0]


def test_modules_can_be_left_out() -> None:
    layers = Layers.of(timed_lenet5().where(lambda row: row.type != "Conv2d"))
    text = layers.summary()
    assert "Conv2d" not in text
    assert cells_of(text, "forward MACs") == ["forward MACs", "10.92 KMACs"]
    assert cells_of(text, "forward time") == ["forward time", "87.0 ms"]  # 105 less 3, 6 and 9


def test_without_times_and_without_callers() -> None:
    assert cells_of(Layers.of(lenet5()).summary(), "forward time") == ["forward time", "– (not measured)"]
    text = Layers.of(untold()).summary()
    assert "every depth:" in text
    assert "does not tell which call" in text
    assert "params: Dense 30" in text
