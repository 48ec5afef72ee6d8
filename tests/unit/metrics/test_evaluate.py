"""Every metric's value from records written by hand, and a reason wherever there is none."""

from __future__ import annotations

import inspect
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

import sweeprof
from support.planning import fake_config
from support.plans import fake_plan, sweep_folder
from sweeprof.datasets import ArraySpec, Auto, ModelInputs, Split
from sweeprof.datasets.collate import Pad
from sweeprof.errors import DatasetError, Unsupported, UserError
from sweeprof.measuring.inputs import Inputs, Workload, workload_of
from sweeprof.measuring.timing import InterleavedRun, Timing
from sweeprof.metrics import latency
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.evaluate import measured as evaluate_now
from sweeprof.metrics.metric import Estimate, Missing, Selected, builtin_metrics, metric
from sweeprof.metrics.select import metric_set, named_passes, passes_of, select
from sweeprof.passes.memory import Memory
from sweeprof.passes.quality import Quality
from sweeprof.plan.plan import ComparisonSettings
from sweeprof.profiling.profiler import Profiler
from sweeprof.report.columns import shown_metrics
from sweeprof.report.csv import csv_text
from sweeprof.report.explore import page_data
from sweeprof.report.terminal import text as terminal_text
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.layer_times import OUTSIDE, ROOT, CallTime, LayerTimes, PhaseTimes
from sweeprof.results.layers import LayerRow, LayerTable, Liveness, Training
from sweeprof.results.measurement import Measurement
from sweeprof.results.observations import Allocations, KernelRow, OperatorRow, Operators, TensorRow
from sweeprof.results.record import PassName, Record, Status, Warning
from sweeprof.run.comparison import comparison_of
from sweeprof.tracking.runs import tracked_keys

NOTHING: dict[str, Any] = {"flops": 0, "ops": 0, "act_bytes": 0, "input_bytes": 8, "output_bytes": 8}
LAYERS = LayerTable(
    (
        LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 0, **NOTHING),
        LayerRow(
            "a", "Linear", 1, 0, 100, 90, 400, 0, 3000, flops=6100, ops=5900, act_bytes=64, input_bytes=16, output_bytes=64
        ),
        LayerRow(
            "b", "Linear", 1, 0, 20, 20, 40, 7, 1000,
            flops=2000, ops=1900, act_bytes=24, input_bytes=64, output_bytes=24, buffers_bytes=28,
        ),
    ),
    operator_calls=4,
    liveness=Liveness(80, "b", 16),
)  # fmt: skip
TRAINING = Training(4000, 8200, 7000, 14_000, Liveness(300, "a", 16))
SAMPLES = (0.5, 0.25, 0.75, 0.5, 0.375, 0.625, 0.5)
TIMING = Timing(4.0, 3, 1, SAMPLES, workload=Workload("tokens", 24))
MEMORY = Memory(100, 200, 300, 5, 250, 180)
QUALITY = replace(Quality.of(np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0])), seconds=16.0)
BATCH = 4


def record(pass_name: PassName, seen: Any, round: int = 0, status: Status = "ok", reason: str | None = None) -> Record:
    data = None if seen is None else seen.to_dict() if hasattr(seen, "to_dict") else asdict(seen)
    return Record("s", "c", pass_name, status, reason, round, observations=data)


ALL = (
    record("analysis", LAYERS),
    record("training", TRAINING),
    record("timing", TIMING),
    record("memory", MEMORY),
    record("quality", QUALITY),
)


def evaluated(
    name: str, records: Sequence[Record] = ALL, baseline: Sequence[Record] | None = ALL, batch: int = BATCH
) -> Measurement:
    (found,) = evaluate(select([name]), records, baseline, batch).values()
    assert (found.value is None) == (found.reason is not None)
    return found


VALUES = [
    ("params/total", 120, "params"),
    ("params/buffers", 7, "params"),
    ("size/params_bits", 3520, "bit"),
    ("size/buffers_bytes", 28, "B"),
    ("compute/flops", 8100, "FLOP"),
    ("compute/flops_per_sample", 2025, "FLOP"),
    ("compute/ops", 7800, "op"),
    ("compute/coverage", 1.0, "ratio"),
    ("compute/macs_backward", 7000, "MAC"),
    ("compute/flops_backward", 14_000, "FLOP"),
    ("compute/macs_train", 11_000, "MAC"),
    ("compute/flops_train", 22_200, "FLOP"),
    ("memory/act_sum_bytes", 88, "B"),
    ("memory/act_peak_layer_bytes", 88, "B"),
    ("memory/act_peak_live_bytes", 80, "B"),
    ("memory/footprint_est_bytes", 440 + 28 + 80, "B"),
    ("memory/act_peak_live_bytes_train", 300, "B"),
    ("memory/footprint_est_bytes_train", 440 + 28 + 300, "B"),
    ("params/trainable", 110, "params"),
    ("params/frozen", 10, "params"),
    ("params/pruned", 0, "params"),
    ("size/params_bytes", 440, "B"),
    ("compute/macs", 4000, "MAC"),
    ("compute/macs_per_sample", 1000, "MAC"),
    ("throughput/samples_per_s", 8.0, "samples/s"),
    ("throughput/units_per_s", 48.0, "tokens/s"),
    ("memory/added_bytes", 180, "B"),
    ("memory/process_peak_bytes", 300, "B"),
    ("memory/rss_peak_bytes", 300, "B"),
    ("memory/rss_step_bytes", 50, "B"),
]


@pytest.mark.parametrize(("name", "value", "unit"), VALUES)
def test_values(name: str, value: float, unit: str) -> None:
    found = evaluated(name)
    assert found.value == pytest.approx(value, rel=1e-15)
    assert isinstance(found.value, type(value)), "counts are whole numbers"
    assert (found.unit, found.reason) == (unit, None)


def test_the_values_test_is_complete() -> None:
    """Every metric of the passes here but those of families that have tests of its own."""
    passes = {r.pass_name for r in ALL}
    apart = ("command/", "compat/", "generation/", "latency/", "quality/", "rate/")
    wanted = {n for n, m in builtin_metrics().items() if m.passes <= passes and not n.startswith(apart)}
    assert {name for name, _, _ in VALUES} == wanted


def test_macs_that_the_batch_does_not_divide_and_what_memory_grew_from() -> None:
    assert evaluated("compute/macs_per_sample", batch=3).value == 4000 / 3
    assert evaluated("compute/macs").estimator == "exact"
    assert evaluated("memory/rss_peak_bytes").detail == {"baseline": 100, "loaded": 200}


@pytest.mark.parametrize(
    ("name", "pass_name"),
    [
        ("params/total", "analysis"),
        ("latency/forward", "timing"),
        ("memory/rss_peak_bytes", "memory"),
        ("quality/accuracy", "quality"),
    ],
)
def test_a_pass_that_was_not_run_or_failed_is_a_reason(name: str, pass_name: PassName) -> None:
    others = [r for r in ALL if r.pass_name != pass_name]
    broken = record(pass_name, None, 0, "oom", "MemoryError: no luck")
    assert evaluated(name, others).reason == f"{pass_name}: not run"
    assert evaluated(name, [broken, *others]).reason == f"{pass_name}: oom: MemoryError: no luck"


def test_a_pass_that_failed_leaves_what_it_had_before() -> None:
    """Parameters need no forward."""
    failed = (record("analysis", LAYERS, status="failed", reason="KeyError: 'mine'"), *ALL[1:])
    assert evaluated("params/total", failed).value == 120
    assert evaluated("size/params_bytes", failed).value == 440
    for name in ("compute/macs", "memory/act_sum_bytes", "compat/torchinfo"):
        assert evaluated(name, failed).reason == "analysis: failed: KeyError: 'mine'"


def one(function: Any, **options: Any) -> Measurement:
    made = metric(name="mine", unit="u", better=None)(function)
    return evaluate([Selected(made, options)], ALL, ALL, BATCH)["mine"]


def test_a_metric_that_raises_is_a_reason() -> None:
    line = inspect.currentframe().f_lineno + 3  # type: ignore[union-attr]

    def function(layers: Any) -> float:
        raise KeyError("no luck")

    found = one(function)
    assert found.failure is not None
    assert found.failure.location == f"{Path(__file__).relative_to(Path.cwd())}:{line} in function"
    assert found.reason == f"the metric raised KeyError: 'no luck' ({found.failure.location})"
    assert "raise KeyError" in str(found.failure.traceback)
    metric(name="mine/first", unit="u", better=None)(function)
    reader = one(lambda mine_first: 1)
    assert reader.failure is not None
    assert "KeyError" in reader.failure.message
    assert str(reader.reason).startswith("mine/first: the metric raised KeyError")


def exits(layers: Any) -> float:
    raise SystemExit(0)


def unsupported(layers: Any) -> float:
    raise Unsupported("needs a GPU")


def test_a_metric_that_exits_fails_by_itself() -> None:
    ended = one(exits).failure
    assert ended is not None
    assert "SystemExit" in ended.message


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (unsupported, "needs a GPU"),
        (lambda layers: Missing("too cold"), "too cold"),
        (lambda layers: math.nan, "the metric gave nan, which is not a finite number"),
        (lambda layers: torch.tensor(-math.inf), "the metric gave -inf, which is not a finite number"),
    ],
)
def test_what_a_metric_says_it_cannot_compute_is_no_failure(function: Any, reason: str) -> None:
    found = one(function)
    assert (found.value, found.reason, found.failure) == (None, reason, None)


def test_a_batch_of_no_samples_has_no_count_per_sample() -> None:
    found = sweeprof.profile(torch.nn.Linear(4, 2), (0, 4), ["compute/macs", "compute/macs_per_sample"])
    assert found["compute/macs"].value == 0
    assert found["compute/macs_per_sample"].reason == "the batch has no samples"


@pytest.mark.parametrize("value", [None, "much", [1.0], 1j, torch.ones(2), torch.ones((), device="meta")])
def test_what_is_not_even_a_number_is_a_reason(value: object) -> None:
    """A user's metric must not take the comparison with it."""

    def returned(layers: Any) -> object:
        return value

    found = one(returned)
    assert found.value is None
    assert found.reason
    assert found.failure is not None
    assert str(found.failure.location).endswith(".returned")


@pytest.mark.parametrize("value", [np.float64(1.5), np.float32(1.5), np.int64(3), torch.tensor(3), torch.tensor(2.0)])
def test_a_number_of_a_framework_becomes_plain_data(value: Any) -> None:
    for returned in (value, Estimate(value, "mean")):
        found = one(lambda layers, returned=returned: returned).value
        assert type(found) is type(value.item())
        assert found == value


def test_an_estimate_is_taken_over_whole() -> None:
    warning = Warning("code", "text", "advice")
    found = one(lambda layers: Estimate(2.0, "guess", (1.0, 3.0), {"n": 1}, (2.0,), (warning,)))
    assert found == Measurement("mine", "u", None, 2.0, None, "guess", (1.0, 3.0), {"n": 1}, (2.0,), (warning,))


def rounds_of(*medians: float, failed: Sequence[int] = ()) -> list[Record]:
    return [
        record("timing", None, i, "crashed", "x") if i in failed else record("timing", Timing(1.0, 0, 1, (m,) * 7), i)
        for i, m in enumerate(medians)
    ]


def test_one_round_is_a_median_with_a_distribution_free_interval() -> None:
    found = evaluated("latency/forward")
    assert found.estimator == "median"
    assert found.interval == (0.25, 0.75)
    assert found.rounds == (0.5,)
    assert found.detail["n"] == 7
    assert (found.detail["min"], found.detail["max"]) == (0.25, 0.75)
    assert found.detail["spread"] == pytest.approx((0.5625 - 0.4375) / 0.5)


def test_several_rounds_are_a_geometric_mean_with_a_t_interval() -> None:
    medians = (0.5, 0.6, 0.55, 0.52, 0.58)
    found = evaluated("latency/forward", rounds_of(*medians))
    expected = scipy_stats.ttest_1samp(np.log(medians), 0).confidence_interval(0.95)
    assert found.value == pytest.approx(statistics.geometric_mean(medians))
    assert found.interval == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert (found.rounds, found.estimator) == (medians, "geometric mean of 5 rounds")
    assert found.detail["n"] == 35


def test_rounds_are_in_their_order_whatever_the_records_and_a_failed_one_leaves_the_others() -> None:
    assert evaluated("latency/forward", rounds_of(0.5, 0.6, 0.7)[::-1]).rounds == (0.5, 0.6, 0.7)
    assert evaluated("latency/forward", rounds_of(0.5, 0.6, 0.7, failed=[1])).rounds == (0.5, 0.7)
    assert evaluated("latency/forward", rounds_of(0.5, 0.6, failed=[0, 1])).reason == "timing: crashed: x"


def test_throughput_inverts_medians_and_bounds() -> None:
    latency = evaluated("latency/forward", rounds_of(0.5, 0.6, 0.55))
    found = evaluated("throughput/samples_per_s", rounds_of(0.5, 0.6, 0.55))
    assert latency.interval is not None
    assert latency.value is not None
    assert found.value == pytest.approx(BATCH / latency.value)
    assert found.interval == pytest.approx((BATCH / latency.interval[1], BATCH / latency.interval[0]))
    assert found.rounds == pytest.approx(tuple(BATCH / s for s in latency.rounds))


def quality(outputs: Any, targets: Any = (0, 1, 2, 0)) -> list[Record]:
    return [record("quality", Quality.of(np.asarray(outputs), None if targets is None else np.asarray(targets)))]


def test_agreement_is_the_largest_difference() -> None:
    other = np.eye(4)
    other[2, 1] -= 0.5
    other[0, 3] += 0.25
    assert evaluated("quality/agreement", quality(other)).value == 0.5


@pytest.mark.parametrize(
    ("records", "baseline", "reason"),
    [
        (quality(np.zeros((4, 3))), ALL, "outputs cannot be compared: their shape is (4, 3), the baseline's (4, 4)"),
        (quality(np.full((4, 4), math.nan)), ALL, "outputs are not finite"),
        (ALL, None, "the sweep has no baseline for this combination"),
        (ALL, [record("quality", None, 0, "crashed", "x")], "of the baseline, quality: crashed: x"),
        (ALL, [], "of the baseline, quality: not run"),
    ],
)
def test_there_may_be_no_agreement(records: Sequence[Record], baseline: Sequence[Record] | None, reason: str) -> None:
    assert evaluated("quality/agreement", records, baseline).reason == reason


def test_an_operator_without_a_formula_is_a_warning() -> None:
    table = LayerTable(LAYERS.rows, {"aten.mv": 2, "While": 1})
    for name in ("compute/macs", "compute/macs_per_sample"):
        found = evaluated(name, [record("analysis", table)])
        assert found.estimator == "lower bound"
        (warning,) = found.warnings
        assert (warning.code, warning.text) == ("count_incomplete", "no formula for While ×1, aten.mv ×2")
    assert evaluated("params/total", [record("analysis", table)]).warnings == ()


def interleaved(combination_id: str, run: str, seconds: float, round: int = 0) -> Record:
    timing = Timing(1.0, 0, 1, (seconds,) * 3, interleaved_run=InterleavedRun(run, (), (0, 1, 2)))
    return replace(record("timing", timing, round), combination_id=combination_id)


def test_pairs_are_formed_with_the_baselines_timing_of_the_same_interleaved_run() -> None:
    """Whatever round that was: after an interruption the second interleaved run of a round is another one."""
    base = [interleaved("a", "d0", 1.0), interleaved("a", "d1", 2.0, 1), interleaved("a", "another", 4.0, 2)]
    own = [interleaved("b", "d0", 0.5), interleaved("b", "d1", 3.0, 1), interleaved("b", "d2", 8.0, 2)]
    found = evaluated("latency/forward", own, base)
    assert found.rounds == found.paired == (0.5, 3.0, 8.0)
    assert evaluated("latency/forward", base, base).paired == ()
    assert evaluated("latency/forward", own, None).paired == ()
    assert evaluated("latency/forward", own, [record("timing", TIMING)]).paired == ()
    assert evaluated("latency/first_step", own, base).paired == ()


# Memory


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


def measured(name: str, allocations: Allocations = INFERENCE, memory: Memory = MEMORY) -> Measurement:
    return evaluated(name, [record("memory", memory), record("allocations", allocations)])


@pytest.mark.parametrize(
    ("name", "value", "detail"),
    [
        ("memory/alloc_peak_bytes", 1200, {"layer": "b.conv", "steps": 3}),
        ("memory/allocated_per_step_bytes", 5000, None),
        ("memory/tensors_bytes", 31, {"parameter": 20, "input": 8, "other": 3}),
    ],
)
def test_values_of_memory(name: str, value: float, detail: dict[str, Any] | None) -> None:
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
    (found,) = evaluate_now(select(chosen), {"layer_times": times}).values()
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


def test_warnings_of_layer_times() -> None:
    """Layers of 13 s together are 115% of a forward of 11.5 s without probes."""
    (few,) = slowest_of(replace(ADDS_UP, unmet=("min_samples=10",))).warnings
    assert few.code == "few_repeats"
    assert "4 repeats: protocol.max_s ended them before min_samples=10" in few.text
    (off,) = slowest_of(TIMED).warnings
    assert off.code == "layer_times_off"
    assert "the times of the calls add up to 115% of the forward without probes" in off.text
    assert "protocol.min_samples" in off.advice


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


# Throughput in the workload's own unit: every number is counted by hand


def of(inputs: Any, collate: Any = None, **attributes: Any) -> Any:
    """A dataset of these samples."""
    return SimpleNamespace(split=lambda name: Split(inputs, None, collate=collate), **attributes)


TEXTS = [{"input_ids": np.array(ids)} for ids in ([5, 6, 7], [8], [9, 4])]
IMAGES = np.zeros((2, 3, 16, 16), np.float32)


def counted(dataset: Any, size: int) -> Workload:
    split = dataset.split("test")
    batch, _ = split.batch(np.arange(size) % len(split))
    return workload_of(dataset, Inputs.from_batch(batch, split.pass_as), size)


def test_padding_is_no_work() -> None:
    """Of texts of three, one and two tokens, and of audio of 100 and 50 values, 200 a second."""
    texts, fixed = of(TEXTS, Pad(), unit="tokens"), of(TEXTS, Pad(length=8), unit="tokens", units_per_sample=8)
    assert counted(texts, 1) == Workload("tokens", 3)
    assert counted(texts, 3) == Workload("tokens", 3 + 1 + 2)  # of a batch of 3 x 3
    assert counted(texts, 4) == Workload("tokens", 3 + 1 + 2 + 3)  # begins again
    assert counted(fixed, 3) == Workload("tokens", 3 + 1 + 2)  # of a batch of 3 x 8
    values = [np.ones(100, np.float32), np.ones(50, np.float32)]
    clips = of(values, Pad(), unit="seconds of audio", units_in=lambda inputs: np.count_nonzero(inputs) / 200)
    assert counted(clips, 2) == Workload("seconds of audio", 100 / 200 + 50 / 200)  # of a batch of 2 x 100


def test_fixed_sizes() -> None:
    assert counted(of(IMAGES, unit="pixels", units_per_sample=16 * 16), 2) == Workload("pixels", 512)
    described = ModelInputs({"x": ArraySpec((3, 8, 8))}, "positional", unit="images")
    assert counted(Auto(described.to_dict()), 5) == Workload("images", 5)
    ids = ArraySpec((12,), "int64", high=9)
    masked = {"input_ids": ids, "attention_mask": ArraySpec((12,), "int64", low=1), "decoder_input_ids": ids}
    both = ModelInputs(
        masked, unit="tokens", units_per_sample=24
    )  # of the encoder, and of the decoder, which has no mask
    assert counted(Auto(both.to_dict()), 2) == Workload("tokens", 48)
    assert counted(of(IMAGES), 2) == Workload("samples", 2)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"unit": 3}, "unit 3 must be a noun in the plural of up to 40 characters, such as 'tokens'"),
        ({"units_per_sample": 2}, "unit None must be a noun"),
        ({"unit": "frames"}, "unit 'frames' needs a number of units in a batch: units_per_sample, a method units_in"),
        ({"unit": "frames", "units_per_sample": 0}, "units_per_sample is 0, which is not a number above 0"),
        ({"unit": "frames", "units_per_sample": "2"}, "units_per_sample is '2', which is not"),
        ({"unit": "frames", "units_in": 3}, r"units_in 3 is not a method units_in\(inputs\)"),
        ({"unit": "frames", "units_in": lambda inputs: float("nan")}, r"units_in\(inputs\) returned nan"),
    ],
)
def test_attributes_of_another_form(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=f"dataset .*SimpleNamespace: {message}"):
        counted(of(IMAGES, **attributes), 2)


def test_a_batch_of_padding_alone() -> None:
    with pytest.raises(DatasetError, match="the number of tokens by the attention_mask is 0"):
        workload_of(SimpleNamespace(unit="tokens"), Inputs(kwargs={"attention_mask": np.zeros((2, 3))}), 2)


def estimate(timing: Timing) -> Estimate:
    found = latency.units_per_s({"timing": (timing,)})
    return cast("Estimate", found)


def test_the_metric_is_work_over_the_time_of_a_step() -> None:
    timing = Timing(1.0, 0, 1, (0.25, 0.5, 1.0), workload=Workload("tokens", 6))
    assert (estimate(timing).value, estimate(timing).unit) == (12.0, "tokens/s")
    trained = Timing(1.0, 0, 1, (2.0,), phases={"forward": (0.5,)}, workload=Workload("tokens", 6))
    assert estimate(trained).value == pytest.approx(3.0)  # of the whole step
    earlier = latency.units_per_s({"timing": (Timing(1.0, 0, 1, (1.0,)),)})
    assert "it is not known how much work a step does" in earlier.reason


def test_a_profiler_of_a_config_counts_the_batch() -> None:
    config = fake_config("dataset=auto", "batch_size=3", "protocol=quick", "metrics=latency")
    config["dataset"]["inputs"] = ModelInputs(
        {"x": ArraySpec((2, 3))}, "positional", unit="frames", units_per_sample=2
    ).to_dict()
    timing = Profiler.from_config(config).run("timing")
    assert isinstance(timing, Timing)
    assert timing.workload == Workload("frames", 6)


METRICS = ("latency/forward", "throughput/samples_per_s", "throughput/units_per_s")


def compared(
    path: Path, work: dict[str, tuple[float, Workload | None]], metrics: tuple[str, ...] = METRICS, **fields: Any
) -> Comparison:
    plan = fake_plan({name: {} for name in work}, ["timing"], metrics=metrics)
    folder = sweep_folder(path, replace(plan, **fields))
    for name, (seconds, workload) in work.items():
        timing = Timing(1.0, 0, 1, (seconds,), workload=workload).to_dict()
        Record("s1", f"c{name}", "timing", "ok", observations=timing).write(folder.records)
    return comparison_of(folder)


def value(comparison: Comparison, row: int, metric: str) -> Measurement:
    return comparison.rows[row].cells[metric].measurement


def test_each_unit_is_a_metric(tmp_path: Path) -> None:
    tokens, images = Workload("tokens", 6), Workload("images", 1)
    found = compared(tmp_path, {"bert": (0.5, tokens), "gpt": (0.25, tokens), "vit": (0.125, images)})
    names = ["latency/forward", "throughput/samples_per_s", "throughput/tokens_per_s", "throughput/images_per_s"]
    assert [info.name for info in found.metrics] == names
    assert [info.unit for info in found.metrics][2:] == ["tokens/s", "images/s"]
    assert [value(found, row, names[2]).value for row in range(2)] == pytest.approx([12.0, 24.0])
    assert value(found, 2, names[2]).reason == "the work of this combination is counted in images"
    assert [value(found, row, names[3]).value for row in range(2)] == [None, None]
    assert value(found, 2, names[3]).value == pytest.approx(8.0)
    cells = [row.cells for row in found.rows]
    assert cells[1][names[2]].ratio == pytest.approx(2.0)
    assert cells[2][names[2]].ratio is cells[2][names[3]].ratio is None  # nothing is compared across units
    assert csv_text(found).splitlines()[0].split(",")[-4:] == names
    assert tracked_keys(found)[names[2]] == "throughput/tokens_per_s"


def test_tables_show_the_unit(tmp_path: Path) -> None:
    found = compared(tmp_path / "a", {"bert": (0.5, Workload("tokens", 6000)), "gpt": (0.25, Workload("tokens", 6000))})
    text = terminal_text(found, 140)
    assert "throughput (tokens/s)" in text
    assert "12.0 k/s" in text
    assert [m["unit"] for m in page_data(found)["metrics"]][-1] == "tokens/s"
    same = compared(tmp_path / "b", {"vit": (0.5, Workload("images", 1)), "resnet": (0.25, Workload("images", 1))})
    assert [info.name for info in shown_metrics(same)][1:] == ["throughput/images_per_s"]  # the same numbers once


def test_samples_are_shown_as_before(tmp_path: Path) -> None:
    samples = Workload("samples", 1)
    found = compared(tmp_path / "a", {"a": (0.5, samples), "b": (0.25, samples)})
    assert [info.name for info in found.metrics] == list(METRICS[:2])
    alone = compared(tmp_path / "b", {"a": (0.5, samples)}, METRICS[2:])
    assert [info.name for info in alone.metrics] == ["throughput/samples_per_s"]
    assert value(alone, 0, "throughput/samples_per_s").value == 2.0
    unknown = compared(tmp_path / "c", {"a": (0.5, None)}, METRICS[2:])
    assert "it is not known how much work a step does" in (value(unknown, 0, "throughput/units_per_s").reason or "")


def test_a_constraint_may_name_a_unit_that_no_combination_has(tmp_path: Path) -> None:
    compare = ComparisonSettings(constraints=["tokens_per_s > 10", "throughput/images_per_s > 1"])
    found = compared(tmp_path, {"a": (0.5, Workload("tokens", 6)), "b": (1.0, Workload("tokens", 6))}, compare=compare)
    assert [info.name for info in found.metrics][2:] == ["throughput/tokens_per_s", "throughput/images_per_s"]
    assert [len(row.misses) for row in found.rows] == [1, 2]
    assert "counted in tokens" in found.rows[0].misses[0]
