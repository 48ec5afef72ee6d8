"""Every metric's value from records written by hand, and a reason wherever there is none."""

from __future__ import annotations

import inspect
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

import sweeprof
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Workload
from sweeprof.measuring.timing import InterleavedRun, Timing
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.metric import Estimate, Missing, Selected, builtin_metrics, metric
from sweeprof.metrics.select import select
from sweeprof.passes.memory import Memory
from sweeprof.passes.quality import Quality
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable, Liveness, Training
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import PassName, Record, Status, Warning

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
    assert found.value is None or math.isfinite(found.value)
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
    assert (found.unit, found.reason) == (unit, None)


def test_the_values_test_is_complete() -> None:
    """Every metric of the passes here but those of families that have tests of its own."""
    passes = {r.pass_name for r in ALL}
    apart = ("command/", "compat/", "generation/", "latency/", "quality/", "rate/")
    wanted = {n for n, m in builtin_metrics().items() if m.passes <= passes and not n.startswith(apart)}
    assert {name for name, _, _ in VALUES} == wanted


@pytest.mark.parametrize("name", ["params/total", "compute/macs", "compute/macs_per_sample", "memory/rss_peak_bytes"])
def test_counts_stay_whole_numbers(name: str) -> None:
    assert isinstance(evaluated(name).value, int)


def test_macs_that_the_batch_does_not_divide_and_what_memory_grew_from() -> None:
    assert evaluated("compute/macs_per_sample", batch=3).value == 4000 / 3
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


def test_one_failed_pass_leaves_the_other_numbers() -> None:
    broken = [r if r.pass_name != "timing" else record("timing", None, 0, "crashed", "x") for r in ALL]
    values = evaluate(select(list(builtin_metrics())), broken, ALL, BATCH)
    missing = {name for name, m in values.items() if m.value is None and not name.startswith("compat/")}
    there = {r.pass_name for r in ALL} - {"timing"}
    apart = {n for n, m in builtin_metrics().items() if not n.startswith("compat/") and m.passes - there}
    of_other_targets = {f"quality/{name}" for name in ("miou", "mse", "mae", "r2")}
    assert missing == apart | of_other_targets


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


def nothing(layers: Any) -> None:
    """Has no return statement."""


def exits(layers: Any) -> float:
    raise SystemExit(0)


def unsupported(layers: Any) -> float:
    raise Unsupported("needs a GPU")


def test_a_metric_that_exits_or_returns_no_number_fails_by_itself() -> None:
    without, ended = one(nothing).failure, one(exits).failure
    assert without is not None
    assert str(without.location).endswith("in nothing")
    assert ended is not None
    assert "SystemExit" in ended.message


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (unsupported, "needs a GPU"),
        (lambda layers: Missing("too cold"), "too cold"),
        (lambda layers: math.nan, "the metric gave nan, which is not a finite number"),
        (lambda layers: math.inf, "the metric gave inf, which is not a finite number"),
        (lambda layers: -math.inf, "the metric gave -inf, which is not a finite number"),
    ],
)
def test_what_a_metric_says_it_cannot_compute_is_no_failure(function: Any, reason: str) -> None:
    found = one(function)
    assert (found.value, found.reason, found.failure) == (None, reason, None)


def test_a_batch_of_no_samples_has_no_count_per_sample() -> None:
    found = sweeprof.profile(torch.nn.Linear(4, 2), (0, 4), ["compute/macs", "compute/macs_per_sample"])
    assert found["compute/macs"].value == 0
    assert found["compute/macs_per_sample"].reason == "the batch has no samples"


@pytest.mark.parametrize("value", [None, "much", [1.0], 1j])
def test_what_is_not_even_a_number_is_a_reason(value: object) -> None:
    """A user's metric must not take the comparison with it."""
    found = one(lambda layers: value)
    assert found.value is None
    assert found.reason


@pytest.mark.parametrize("value", [np.float64(1.5), np.float32(1.5), np.int64(3)])
def test_a_numpy_number_becomes_plain_data(value: Any) -> None:
    import json

    found = one(lambda layers: value)
    assert json.loads(json.dumps(found.value)) == value


def test_options_are_passed() -> None:
    assert one(lambda batch_size, factor=1: batch_size * factor, factor=10).value == 40


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


def test_the_first_step_has_one_value_per_round() -> None:
    found = evaluated(
        "latency/first_step", [record("timing", Timing(s, 0, 1, SAMPLES), i) for i, s in enumerate((2.0, 8.0))]
    )
    assert found.value == pytest.approx(4.0)
    assert found.rounds == (2.0, 8.0)
    assert evaluated("latency/first_step").estimator == "single"


@pytest.mark.parametrize(("n", "supported"), [(7, ()), (28, ()), (29, (90,)), (59, (90, 95)), (299, (90, 95, 99))])
def test_percentiles_need_their_samples(n: int, supported: tuple[int, ...]) -> None:
    samples = tuple(float(i) for i in range(n, 0, -1))
    detail = evaluated("latency/forward", [record("timing", Timing(1.0, 0, 1, samples))]).detail
    for percentile, needed in ((90, 29), (95, 59), (99, 299)):
        expected = np.percentile(samples, percentile) if percentile in supported else f"n<{needed}"
        assert detail[f"p{percentile}"] == (pytest.approx(expected) if percentile in supported else expected)


@pytest.mark.parametrize("name", ["latency/per_sample", "throughput/samples_per_s"])
def test_details_are_in_the_metrics_own_unit(name: str) -> None:
    detail = evaluated(name).detail
    values = [s / BATCH if name == "latency/per_sample" else BATCH / s for s in SAMPLES]
    assert (detail["min"], detail["max"]) == (min(values), max(values))


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
        (quality(np.full((4, 4), math.inf)), ALL, "outputs are not finite"),
        (ALL, None, "the sweep has no baseline for this combination"),
        (ALL, [record("quality", None, 0, "crashed", "x")], "of the baseline, quality: crashed: x"),
        (ALL, [], "of the baseline, quality: not run"),
    ],
)
def test_there_may_be_no_agreement(records: Sequence[Record], baseline: Sequence[Record] | None, reason: str) -> None:
    assert evaluated("quality/agreement", records, baseline).reason == reason


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (quality(np.eye(4), None), "the dataset has no labels"),
        (quality(np.zeros((4, 3, 2))), "the outputs are not one row of class scores per sample"),
    ],
)
def test_there_may_be_no_accuracy(records: Sequence[Record], reason: str) -> None:
    assert evaluated("quality/accuracy", records).reason == reason


def test_an_operator_without_a_formula_is_a_warning() -> None:
    table = LayerTable(LAYERS.rows, {"aten.mv": 2, "While": 1})
    for name in ("compute/macs", "compute/macs_per_sample"):
        found = evaluated(name, [record("analysis", table)])
        assert found.estimator == "lower bound"
        (warning,) = found.warnings
        assert (warning.code, warning.text) == ("count_incomplete", "no formula for While ×1, aten.mv ×2")
    assert evaluated("params/total", [record("analysis", table)]).warnings == ()


def test_a_complete_count_is_exact() -> None:
    found = evaluated("compute/macs")
    assert (found.estimator, found.warnings) == ("exact", ())


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
