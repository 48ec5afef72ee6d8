"""The table of live tensors as text."""

from __future__ import annotations

import csv
import io
import json

from sweeprof.report.operators import COLUMNS, tensor_cells, tensors_csv
from sweeprof.results.observations import TensorRow

WEIGHT = TensorRow(("a.weight", "b.weight"), "parameter", (1024, 1024), "float32", "cpu", 4_194_304)
STEP = TensorRow(("optimizer.a.weight.step",), "optimizer", (), "float32", "cpu", 4)
LOOSE = TensorRow((), "other", (3,), "uint8", "cpu", 3)
ODD = TensorRow(("a|b\n`c`",), "buffer", (1,), "float32", "meta", 4)
ROWS = (WEIGHT, STEP, LOOSE)


def test_csv_has_every_value() -> None:
    header, *lines = csv.reader(io.StringIO(tensors_csv((*ROWS, ODD))))
    assert tuple(header) == COLUMNS
    for line, row in zip(lines, (*ROWS, ODD), strict=True):
        assert (tuple(json.loads(line[0])), tuple(json.loads(line[2])), int(line[5])) == (
            row.names,
            row.shape,
            row.bytes,
        )
        assert (line[1], line[3], line[4]) == (row.kind, row.dtype, row.device)


def test_cells_have_names_and_shapes_to_read() -> None:
    assert [tensor_cells(row) for row in ROWS] == [
        ("a.weight = b.weight", "parameter", "1024×1024", "float32", "cpu", "4 MiB"),
        ("optimizer.a.weight.step", "optimizer", "scalar", "float32", "cpu", "4 B"),
        ("–", "other", "3", "uint8", "cpu", "3 B"),
    ]
    assert tensor_cells(ODD)[0] == "a|b `c`"
