"""Answers and their packing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sweeprof.passes import quality
from sweeprof.passes.quality import Quality


def packed_and_unpacked(given: Quality) -> Quality:
    return Quality.from_dict(json.loads(json.dumps(given.to_dict())))


@given(
    arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=1, max_dims=4, max_side=6),
        elements=st.floats(width=32, allow_nan=False),
    )
)
def test_outputs_of_any_shape_survive(outputs: npt.NDArray[np.float32]) -> None:
    read = packed_and_unpacked(Quality.of(outputs, None))
    assert read.outputs.dtype == np.dtype("<f4")
    np.testing.assert_array_equal(read.outputs, outputs)


def test_predictions_and_targets_survive() -> None:
    made = Quality.of(np.array([[0.1, 0.9], [0.8, 0.2], [0.0, 1.0]]), np.array([1, 1, 1], dtype=np.int64))
    assert made.predictions == (1, 0, 1)
    assert made.targets == (1, 1, 1)
    read = packed_and_unpacked(made)
    assert (read.predictions, read.targets) == (made.predictions, made.targets)


def test_outputs_that_are_not_finite_survive() -> None:
    outputs = np.array([[np.nan, np.inf], [-np.inf, 0]], dtype=np.float32)
    np.testing.assert_array_equal(packed_and_unpacked(Quality.of(outputs, None)).outputs, outputs)


@pytest.mark.parametrize("shape", [(4,), (4, 3, 2), (4, 1, 8, 8)])
def test_no_predictions_but_from_rows_of_scores(shape: tuple[int, ...]) -> None:
    made = Quality.of(np.zeros(shape), np.zeros(4, dtype=np.int64))
    assert made.predictions is None
    assert packed_and_unpacked(made).predictions is None


def test_no_targets_without_labels() -> None:
    assert Quality.of(np.zeros((4, 3)), None).targets is None


@pytest.mark.parametrize(("limit", "kept"), [(1, 1), (39, 1), (40, 1), (79, 1), (80, 2), (400, 10), (10_000, 10)])
def test_kept_outputs_are_capped(monkeypatch: pytest.MonkeyPatch, limit: int, kept: int) -> None:
    monkeypatch.setattr(quality, "KEPT_BYTES", limit)
    outputs = np.arange(100, dtype=np.float64).reshape(10, 10)  # 40 bytes a sample as float32
    made = Quality.of(outputs, None)
    assert len(made.outputs) == kept
    np.testing.assert_array_equal(made.outputs, outputs[:kept])
    assert made.predictions == (9,) * 10


def test_a_thousand_classes_of_a_thousand_samples_are_kept() -> None:
    assert len(Quality.of(np.zeros((1001, 1000), np.float32), None).outputs) >= 1000


def test_the_kept_outputs_compress() -> None:
    data: dict[str, Any] = Quality.of(np.zeros((1000, 1000), np.float32), None).to_dict()
    assert len(json.dumps(data["outputs"])) < 10_000
