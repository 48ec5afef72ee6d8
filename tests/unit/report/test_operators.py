"""Operators as CSV and Markdown: exact values, the longest first, and names that mean something elsewhere."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

from sweeprof.report.operators import to_csv, to_markdown
from sweeprof.results.operators import FRAME_COLUMNS, OperatorRow, Operators

ADDMM = OperatorRow("a.b", "aten::addmm", "forward", 2.0, 3e-6, 4e-6, None, None, 9600, 2048, ((3,), (2, 4)))
COPY = OperatorRow("a|<b>", "aten::copy_", "backward", 0.5, 1e-6, 1.5e-6, None, None, None, -64)
OPERATORS = Operators("training", (COPY, ADDMM), 2, 5e-6)


def lines(markdown: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in markdown.splitlines()]


def test_csv_has_exact_values_and_empty_cells() -> None:
    header, copy, addmm = csv.reader(io.StringIO(to_csv(OPERATORS)))
    assert header == FRAME_COLUMNS
    assert copy == ["a|<b>", "aten::copy_", "backward", "0.5", "1e-06", "1.5e-06", "", "", "", "-64", "[]"]
    assert addmm[:6] == ["a.b", "aten::addmm", "forward", "2.0", "3e-06", "4e-06"]
    assert addmm[8:10] == ["9600", "2048"]
    assert json.loads(addmm[10]) == [[3], [2, 4]]


def test_markdown_has_the_longest_first_and_shares_of_all() -> None:
    header, marks, addmm, copy = lines(to_markdown(OPERATORS))
    assert header == "path operator phase calls self share total flops allocated shapes".split()
    assert len(marks) == len(header)
    assert addmm == [
        "a.b", "aten::addmm", "forward", "2", "3.00 µs", "75.0%", "4.00 µs", "9.60 kFLOP", "2.00 KiB", "3 2×4",
    ]  # fmt: skip
    assert copy[3:] == ["0.500", "1.00 µs", "25.0%", "1.50 µs", "", "-64 B", ""]
    assert len(lines(to_markdown(OPERATORS, top=1))) == 3


def test_names_mean_nothing_to_markdown() -> None:
    assert r"a\|&lt;b&gt;" in to_markdown(OPERATORS)


def test_on_an_accelerator_its_own_time_comes_first() -> None:
    rows = tuple(
        dataclasses.replace(row, device_self_s=seconds, device_total_s=seconds)
        for row, seconds in ((ADDMM, 1e-3), (COPY, 3e-3))
    )
    header, _, copy, addmm = lines(to_markdown(Operators("inference", rows, 1, 1.0)))
    assert header[4:7] == ["device", "share", "self"]
    assert (copy[4:7], addmm[4:7]) == (["3.00 ms", "75.0%", "1.00 µs"], ["1.00 ms", "25.0%", "3.00 µs"])


def test_without_rows_there_are_headers() -> None:
    empty = Operators("inference", (), 1, 1.0)
    assert to_csv(empty).splitlines() == [",".join(FRAME_COLUMNS)]
    assert len(to_markdown(empty).splitlines()) == 2
