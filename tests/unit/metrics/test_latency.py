"""The time of a step and of its phases, from timings whose every figure can be told by heart."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest

from sweeprof.measuring.inputs import Workload
from sweeprof.measuring.timing import InterleavedRun, Timing
from sweeprof.metrics import latency
from sweeprof.metrics.latency import over_rounds
from sweeprof.metrics.metric import Estimate, Metric, Missing, builtin_metrics
from sweeprof.metrics.select import metric_set, select
from sweeprof.passes.quality import Quality
from sweeprof.results.record import Warning

FORWARD, BACKWARD, UPDATE = (1.0, 3.0, 2.0), (4.0, 6.0, 5.0), (0.5, 0.25, 0.25)
WHOLE = tuple(map(sum, zip(FORWARD, BACKWARD, UPDATE, strict=True)))
WORK = Workload("tokens", 24)
TRAINED = Timing(
    100.0,
    3,
    1,
    WHOLE,
    phases={"forward": FORWARD, "backward": BACKWARD, "update": UPDATE},
    compiles=True,
    workload=WORK,
)
INFERRED = Timing(4.0, 3, 1, (0.5, 0.25, 0.75), workload=WORK)
MOVED = Timing(4.0, 3, 1, (0.5, 0.25, 0.75), transfers={"h2d": (0.125, 0.0625, 0.125), "d2h": (2.0, 1.0, 1.0)})


def value(metric: Metric, *timings: Timing, **further: Any) -> Estimate | Missing:
    found: Estimate | Missing = metric({"timing": timings, **further})
    return found


def number(metric: Metric, *timings: Timing, **further: Any) -> float:
    found = value(metric, *timings, **further)
    assert isinstance(found, Estimate), found
    return found.value


def test_of_a_forward_alone() -> None:
    assert number(latency.forward, INFERRED) == pytest.approx(0.5)
    assert number(latency.per_sample, INFERRED, batch_size=4) == pytest.approx(0.125)
    assert number(latency.first_step, INFERRED) == pytest.approx(4.0)
    assert number(latency.throughput, INFERRED, batch_size=4) == pytest.approx(8.0)
    for metric in (latency.backward, latency.update, latency.iteration):
        assert value(metric, INFERRED) == latency.NOT_TRAINED


def test_of_a_training_step() -> None:
    assert number(latency.forward, TRAINED) == pytest.approx(2.0)
    assert number(latency.per_sample, TRAINED, batch_size=4) == pytest.approx(0.5)
    assert number(latency.backward, TRAINED) == pytest.approx(5.0)
    assert number(latency.update, TRAINED) == pytest.approx(0.25)
    assert number(latency.iteration, TRAINED) == statistics.median(WHOLE) == pytest.approx(7.25)
    assert number(latency.throughput, TRAINED, batch_size=4) == pytest.approx(4 / 7.25)


def test_compiling_is_the_first_step_beyond_a_later_one() -> None:
    assert number(latency.compile, TRAINED) == pytest.approx(100.0 - 7.25)
    assert value(latency.compile, INFERRED) == Missing("this backend does not compile")
    quick = Timing(0.5, 3, 1, (1.0,), compiles=True)
    assert value(latency.compile, quick) == Missing("a first step took no longer than later ones")


def test_tracing_is_no_part_of_compiling() -> None:
    traced = Timing(4.0, 3, 1, (0.5,), compiles=True, trace_s=1.5)
    assert number(latency.trace, traced) == pytest.approx(1.5)
    assert number(latency.compile, traced) == pytest.approx(4.0 - 1.5 - 0.5)
    assert number(latency.first_step, traced) == pytest.approx(4.0)
    for timing in (INFERRED, Timing.from_dict({**INFERRED.to_dict(), "trace_s": None})):
        assert value(latency.trace, timing) == Missing("this backend does not trace a step apart from running it")
    assert value(latency.trace, traced, INFERRED) == value(latency.trace, INFERRED)


def test_a_phase_that_could_not_be_told() -> None:
    told = Timing(1.0, 3, 1, (3.0,), phases={"forward": (1.0,), "backward": (2.0,)}, compiles=True)
    assert number(latency.backward, told) == pytest.approx(2.0)
    assert number(latency.iteration, told) == pytest.approx(3.0)
    for timings in ((told,), (TRAINED, told)):
        found = value(latency.update, *timings)
        assert found == Missing("the step is one program, and what its update adds is less than its time varies")


def test_transfers() -> None:
    assert number(latency.h2d, MOVED) == pytest.approx(0.125)
    assert number(latency.d2h, MOVED) == pytest.approx(1.0)
    assert number(latency.total, MOVED) == pytest.approx(0.125 + 0.5 + 1.0)
    for metric in (latency.h2d, latency.d2h, latency.total):
        assert value(metric, INFERRED) == Missing("the model runs on the host: nothing is transferred")
        found = value(metric, TRAINED)
        assert isinstance(found, Missing)
        assert found.reason.startswith("mode=training")


def test_evaluating() -> None:
    quality = Quality.of(np.eye(2, dtype=np.float32), None)
    assert isinstance(latency.evaluate({"quality": quality}), Missing)


def test_rounds_are_averaged_geometrically_and_kept() -> None:
    timings = [Timing(1.0, 0, 1, (seconds,) * 3, round=round) for round, seconds in ((0, 1.0), (2, 4.0))]
    found = value(latency.forward, *timings)
    assert isinstance(found, Estimate)
    assert found.value == pytest.approx(2.0)
    assert (found.rounds, found.round_numbers) == ((1.0, 4.0), (0, 2))
    assert found.estimator == "geometric mean of 2 rounds"
    assert found.interval is not None
    assert found.interval[0] < 2.0 < found.interval[1]


def test_warnings_come_along() -> None:
    warned = Timing(1.0, 0, 1, (1.0,), warnings=(Warning("drift", "text", "advice"),))
    found = value(latency.iteration, warned)
    assert isinstance(found, Missing)
    found = value(latency.forward, warned)
    assert isinstance(found, Estimate)
    assert [warning.code for warning in found.warnings] == ["drift"]


def test_the_detail_is_that_of_the_samples() -> None:
    samples = tuple(float(i) for i in range(1, 41))
    found = over_rounds((Timing(1.0, 0, 1, samples),), lambda seconds: seconds)
    detail = found.detail
    assert (detail["n"], detail["mean"], detail["min"], detail["max"]) == (40, 20.5, 1.0, 40.0)
    assert detail["std"] == pytest.approx(np.std(samples, ddof=1))
    assert detail["p90"] == pytest.approx(np.percentile(samples, 90))


@pytest.mark.parametrize(("metric", "percentile"), [(latency.p90, 90), (latency.p95, 95), (latency.p99, 99)])
def test_percentiles_are_those_of_single_steps(metric: Metric, percentile: int) -> None:
    """Of a training step they are those of the whole step; over rounds the geometric mean, as of medians."""
    random = np.random.default_rng(0)
    rounds = [Timing(1.0, 3, 1, tuple(random.lognormal(size=300)), round=number) for number in range(3)]
    expected = [float(np.percentile(round.samples, percentile)) for round in rounds]
    found = value(metric, *rounds)
    assert isinstance(found, Estimate)
    assert found.value == pytest.approx(statistics.geometric_mean(expected))
    assert found.rounds == pytest.approx(expected)
    trained = Timing(1.0, 3, 1, rounds[0].samples, phases={"forward": (1.0,) * 300})
    assert number(metric, trained) == pytest.approx(expected[0])


def test_samples_of_several_steps_have_no_percentile_of_a_step() -> None:
    averaged = Timing(1.0, 3, 56, (1.0,) * 300)
    reason = "a sample is the mean of 56 steps; protocol.sample_s=0 times every step by itself"
    assert value(latency.p99, averaged) == Missing(reason)
    few = Timing(1.0, 3, 1, (1.0,) * 298)
    assert value(latency.p99, few) == Missing("n<299: a round has 298 samples; raise protocol.min_samples")
    assert number(latency.p95, few) == 1


def test_the_detail_says_how_many_steps_a_sample_averages() -> None:
    samples = (1.0, 2.0, 3.0)
    moved = Timing(1.0, 3, 56, samples, transfers={"h2d": samples, "d2h": samples})
    for metric, further in ((latency.forward, {}), (latency.throughput, {"batch_size": 2})):
        found = value(metric, moved, **further)
        assert isinstance(found, Estimate)
        assert found.detail["steps per sample"] == 56
        alone = value(metric, INFERRED, **further)
        assert isinstance(alone, Estimate)
        assert "steps per sample" not in alone.detail
    transfer = value(latency.h2d, moved)
    assert isinstance(transfer, Estimate)
    assert "steps per sample" not in transfer.detail


@pytest.mark.parametrize(("n", "shown"), [(28, []), (29, ["p90"]), (59, ["p90", "p95"]), (299, ["p90", "p95", "p99"])])
def test_a_percentile_needs_its_samples(n: int, shown: list[str]) -> None:
    detail = over_rounds((Timing(1.0, 0, 1, (1.0,) * n),), lambda seconds: seconds).detail
    assert [name for name in ("p90", "p95", "p99") if isinstance(detail[name], float)] == shown
    assert {detail[name] for name in ("p90", "p95", "p99") if name not in shown} <= {"n<29", "n<59", "n<299"}


def test_one_sample_has_no_deviation() -> None:
    assert over_rounds((Timing(1.0, 0, 1, (1.0,)),), lambda seconds: seconds).detail["std"] == "n<2"


def test_the_mean_of_a_rate_is_all_the_work_over_all_the_time() -> None:
    """pytorch-benchmark averaged the rates of single batches, which is more."""
    found = value(latency.throughput, Timing(1.0, 0, 1, (1.0, 3.0)), batch_size=1)
    assert isinstance(found, Estimate)
    assert found.detail["mean"] == 2 / (1.0 + 3.0)


def test_the_set_of_times_has_a_value_for_every_model() -> None:
    names = [s.metric.info.name for s in select(metric_set("latency"))]
    for name in names:
        metric = builtin_metrics()[name]
        for timing in (INFERRED, TRAINED):
            assert isinstance(metric({"timing": (timing,), "batch_size": 1}), Estimate), name


def interleaved(
    samples: tuple[float, ...], turns: tuple[int, ...], baseline: Timing | None = None, **more: Any
) -> Timing:
    return Timing(1.0, 0, 1, samples, interleaved_run=InterleavedRun("d", ("cx",), turns), baseline=baseline, **more)


def test_an_interleaved_run_gives_the_median_of_the_pairs_times_the_baselines_median() -> None:
    """Pairs are of one turn, whatever else was taken; the ratio of the medians (0.5) is another one."""
    base = interleaved((2.0, 4.0, 8.0), (0, 1, 2))
    own = interleaved((3.0, 2.0, 8.0, 1.0), (0, 1, 2, 3), base)  # 3/2, 2/4, 8/8
    found = value(latency.forward, own)
    assert isinstance(found, Estimate)
    assert found.paired == (4.0 * 1.0,)
    assert found.rounds == (2.5,)
    rate = value(latency.throughput, own, batch_size=8)
    assert isinstance(rate, Estimate)
    assert rate.paired == (8 / 4.0,)


def test_pairs_of_a_phase_are_the_phases() -> None:
    base = interleaved((9.0, 9.0), (0, 1), phases={"forward": (4.0, 8.0)})
    own = interleaved((9.0, 9.0), (0, 1), base, phases={"forward": (1.0, 2.0)})
    found = value(latency.forward, own)
    assert isinstance(found, Estimate)
    assert found.paired == (6.0 * 0.25,)


def test_a_round_without_a_pair_keeps_its_own_median() -> None:
    base = interleaved((2.0,), (0,))
    found = value(
        latency.forward, interleaved((3.0,), (0,), base), interleaved((5.0,), (1,), base), interleaved((7.0,), (0,))
    )
    assert isinstance(found, Estimate)
    assert found.paired == (3.0, 5.0, 7.0)
    alone = value(latency.forward, interleaved((7.0,), (0,)))
    assert isinstance(alone, Estimate)
    assert alone.paired == ()
