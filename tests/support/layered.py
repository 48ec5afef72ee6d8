"""What the passes of a small model leave, without running them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sweeprof.report.layer_formats import to_csv
from sweeprof.report.operators import operators_csv
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.observations import OperatorRow, Operators
from sweeprof.results.record import Record


def layer_table(batch: int = 1, hidden: int = 120, timed: bool = True) -> LayerTable:
    """A root with a convolution that is called twice and a linear layer; the times grow with the batch."""
    rows = [
        LayerRow("__root__", "Net", 0, 0, 0, 0, 0, 0, 0, parent=None),
        LayerRow(
            "conv", "Conv2d", 1, 0, 156, 156, 624, 0, 117_600 * batch, (), ((batch, 6, 28, 28),), act_bytes=0, parent=0
        ),
        LayerRow(
            "conv", "Conv2d", 1, 1, 0, 0, 0, 0, 235_200 * batch, (), ((batch, 6, 28, 28),), act_bytes=4096, parent=0
        ),
        LayerRow("head|`x`", "Linear", 1, 0, 84 * hidden, 84 * hidden, 336 * hidden, 0, 84 * hidden * batch, parent=0),
    ]
    seconds = [0.001 * batch, 0.000_1 * batch, 0.000_234_56 * batch, 0.000_05 * batch]
    if timed:
        rows = [
            dataclasses.replace(row, forward_s=time, forward_self_s=time if row.depth else 0.0)
            for row, time in zip(rows, seconds, strict=True)
        ]
    return LayerTable(tuple(rows))


def operator_table() -> Operators:
    """A convolution in two layers, and an addition without FLOPs."""
    rows = (
        OperatorRow("conv", "aten::conv2d", "forward", 1.0, 0.000_2, 0.000_3, None, None, 240_000, 4096),
        OperatorRow("conv", "aten::conv2d", "forward", 2.0, 0.000_3, 0.000_3, None, None, 480_000, 4096),
        OperatorRow("head", "aten::add", "forward", 1.0, 0.000_9, 0.000_9, None, None, None, None),
    )
    return Operators("inference", rows, 10, 0.002)


def write_layers(folder: Path, of: Comparison) -> None:
    """The tables of every measured combination, and the records of their analysis, in the folder of a sweep."""
    for row in of.rows:
        if row.status != "ok":
            continue
        table = layer_table(row.axes["batch_size"])
        for name, text in (("layers", to_csv(table)), ("operators", operators_csv(operator_table()))):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / f"{row.combination_id}.csv").write_text(text, encoding="utf-8")
        seen = layer_table(row.axes["batch_size"], timed=False).to_dict()
        Record(of.sweep_id, row.combination_id, "analysis", "ok", observations=seen).write(folder / "records")
