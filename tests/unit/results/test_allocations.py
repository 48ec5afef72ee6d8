"""Allocations and live tensors as plain data."""

from __future__ import annotations

import json

from sweeprof.results.observations import (
    Allocations,
    LayerMemory,
    Moment,
    TensorRow,
    bytes_by_kind,
    largest_first,
    tensor_difference,
)

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


def test_they_survive_json() -> None:
    assert Allocations.from_dict(json.loads(json.dumps(SEEN.to_dict()))) == SEEN


def test_a_record_without_the_peaks_of_steps() -> None:
    data = SEEN.to_dict()
    del data["step_peaks_bytes"], data["allocated_per_step_bytes"]
    found = Allocations.from_dict(data)
    assert (found.step_peaks_bytes, found.allocated_per_step_bytes) == ((), None)


def test_the_sum_by_kind_leaves_out_what_takes_no_memory() -> None:
    assert bytes_by_kind([LOOSE, SHAPE_ONLY, WEIGHT, LOOSE]) == {"parameter": 24, "other": 16}
    assert list(bytes_by_kind([LOOSE, WEIGHT])) == ["parameter", "other"]


def test_largest_first() -> None:
    assert largest_first([LOOSE, WEIGHT, SHAPE_ONLY]) == (SHAPE_ONLY, WEIGHT, LOOSE)


def test_a_difference_counts_rows_that_are_alike() -> None:
    changed = tensor_difference([WEIGHT, LOOSE, LOOSE], [LOOSE, SHAPE_ONLY])
    assert changed.added == (SHAPE_ONLY,)
    assert changed.removed == (WEIGHT, LOOSE)
