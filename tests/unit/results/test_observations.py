"""Operators, allocations, live tensors and lines of code as plain data: round trips, totals, frames."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import pytest

from sweeprof.errors import UserError
from sweeprof.results.observations import (
    FRAME_COLUMNS,
    Allocations,
    FunctionLines,
    LayerMemory,
    Line,
    Lines,
    Moment,
    OperatorRow,
    Operators,
    OperatorTotal,
    TensorRow,
    bytes_by_kind,
    largest_first,
    tensor_difference,
)

ADDMM = OperatorRow("a", "aten::addmm", "forward", 2.0, 3e-6, 4e-6, None, None, 96, 64, ((3,), (2, 4), (4, 3)))
AGAIN = OperatorRow("b", "aten::addmm", "forward", 1.0, 1e-6, 1e-6, None, None, None, -64)
COPY = OperatorRow("a", "aten::copy_", "backward", 0.5, 5e-7, 5e-7, None, None, None, 0, ((2, 3),))
OPERATORS = Operators("training", (COPY, ADDMM, AGAIN), 3, 9e-6, files={"trace.json.gz": b"packed"})


def test_totals_are_sums_over_the_rows_of_an_operator() -> None:
    addmm, copy = OPERATORS.totals()
    assert (addmm.operator, addmm.calls, addmm.device_self_s) == ("aten::addmm", 3.0, None)
    assert copy == OperatorTotal("aten::copy_", 0.5, 5e-7, None, 5e-7, None, 4.5e-6)
    assert copy.average_s == pytest.approx(1e-6)
    assert copy.self_share == copy.total_share == pytest.approx(1 / 9)
    assert [total.operator for total in OPERATORS.totals("calls", top=1)] == ["aten::addmm"]
    with pytest.raises(UserError, match="Did you mean 'self_s'"):
        OPERATORS.totals("self")  # type: ignore[arg-type]
    lines = str(OPERATORS.totals()).splitlines()
    assert lines[1].split() == ["operator", "self", "%", "self", "total", "%", "total", "average", "calls"]
    assert lines[4].split() == ["aten::copy_", "11.1%", "500", "ns", "11.1%", "500", "ns", "1.00", "µs", "0.500"]
    assert lines[5] == "self time of all operators: 4.50 µs"


def test_a_total_of_what_is_not_known_is_not_known() -> None:
    rows = tuple(replace(row, device_self_s=1.0, device_total_s=1.0) for row in (ADDMM, AGAIN))
    assert Operators("inference", rows, 1, 1.0).totals()[0].device_self_s == 2.0
    half = Operators("inference", (rows[0], AGAIN), 1, 1.0)
    assert half.totals()[0].device_self_s is None


def test_the_largest_rows_are_those_with_a_value() -> None:
    assert OPERATORS.top(2) == (ADDMM, AGAIN)
    assert OPERATORS.top(5, "flops") == (ADDMM,)
    assert OPERATORS.top(5, "device_self_s") == ()


def test_the_frame_has_a_line_per_row() -> None:
    frame = OPERATORS.to_frame()
    assert [field.name for field in dataclasses.fields(OperatorRow)] == FRAME_COLUMNS
    assert list(frame.columns) == [*FRAME_COLUMNS, "reason"]
    assert frame.groupby("path")["calls"].sum().to_dict() == {"a": 2.5, "b": 1.0}
    assert list(Operators("inference", (), 1, 1.0).to_frame().columns) == [*FRAME_COLUMNS, "reason"]


WEIGHT = TensorRow(("a.weight", "b.weight"), "parameter", (2, 3), "float32", "cpu", 24)
LOOSE = TensorRow((), "other", (), "int64", "cpu", 8)
SHAPE_ONLY = TensorRow(("c",), "buffer", (1000,), "float32", "meta", 4000)
SEEN = Allocations(
    mode="training",
    steps=3,
    peak_bytes=700,
    peak_at="a",
    timeline=(Moment(0.25, 700, "a"), Moment(0.5, 24, "__outside__")),
    by_layer=(LayerMemory("a", 700, 800, 24, 600),),
    tensors=(WEIGHT, LOOSE),
    device={"allocated_peak_bytes": 9},
    step_peaks_bytes=(600, 700, 700),
    allocated_per_step_bytes=900,
)


def test_allocations_survive_json_also_without_the_peaks_of_steps() -> None:
    data = json.loads(json.dumps(SEEN.to_dict()))
    assert Allocations.from_dict(data) == SEEN
    del data["step_peaks_bytes"], data["allocated_per_step_bytes"]
    found = Allocations.from_dict(data)
    assert (found.step_peaks_bytes, found.allocated_per_step_bytes) == ((), None)


def test_lists_of_tensors() -> None:
    """A sum leaves out what takes no memory, and a difference counts rows that are alike."""
    assert list(bytes_by_kind([LOOSE, SHAPE_ONLY, WEIGHT, LOOSE]).items()) == [("parameter", 24), ("other", 16)]
    assert largest_first([LOOSE, WEIGHT, SHAPE_ONLY]) == (SHAPE_ONLY, WEIGHT, LOOSE)
    changed = tensor_difference([WEIGHT, LOOSE, LOOSE], [LOOSE, SHAPE_ONLY])
    assert changed.added == (SHAPE_ONLY,)
    assert changed.removed == (WEIGHT, LOOSE)


FORWARD = (Line(3, "def forward(x):", 0, 0.0, 0, 0), Line(4, "…", 2, 0.5, 8, None))
LINES = Lines(
    (FunctionLines("net.Net.forward", "/net.py", 3, FORWARD),),
    steps=2,
    memory_reason="why",
    device="cuda:0",
    files={"lines_time.txt": b"text"},
)


@pytest.mark.parametrize("seen", [OPERATORS, replace(OPERATORS, flops_reason="no"), LINES])
def test_a_record_holds_everything_but_the_files(seen: Operators | Lines) -> None:
    data = json.loads(json.dumps(seen.to_dict()))
    assert "files" not in data
    assert type(seen).from_dict(data) == replace(seen, files={})
