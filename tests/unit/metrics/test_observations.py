"""Metrics of memory, operators, layer times and lines, from results written by hand, and a reason wherever there is none."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from sweeprof.errors import UserError
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.evaluate import measured as measured_now
from sweeprof.metrics.metric import builtin_metrics
from sweeprof.metrics.select import metric_set, named_passes, passes_of, select
from sweeprof.passes.memory import Memory
from sweeprof.results.layer_times import OUTSIDE, ROOT, CallTime, LayerTimes, PhaseTimes
from sweeprof.results.layers import LayerRow, LayerTable, Liveness, Training
from sweeprof.results.measurement import Measurement
from sweeprof.results.observations import Allocations, KernelRow, OperatorRow, Operators, TensorRow
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
CUDA = ("allocated_pre", "allocated_peak", "allocated_post", "reserved_peak", "process_peak", "device_peak")
DEVICE = {f"{name}_bytes": place + 1 for place, name in enumerate(CUDA)}


def record(pass_name: PassName, seen: Any) -> Record:
    data = seen.to_dict() if hasattr(seen, "to_dict") else asdict(seen)
    return Record("s", "c", pass_name, "ok", None, 0, observations=data)


def measured(name: str, allocations: Allocations = INFERENCE, memory: Memory = MEMORY) -> Measurement:
    records = [record("analysis", LAYERS), record("training", TRAINING), record("memory", memory)]
    return evaluate(select([name]), [*records, record("allocations", allocations)], None, 4)[name]


@pytest.mark.parametrize(
    ("name", "value", "detail"),
    [
        ("memory/added_bytes", 640, {"total": 950}),
        ("memory/process_peak_bytes", 950, {"baseline": 100, "loaded": 200}),
        ("memory/alloc_peak_bytes", 1200, {"layer": "b.conv", "steps": 3}),
        ("memory/allocated_per_step_bytes", 5000, None),
        ("memory/tensors_bytes", 31, {"parameter": 20, "input": 8, "other": 3}),
    ],
)
def test_values(name: str, value: float, detail: dict[str, Any] | None) -> None:
    found = measured(name)
    assert found.value == value
    assert detail is None or found.detail == detail


def test_what_was_not_measured_has_a_reason() -> None:
    on_gpu = Memory(1, 2, 3, 5, 4, None, "the allocator keeps no statistics", "cuda", None, "NVML: not found")
    assert measured("memory/added_bytes", memory=on_gpu).reason == "memory: the allocator keeps no statistics"
    reason = "memory: that of the process on cuda is not known: NVML: not found"
    assert measured("memory/process_peak_bytes", memory=on_gpu).reason == reason
    earlier = replace(TRAINED, allocated_per_step_bytes=None)
    assert measured("memory/allocated_per_step_bytes", earlier).reason == "allocations: the record does not tell"


def test_the_memory_of_a_trial_on_an_accelerator_is_that_of_the_accelerator() -> None:
    on_gpu = Memory(100, 200, 950, 5, 900, 64, None, "cuda", 5000)
    for name, value, detail in (("added", 64, {"total": 5000}), ("process_peak", 5000, {"host": 950})):
        found = measured(f"memory/{name}_bytes", memory=on_gpu)
        assert (found.value, found.detail) == (value, detail)
    assert measured("memory/rss_peak_bytes", memory=on_gpu).value == 950


@pytest.mark.parametrize(("name", "value"), [(f"memory/cuda_{name}_bytes", i + 1) for i, name in enumerate(CUDA)])
def test_an_accelerator(name: str, value: int) -> None:
    assert measured(name, replace(INFERENCE, device=DEVICE)).value == value
    assert (measured(name).value, measured(name).reason) == (None, "the model runs on the host")


def test_a_driver_that_does_not_tell() -> None:
    without = {key: value for key, value in DEVICE.items() if key != "process_peak_bytes"}
    found = measured("memory/cuda_process_peak_bytes", replace(INFERENCE, device=without))
    assert found.value is None
    assert "the driver does not tell" in str(found.reason)


# The operators' metrics from a table written by hand, and reasons where there is none


ADDMM = OperatorRow("a", "aten::addmm", "forward", 2.0, 3e-6, 4e-6, None, None, 96, 64)
AGAIN = OperatorRow("b", "aten::addmm", "backward", 1.0, 1e-6, 1e-6, None, None, None, 0)
COPY = OperatorRow("a", "aten::copy_", "forward", 1.0, 1e-6, 1e-6, None, None, None, 0)
FOUND = Operators("training", (ADDMM, COPY, AGAIN), 3, 8e-6)
EMPTY = Operators("inference", (), 3, 8e-6)


def operator_metrics(found: Operators) -> dict[str, Measurement]:
    """Every metric of the set, through the record as it is on disk."""
    return evaluate(select(metric_set("operators")), [record("operators", found)], None, 1)


def test_values_of_a_table_by_hand() -> None:
    found = operator_metrics(FOUND)
    assert list(found) == [name for name in builtin_metrics() if name.startswith("operators/")]
    assert found["operators/self_s"].value == pytest.approx(5e-6)
    assert found["operators/python_share"].value == pytest.approx(3 / 8)
    assert found["operators/self_s"].estimator == "mean of 3 traced steps"


def test_values_of_an_accelerator_are_those_of_its_kernels() -> None:
    """The host's seconds inside operators, with the profiler's cost, may be more than the step takes without it."""
    rows = tuple(replace(row, self_s=1.0, device_self_s=0.125, device_total_s=0.125) for row in FOUND.rows)
    kernels = (KernelRow("gemm", 2.0, 0.375, 0.75), KernelRow("Memcpy HtoD", 1.0, 0.125, 0.25))
    on_gpu = replace(FOUND, rows=rows, kernels=kernels, busy_s=0.25, untraced_step_s=0.5)
    found = operator_metrics(on_gpu)
    assert found["operators/self_s"].value == 0.5
    assert found["operators/self_s"].detail["kernels"] == "gemm (75%), Memcpy HtoD (25%)"
    busy = found["operators/busy_share"]
    assert (busy.value, busy.detail["idle"]) == (0.5, 0.5)
    assert [warning.code for warning in busy.warnings] == ["launch_bound"]
    assert "works in 50% of the step" in busy.warnings[0].text
    at_work = operator_metrics(replace(on_gpu, busy_s=0.35))
    assert (at_work["operators/busy_share"].value, at_work["operators/busy_share"].warnings) == (0.7, ())
    without_kernels = operator_metrics(replace(on_gpu, kernels=(), busy_s=None))
    assert without_kernels["operators/self_s"].value == 3 * 0.125
    assert "no times of kernels" in str(without_kernels["operators/busy_share"].reason)


def test_operators_of_two_threads_leave_no_negative_share() -> None:
    of_two = Operators("training", (ADDMM, COPY), 1, 1e-6)
    assert operator_metrics(of_two)["operators/python_share"].value == 0


def test_without_operators_there_are_reasons() -> None:
    for name in ("operators/self_s", "operators/python_share"):
        assert operator_metrics(EMPTY)[name].reason == "no operator of the framework ran in the step"


# The numbers of a table of layer times


SLOW = 9.0
"""Of a repeat for warming up."""


def call(path: str, forward: float, backward: float | None, call: int = 0) -> CallTime:
    """The same in four repeats, after a slow one; a parent would say nothing of what a call took itself."""
    kept = () if backward is None else (SLOW, *[backward] * 4)
    return CallTime(path, "Module", call, None, (SLOW, *[forward] * 4), kept, None if kept else "frozen")


TIMED = LayerTimes(
    "training",
    (
        call(OUTSIDE, 5.0, 6.0),
        call(ROOT, 1.0, 0.5),
        call("a", 2.0, None),
        call("b", 2.0, 1.5),
        call("b", 3.0, 1.0, call=1),
    ),
    warmup=1,
    forward=PhaseTimes((SLOW, 10.0, 13.0, 14.0, 10.0), (9 * SLOW, 11.0, 26.0, 14.0, 12.0)),
    backward=PhaseTimes((SLOW, 10.0, 9.0, 9.0, 9.0), (SLOW, 1.0, 1.0, 1.0, 1.0)),
)
ADDS_UP = replace(TIMED, forward=PhaseTimes((SLOW, *[13.0] * 4), (SLOW, *[14.0] * 4)))


def slowest_of(times: LayerTimes) -> Measurement:
    chosen = [one for one in metric_set("layers") if str(one).startswith("layers/")]
    (found,) = measured_now(select(chosen), {"layer_times": times}).values()
    assert found.name == "layers/slowest_self_s"
    return found


def test_the_slowest_layer_is_named_and_what_is_outside_is_none() -> None:
    slowest = slowest_of(TIMED)
    layers = "b 3.00 s (23%), b 2.00 s (15%), a 2.00 s (15%), __root__ 1.00 s (8%)"
    assert slowest.value == 3.0
    assert slowest.detail == {"layer": "b", "forward": 13.0, "n": 4, "slowest": layers}
    slow_a = replace(TIMED, calls=(*TIMED.calls[:2], call("a", 3.5, None), *TIMED.calls[3:]))
    assert slowest_of(slow_a).detail["layer"] == "a"
    assert slowest_of(ADDS_UP).warnings == ()


@pytest.mark.parametrize(
    ("times", "code", "text"),
    [
        pytest.param(
            *(replace(ADDS_UP, unmet=("min_samples=10",)), "few_repeats"),
            "4 repeats: protocol.max_s ended them before min_samples=10",
            id="too few repeats",
        ),
        pytest.param(
            *(TIMED, "layer_times_off"),
            "the times of the calls add up to 115% of the forward without probes",
            id="a forward of 11.5 s without probes, and layers of 13 s together",
        ),
        pytest.param(
            replace(ADDS_UP, backward=PhaseTimes((SLOW, *[20.0] * 4), (SLOW, *[21.0] * 4))),
            *("layer_times_off", "of the backward without probes"),
            id="a backward that does not add up",
        ),
    ],
)
def test_warnings_of_layer_times(times: LayerTimes, code: str, text: str) -> None:
    (warning,) = slowest_of(times).warnings
    assert warning.code == code
    assert text in warning.text
    assert code != "layer_times_off" or "protocol.min_samples" in warning.advice


# The set of metrics ``lines`` names a pass that has tables and no metric


@pytest.mark.parametrize(
    ("entries", "metrics", "passes"),
    [
        pytest.param(metric_set("lines"), ["latency/forward"], ["timing", "lines"], id="the set lines"),
        pytest.param(metric_set("layers"), None, ["analysis", "layer_times"], id="the set layers"),
        (["lines", "compute/macs", "layer_times"], ["compute/macs"], ["analysis", "layer_times", "lines"]),
    ],
)
def test_a_pass_is_named_beside_metrics(entries: list[Any], metrics: list[str] | None, passes: list[str]) -> None:
    assert passes_of(entries) == passes
    assert metrics is None or [entry.metric.info.name for entry in select(entries)] == metrics


@pytest.mark.parametrize("family", ["memory", "quality", "operators", "energy"])
def test_a_family_of_metrics_is_no_pass(family: str) -> None:
    assert named_passes([family]) == []
    with pytest.raises(UserError, match=f"{family}/"):
        select([family])
