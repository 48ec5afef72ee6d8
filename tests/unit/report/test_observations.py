"""Operators, live tensors and lines of code as text: exact values, shares, and the source beside its figures."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from dataclasses import replace

from sweeprof.report.display import operators_table
from sweeprof.report.operators import (
    COLUMNS,
    memory_report,
    operators_csv,
    reports,
    tensor_cells,
    tensors_csv,
    time_report,
)
from sweeprof.results.observations import FRAME_COLUMNS, FunctionLines, Line, Lines, OperatorRow, Operators, TensorRow

ADDMM = OperatorRow("a.b", "aten::addmm", "forward", 2.0, 3e-6, 4e-6, None, None, 9600, 2048, ((3,), (2, 4)))
COPY = OperatorRow("a|<b>", "aten::copy_", "backward", 0.5, 1e-6, 1.5e-6, None, None, None, -64)
OPERATORS = Operators("training", (COPY, ADDMM), 2, 5e-6)


def test_csv_has_exact_values_and_empty_cells() -> None:
    header, copy, addmm = csv.reader(io.StringIO(operators_csv(OPERATORS)))
    assert header == FRAME_COLUMNS
    assert copy == ["a|<b>", "aten::copy_", "backward", "0.5", "1e-06", "1.5e-06", "", "", "", "-64", "[]"]
    assert addmm[:6] == ["a.b", "aten::addmm", "forward", "2.0", "3e-06", "4e-06"]
    assert addmm[8:10] == ["9600", "2048"]
    assert json.loads(addmm[10]) == [[3], [2, 4]]


def test_a_table_has_texts_with_shares_and_exact_numbers() -> None:
    shown = operators_table((ADDMM, COPY), 4e-6)
    addmm, copy = ([cell.text for cell in row.cells] for row in shown.rows)
    assert addmm == [
        "a.b", "aten::addmm", "forward", "2", "3.00 µs", "75.0%", "4.00 µs", "9.60 kFLOP", "2.00 KiB", "3 2×4",
    ]  # fmt: skip
    assert copy[3:] == ["0.500", "1.00 µs", "25.0%", "1.50 µs", "–", "-64 B", "–"]
    assert [cell.value for cell in shown.rows[0].cells[3:9]] == [2.0, 3e-6, 0.75, 4e-6, 9600, 2048]


def test_on_an_accelerator_its_own_time_comes_first() -> None:
    rows = [
        dataclasses.replace(row, device_self_s=seconds, device_total_s=seconds)
        for row, seconds in ((ADDMM, 1e-3), (COPY, 3e-3))
    ]
    shown = operators_table(rows, 4e-3)
    assert [heading.title for heading in shown.headings[4:7]] == ["accelerator time", "share", "self time"]
    addmm, copy = ([cell.text for cell in row.cells[4:7]] for row in shown.rows)
    assert (copy, addmm) == (["3.00 ms", "75.0%", "1.00 µs"], ["1.00 ms", "25.0%", "3.00 µs"])


def test_without_rows_there_is_a_header() -> None:
    assert operators_csv(Operators("inference", (), 1, 1.0)).splitlines() == [",".join(FRAME_COLUMNS)]


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


FORWARD = FunctionLines(
    "net.Net.forward",
    "/net.py",
    7,
    (
        Line(7, "def forward(self, x):", 0, 0.0, 0, 0),
        Line(8, "    y = self.conv(x)", 1200, 0.003, 4 << 20, 1 << 20),
        Line(9, "", 0, 0.0, 0, 0),
        Line(10, "    return y", 1200, 0.001, 0, 0),
    ),
)
NEVER = FunctionLines("net.Net.other", "/net.py", 12, (Line(12, "def other(self): ...", 0, 0.0, 0, 0),))
LINES = Lines((FORWARD, NEVER), steps=2)


def below(report: str) -> str:
    """Without the introduction."""
    return report.partition("\n\n\n")[2]


def test_time_is_aligned_beside_the_source() -> None:
    assert (
        below(time_report(LINES))
        == """\
net.Net.forward
/net.py:7
4.00 ms in total, 2.00 ms per step

line   hits     time  per hit  share  source
   7                                  def forward(self, x):
   8  1,200  3.00 ms  2.50 µs  75.0%      y = self.conv(x)
   9
  10  1,200  1.00 ms   833 ns  25.0%      return y


net.Net.other
/net.py:12
It was not called.
"""
    )


def test_memory_is_aligned_beside_the_source() -> None:
    assert (
        below(memory_report(replace(LINES, functions=(FORWARD,))))
        == """\
net.Net.forward
/net.py:7

line  allocated   at peak  source
   7                       def forward(self, x):
   8   4.00 MiB  1.00 MiB      y = self.conv(x)
   9
  10        0 B       0 B      return y
"""
    )


def test_the_introduction_says_what_is_measured_and_how() -> None:
    assert time_report(LINES).startswith("Time by line over 2 steps, measured by line_profiler.\n")
    assert time_report(replace(LINES, steps=1)).startswith("Time by line over 1 step, ")
    assert "cuda:0" not in time_report(LINES)
    assert "memray" in memory_report(LINES).partition("\n")[0]
    on_cuda = replace(LINES, device="cuda:0")
    assert "the host's time: cuda:0 may still be at work" in time_report(on_cuda)
    assert memory_report(on_cuda).startswith("Memory of cuda:0 by line")


def test_without_memory_the_report_says_why() -> None:
    assert memory_report(replace(LINES, memory_reason="no room")) == "There is no memory by line: no room\n"


def test_the_files_are_the_reports() -> None:
    assert reports(LINES) == {
        "lines_time.txt": time_report(LINES).encode(),
        "lines_memory.txt": memory_report(LINES).encode(),
    }
    assert reports(Lines.from_dict(LINES.to_dict())) == reports(LINES)
