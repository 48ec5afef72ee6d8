"""The metrics of memory from records written by hand, and a reason wherever there is none."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.select import metric_set, select
from sweeprof.passes.memory import Memory
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable, Liveness, Training
from sweeprof.results.measurement import Measurement
from sweeprof.results.observations import Allocations, TensorRow
from sweeprof.results.record import PassName, Record

LAYERS = LayerTable((LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 0),), operator_calls=1, liveness=Liveness(800, "b", 16))
TRAINING = Training(1, 2, 3, 4, Liveness(1000, "a", 16))
MEMORY = Memory(100, 200, 950, 5, 900, 640)
INFERENCE = Allocations(
    mode="inference",
    steps=3,
    peak_bytes=1200,
    peak_at="b.conv",
    timeline=(),
    by_layer=(),
    tensors=(
        TensorRow(("w",), "parameter", (5,), "float32", "cpu", 20),
        TensorRow(("x",), "input", (2,), "float32", "cpu", 8),
        TensorRow(("shape",), "buffer", (500,), "float32", "meta", 2000),
        TensorRow((), "other", (3,), "uint8", "cpu", 3),
    ),
    step_peaks_bytes=(1200, 1200, 1200),
    allocated_per_step_bytes=5000,
)
TRAINED = replace(INFERENCE, mode="training", peak_bytes=3000, step_peaks_bytes=(2500, 3000, 3000))
DEVICE = {
    "allocated_pre_bytes": 1,
    "allocated_peak_bytes": 2,
    "allocated_post_bytes": 3,
    "reserved_peak_bytes": 4,
    "process_peak_bytes": 5,
    "device_peak_bytes": 6,
}
CUDA = ("allocated_pre", "allocated_peak", "allocated_post", "reserved_peak", "process_peak", "device_peak")


def record(pass_name: PassName, seen: Any) -> Record:
    data = seen.to_dict() if hasattr(seen, "to_dict") else asdict(seen)
    return Record("s", "c", pass_name, "ok", None, 0, observations=data)


def measured(name: str, allocations: Allocations = INFERENCE, memory: Memory = MEMORY) -> Measurement:
    records = [record("analysis", LAYERS), record("training", TRAINING), record("memory", memory)]
    return evaluate(select([name]), [*records, record("allocations", allocations)], None, 4)[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory/added_bytes", 640),
        ("memory/rss_peak_bytes", 950),
        ("memory/rss_step_bytes", 700),
        ("memory/alloc_peak_bytes", 1200),
        ("memory/allocated_per_step_bytes", 5000),
        ("memory/tensors_bytes", 31),
    ],
)
def test_values(name: str, value: float) -> None:
    assert measured(name).value == value


def test_details() -> None:
    assert measured("memory/added_bytes").detail == {"total": 950}
    assert measured("memory/alloc_peak_bytes").detail == {"layer": "b.conv", "steps": 3}
    assert measured("memory/tensors_bytes").detail == {"parameter": 20, "input": 8, "other": 3}


def test_what_was_not_measured_has_a_reason() -> None:
    on_gpu = Memory(1, 2, 3, 5, 4, None, "the model is on cuda:0")
    assert measured("memory/added_bytes", memory=on_gpu).reason == "memory: the model is on cuda:0"
    earlier = replace(TRAINED, allocated_per_step_bytes=None)
    assert measured("memory/allocated_per_step_bytes", earlier).reason == "allocations: the record does not tell"


@pytest.mark.parametrize(("name", "value"), [(f"memory/cuda_{name}_bytes", i + 1) for i, name in enumerate(CUDA)])
def test_an_accelerator(name: str, value: int) -> None:
    assert measured(name, replace(INFERENCE, device=DEVICE)).value == value
    assert measured(name).value is None
    assert measured(name).reason == "the model runs on the host"


def test_a_driver_that_does_not_tell() -> None:
    without = {key: value for key, value in DEVICE.items() if key != "process_peak_bytes"}
    found = measured("memory/cuda_process_peak_bytes", replace(INFERENCE, device=without))
    assert found.value is None
    assert "the driver does not tell" in str(found.reason)


def test_the_set() -> None:
    names = {one.metric.info.name for one in select(metric_set("memory"))}
    assert {"memory/rss_peak_bytes", "memory/alloc_peak_bytes", "memory/cuda_reserved_peak_bytes"} <= names
    for one in select(metric_set("memory")):
        assert one.metric.info.definition.endswith(".")
