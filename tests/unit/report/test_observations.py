"""Operators, live tensors and lines of code as text: exact values, shares, and the source beside its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sweeprof.report.display import operators_table
from sweeprof.report.operators import memory_report, operators_csv, tensor_cells, tensors_csv, time_report
from sweeprof.results.observations import FunctionLines, Line, Lines, OperatorRow, Operators, TensorRow

ADDMM = OperatorRow("a.b", "aten::addmm", "forward", 2.0, 3e-6, 4e-6, None, None, 9600, 2048, ((3,), (2, 4)))
COPY = OperatorRow("a|<b>", "aten::copy_", "backward", 0.5, 1e-6, 1.5e-6, None, None, None, -64)
OPERATORS = Operators("training", (COPY, ADDMM), 2, 5e-6)
TENSORS = (
    TensorRow(("a.weight", "b.weight"), "parameter", (1024, 1024), "float32", "cpu", 4_194_304),
    TensorRow(("optimizer.a.weight.step",), "optimizer", (), "float32", "cpu", 4),
    TensorRow((), "other", (3,), "uint8", "cpu", 3),
    TensorRow(("a|b\n`c`",), "buffer", (1,), "float32", "meta", 4),
)
SOURCE = (
    Line(7, "def forward(self, x):", 0, 0.0, 0, 0),
    Line(8, "    y = self.conv(x)", 1200, 0.003, 4 << 20, 1 << 20),
    Line(9, "", 0, 0.0, 0, 0),
    Line(10, "    return y", 1200, 0.001, 0, 0),
)
FORWARD = FunctionLines("net.Net.forward", "/net.py", 7, SOURCE)
NEVER = FunctionLines("net.Net.other", "/net.py", 12, (Line(12, "def other(self): ...", 0, 0.0, 0, 0),))
LINES = Lines((FORWARD, NEVER), steps=2)


def test_texts_are_as_agreed(golden: Callable[[str, str], None]) -> None:
    on_cuda = replace(LINES, steps=1, device="cuda:0", functions=(NEVER,))
    texts = {
        "operators.csv": operators_csv(OPERATORS),
        "tensors.csv": tensors_csv(TENSORS),
        "tensors to read": "\n".join(" | ".join(tensor_cells(row)) for row in TENSORS),
        "lines_time.txt": time_report(LINES),
        "lines_memory.txt": memory_report(replace(LINES, functions=(FORWARD,))),
        "lines_time.txt of a GPU": time_report(on_cuda),
        "lines_memory.txt of a GPU": memory_report(on_cuda),
        "lines_memory.txt without memory": memory_report(replace(LINES, memory_reason="no room")),
    }
    golden("observations.txt", "\n\n".join(f"==== {name}\n{text}" for name, text in texts.items()))


def test_a_table_has_texts_with_shares_and_exact_numbers() -> None:
    shown = operators_table((ADDMM, COPY), 4e-6)
    addmm, copy = ([cell.text for cell in row.cells] for row in shown.rows)
    assert addmm[:6] == ["a.b", "aten::addmm", "forward", "2", "3.00 µs", "75.0%"]
    assert addmm[6:] == ["4.00 µs", "9.60 kFLOP", "2.00 KiB", "3 2×4"]
    assert copy[3:] == ["0.500", "1.00 µs", "25.0%", "1.50 µs", "–", "-64 B", "–"]
    assert [cell.value for cell in shown.rows[0].cells[3:9]] == [2.0, 3e-6, 0.75, 4e-6, 9600, 2048]


def test_on_an_accelerator_its_own_time_comes_first() -> None:
    rows = [replace(row, device_self_s=s, device_total_s=s) for row, s in ((ADDMM, 1e-3), (COPY, 3e-3))]
    shown = operators_table(rows, 4e-3)
    assert [heading.title for heading in shown.headings[4:7]] == ["accelerator time", "share", "self time"]
    addmm, copy = ([cell.text for cell in row.cells[4:7]] for row in shown.rows)
    assert (copy, addmm) == (["3.00 ms", "75.0%", "1.00 µs"], ["1.00 ms", "25.0%", "3.00 µs"])
