"""Operators as CSV and as a table: exact values, and shares of the time."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

from sweeprof.report.display import operators_table
from sweeprof.report.operators import operators_csv
from sweeprof.results.observations import FRAME_COLUMNS, OperatorRow, Operators

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
