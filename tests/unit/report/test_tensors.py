"""The table of live tensors as text."""

from __future__ import annotations

import csv
import io
import json

from sweeprof.report.tensors import COLUMNS, to_csv, to_markdown, to_text
from sweeprof.results.memory import TensorRow

WEIGHT = TensorRow(("a.weight", "b.weight"), "parameter", (1024, 1024), "float32", "cpu", 4_194_304)
STEP = TensorRow(("optimizer.a.weight.step",), "optimizer", (), "float32", "cpu", 4)
LOOSE = TensorRow((), "other", (3,), "uint8", "cpu", 3)
ODD = TensorRow(("a|b\n`c`",), "buffer", (1,), "float32", "meta", 4)
ROWS = (WEIGHT, STEP, LOOSE)


def test_csv_has_every_value() -> None:
    header, *lines = csv.reader(io.StringIO(to_csv((*ROWS, ODD))))
    assert tuple(header) == COLUMNS
    for line, row in zip(lines, (*ROWS, ODD), strict=True):
        assert (tuple(json.loads(line[0])), tuple(json.loads(line[2])), int(line[5])) == (
            row.names,
            row.shape,
            row.bytes,
        )
        assert (line[1], line[3], line[4]) == (row.kind, row.dtype, row.device)


def test_text() -> None:
    assert to_text(ROWS) == (
        "names                    kind       shape      dtype    device  bytes\n"
        "a.weight = b.weight      parameter  1024×1024  float32  cpu     4 MiB\n"
        "optimizer.a.weight.step  optimizer  scalar     float32  cpu       4 B\n"
        "–                        other      3          uint8    cpu       3 B\n"
        "in total 4 MiB: parameter 4 MiB, optimizer 4 B, other 3 B\n"
    )


def test_what_is_left_out_is_said() -> None:
    assert to_text(ROWS, top=1).splitlines()[2:] == [
        "and 2 more",
        "in total 4 MiB: parameter 4 MiB, optimizer 4 B, other 3 B",
    ]
    assert "more" not in to_text(ROWS, top=3)
    assert "and 2 more" in to_markdown(ROWS, top=1)


def test_markdown_is_a_table_whatever_a_name_holds() -> None:
    lines = to_markdown((*ROWS, ODD)).splitlines()
    assert lines[1] == "| :-- | :-- | :-- | :-- | :-- | --: |"
    assert [line.replace(r"\|", "").count("|") for line in lines[:6]] == [7] * 6
    assert lines[-1].startswith("in total 4 MiB: parameter")


def test_no_tensors() -> None:
    assert to_text(()).splitlines()[-1] == "in total 0 B"
