"""Metrics: what a function may read, what it says of itself, which of them a config selects, and how certain a value is."""

from __future__ import annotations

import importlib
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeprof
from sweeprof.errors import Problem, UserError
from sweeprof.measuring.timing import Timing
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.evaluate import measured as measured_now
from sweeprof.metrics.metric import Estimate, Metric, Missing, Selected, builtin_metrics, declared, metric
from sweeprof.metrics.select import select
from sweeprof.passes.memory import Memory
from sweeprof.passes.quality import Quality
from sweeprof.results.differences import Cell
from sweeprof.results.environment import Peaks
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable, Liveness
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import PassName, Record
from sweeprof.results.statistics import rounds_interval
from sweeprof.results.verdicts import compare_cell

pytestmark = pytest.mark.usefixtures("declarations")
declare = metric(name="mine/x", unit="ratio", better="higher")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda *things: 0, r"metric 'mine/x' takes \*things: name each thing it reads \(layers, "),
        (lambda layers, **things: 0, r"metric 'mine/x' takes \*things: name each thing"),
        (lambda layers, weather: 0, r"reads 'weather', which nothing provides. Known: layers, .* needs a default"),
        (lambda batch_size, /: 0, "takes 'batch_size' by position"),  # a metric is called with names
    ],
)
def test_a_function_of_another_form_is_refused(function: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        declare(function)


@pytest.mark.parametrize("name", ["compute_macs", "compute.macs", "compute macs"])
def test_a_name_that_reads_like_that_of_another_metric_is_refused(name: str) -> None:
    """Or whatever reads ``compute_macs`` would be given this one."""
    message = rf"cannot be called '{name}': .* the metric 'compute/macs' would be compute_macs"
    with pytest.raises(ValueError, match=message):
        metric(name=name, unit="MAC", better="lower")(lambda layers: 0)
    assert declared()["compute_macs"] is builtin_metrics()["compute/macs"]


def test_two_metrics_of_ones_own_must_not_read_alike_either() -> None:
    def first(batch_size: int) -> int:
        return batch_size

    metric(name="mine/a_b", unit="", better=None)(first)
    with pytest.raises(ValueError, match="both it and the metric 'mine/a_b' would be mine_a_b"):
        metric(name="mine_a/b", unit="", better=None)(lambda batch_size: -batch_size)
    renamed = metric(name="mine_a/b", unit="", better=None)(first)  # as when a cell of a notebook is run again
    assert declared()["mine_a_b"] is renamed


@pytest.mark.parametrize("is_selected", [False, True])
def test_a_built_in_metric_keeps_its_readers_unless_another_is_selected(is_selected: bool) -> None:
    total = metric(name="params/total", unit="params", better="lower")(lambda batch_size: 7)
    found = declare(lambda params_total: params_total)
    selected = [Selected(found), *([Selected(total)] if is_selected else [])]
    values = {"layers": LayerTable(()), "weights": LayerTable(()), "batch_size": 1}
    assert measured_now(selected, values)["mine/x"].value == (7 if is_selected else 0)


@pytest.mark.parametrize("name", sorted(builtin_metrics()))
def test_every_built_in_metric_declares_itself(name: str) -> None:
    info = builtin_metrics()[name].info
    assert info.name == name
    assert info.definition.endswith(".")
    counts = {"params", "MAC", "FLOP", "op", "elements", "calls", "operators", "breaks"}
    rates = {"samples/s", "units/s", "tokens/s", "FLOP/s", "ratio", "abs", "kernels"}
    assert info.unit in {"s", "B", "J", "W", "bit", "nat"} | counts | rates
    assert info.better in ("lower", "higher", None)


# What is selected

MINE = '''
import sweeprof

@sweeprof.metric(name="mine/bits", unit="bits", better="lower")
def bits(layers, width: int = 32):
    """Bits."""
    return layers.params * width

@sweeprof.metric(name="params/total", unit="params", better="lower")
def total(layers):
    """Another total.

    Not the second line.
    """
    return 0

def plain(layers):
    return 0
'''
SOURCES = {
    "my_metrics_of_a_test": MINE,
    "broken_metrics_of_a_test": "1 / 0\n",
    "unregistered_metrics_of_a_test": (
        'import sweeprof\n@sweeprof.metric(name="a", unit="b", better=None)\ndef x(weather): ...\n'
    ),
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Modules of a user; the name of the one that is right."""
    for name, source in SOURCES.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return "my_metrics_of_a_test"


def problems(*entries: Any) -> tuple[Problem, ...]:
    with pytest.raises(UserError) as raised:
        select(entries)
    return raised.value.problems


def test_an_unknown_metric_names_the_nearest() -> None:
    (problem,) = problems("params/totl")
    assert (problem.key, problem.value, problem.nearest) == ("metrics.select", "params/totl", "params/total")
    message = str(problem)
    assert "is not a metric. Known: " in problem.allowed
    assert message.index("Did you mean 'params/total'?") < message.index("Known: ")
    assert len(message) < 300
    assert "params/trainable, " in message  # one of those most alike
    assert message.endswith(" more.")


def test_a_part_of_a_name_names_the_metrics_that_have_it() -> None:
    (part,) = problems("macs")
    assert (part.nearest, part.allowed) == ("compute/macs", "is not a metric. Known: compute/macs.")
    (family,) = problems("params")
    own = sorted(name for name in builtin_metrics() if name.startswith("params/"))
    assert len(own) > 3
    assert (family.nearest, family.allowed) == (None, f"is not a metric. Known: {', '.join(own)}.")


def test_all_problems_at_once(modules: str) -> None:
    twice = {"_target_": f"{modules}.total"}
    found = problems("params/totl", "params/total", twice, {"_target_": "nowhere.at_all"})
    assert [p.value for p in found] == ["params/totl", "params/total", "nowhere.at_all"]
    assert found[1].allowed == problems("params/total", "params/total")[0].allowed == "is selected twice."


def test_a_users_metric_with_its_options_may_replace_one_that_is_not_selected(modules: str) -> None:
    bits, total = select([{"_target_": f"{modules}.bits", "width": 8}, {"_target_": f"{modules}.total"}])
    assert (bits.metric.info.name, bits.options) == ("mine/bits", {"width": 8})
    assert total.metric.info.definition == "Another total."
    (problem,) = problems({"_target_": f"{modules}.bits", "widht": 8})
    assert (problem.key, problem.value, problem.nearest) == (f"metrics.select {modules}.bits", "widht", "width")
    assert problem.allowed == "is not an option. Known: width."


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        ("no_such_module.x", "cannot be imported: "),
        ("sweeprof.metrics.compute.absent", "cannot be imported: "),
        ("", "cannot be imported: "),
        ("my_metrics_of_a_test.plain", "is not decorated by @sweeprof.metric."),
        ("broken_metrics_of_a_test.x", "division by zero"),
        ("unregistered_metrics_of_a_test.x", "reads 'weather', which nothing provides"),
    ],
)
def test_a_target_that_is_no_metric(modules: str, target: str, allowed: str) -> None:
    (problem,) = problems({"_target_": target})
    assert problem.value == target
    assert allowed in problem.allowed


# How certain the value of a user's own metric is: it follows from what the metric reads


PAGE = Path(__file__).parents[3] / "docs" / "own-metrics.md"
SECONDS = (1.0, 1.02, 0.98, 1.01, 0.99)
"""Of the fastest sample of each round; the slowest takes twice as long."""


def record(pass_name: PassName, observations: Any, round: int = 0) -> Record:
    return Record("s", "c", pass_name, "ok", round=round, observations=observations)


def records(factor: float = 1.0, uncovered: Any = None) -> list[Record]:
    """Of a combination that takes ``factor`` as long, and has as many times the parameters, as another."""
    layers = LayerTable((LayerRow(ROOT, "Net", 0, 0, int(100 * factor), 0, 400, 0, 1000, flops=2000),), uncovered or {})
    quality = Quality(predictions=None, targets=None, outputs=np.zeros((2, 2), np.float32), seconds=3.0 * factor)
    timings = [Timing(4.0, 1, 1, (s * factor, 1.5 * s * factor, 2 * s * factor)) for s in SECONDS]
    return [
        record("analysis", layers.to_dict()),
        record("quality", quality.to_dict()),
        record("peaks", Peaks(1e9, 1e9, "float32", "cpu", 1).to_dict()),
        record("memory", asdict(Memory(100, 200, int(300 * factor), 5, 250))),
        *(record("timing", timing.to_dict(), number) for number, timing in enumerate(timings)),
    ]


def measured(metric: Metric, own: Sequence[Record], *others: Metric) -> Measurement:
    return evaluate([Selected(one) for one in (metric, *others)], own, None, 4)[metric.info.name]


def compared(metric: Metric) -> Cell:
    """Of a combination that takes twice as long as its baseline."""
    return compare_cell(measured(metric, records(2.0)), measured(metric, records()), 0.05)


def mine(function: Any) -> Metric:
    return sweeprof.metric(name="mine/x", unit="s", better="lower")(function)


def documented_metric() -> Metric:
    """The metric that docs/own-metrics.md shows, run as it stands there."""
    (code,) = re.findall(
        r"```python\n(from sweeprof import metric\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    namespace: dict[str, Any] = {"__name__": "my_package"}
    exec(code, namespace)
    found: Metric = namespace["worst"]
    return found


def test_the_documented_metric_gets_rounds_an_interval_and_a_verdict() -> None:
    found = measured(documented_metric(), records())
    slowest = tuple(2 * seconds for seconds in SECONDS)
    assert found.rounds == pytest.approx(slowest)
    assert found.round_numbers == (0, 1, 2, 3, 4)
    assert found.interval == pytest.approx(rounds_interval(slowest))
    assert found.value == pytest.approx(statistics.geometric_mean(slowest))
    assert found.estimator == "geometric mean of 5 rounds"
    cell = compared(documented_metric())
    assert (cell.verdict, cell.used) == ("worse", "rounds")
    assert cell.ratio == pytest.approx(2.0)
    assert cell.ratio_interval is not None


@pytest.mark.parametrize("rounds", [1, 2])
def test_too_few_rounds_decide_nothing(rounds: int) -> None:
    first = [[one for one in records(factor) if one.round < rounds] for factor in (2.0, 1.0)]
    own, base = (measured(documented_metric(), few) for few in first)
    assert compare_cell(own, base, 0.05).verdict_reason == "too_few_rounds"


def median_s(timing: Any) -> float:
    return statistics.fmean(round.median_s for round in timing)


def one_round(timing: Any) -> Any:
    (round,) = timing
    return round.median_s


READERS: dict[str, Any] = {
    "layers": lambda layers: layers.params,
    "timing": median_s,
    "another metric of times": lambda latency_forward, compute_macs: latency_forward / compute_macs,
    "memory": lambda memory: memory.rss_peak_bytes,
    "memory and timing": lambda memory, timing: median_s(timing) * memory.rss_peak_bytes,
    "outputs": lambda quality: float(quality.outputs.sum()) + 1,
    "seconds of an evaluation": lambda quality: quality.seconds,
    "all rounds": lambda timing: float(statistics.stdev(round.median_s for round in timing)),
    "one round": one_round,
}


@pytest.mark.parametrize(
    ("reads", "verdict", "reason", "rounds"),
    [
        ("layers", "worse", "unequal", 0),
        ("timing", "worse", "interval_beyond_threshold", 5),
        ("another metric of times", "worse", "interval_beyond_threshold", 5),
        ("memory", "unclear", "measured_once", 0),
        ("memory and timing", "unclear", "measured_once", 0),
        ("outputs", "same", "equal", 0),
        ("all rounds", "unclear", "not_by_round", 0),
        ("one round", "worse", "interval_beyond_threshold", 5),
    ],
)
def test_certainty_follows_from_what_is_read(reads: str, verdict: str, reason: str, rounds: int) -> None:
    cell = compared(mine(READERS[reads]))
    assert (cell.verdict, cell.verdict_reason, len(cell.measurement.rounds)) == (verdict, reason, rounds)
    assert cell.measurement.value is not None


@pytest.mark.parametrize("reads", ["seconds of an evaluation", "layers"])
def test_a_metric_that_says_so_is_measured_once(reads: str) -> None:
    cell = compared(sweeprof.metric(name="mine/x", unit="s", better="lower", once=True)(READERS[reads]))
    assert (cell.verdict, cell.verdict_reason) == ("unclear", "measured_once")


def test_a_metric_that_returns_its_own_estimate_is_called_once_with_all_rounds() -> None:
    calls: list[int] = []

    def function(timing: Any) -> Estimate:
        calls.append(len(timing))
        rounds = tuple(round.median_s for round in timing)
        return Estimate(max(rounds), "slowest round", (0.5, 2.0), rounds=rounds)

    found = measured(mine(function), records())
    assert calls == [5]
    assert (found.estimator, found.interval, len(found.rounds)) == ("slowest round", (0.5, 2.0), 5)


def test_an_estimate_needs_a_number_for_each_round() -> None:
    found = measured(mine(lambda timing: Estimate(1.0, "x", rounds=(1.0, 2.0), round_numbers=(0,))), records())
    assert found.reason == "the metric gave 2 rounds with 1 round numbers: there must be one number for each round"


def test_a_round_without_a_value_is_a_warning() -> None:
    def function(timing: Any) -> float | Missing:
        (round,) = timing
        return Missing("too slow") if round.round == 2 else round.median_s

    found = measured(mine(function), records())
    assert found.round_numbers == (0, 1, 3, 4)
    (warning,) = found.warnings
    assert warning.code == "round_without_value"
    assert warning.text == "mine/x has no value in round 2: too slow"


def test_values_that_are_not_positive_have_a_mean_but_no_tested_ratio() -> None:
    def function(timing: Any) -> float:
        return float(min(round.median_s for round in timing)) - 1.5

    found = measured(mine(function), records())
    assert found.estimator == "mean of 5 rounds"
    assert found.value == pytest.approx(0.0, abs=1e-12)
    assert found.interval is not None
    assert found.interval[0] < 0 < found.interval[1]
    assert compared(mine(function)).verdict_reason == "test_failed"


def test_what_is_computed_from_an_incomplete_count_is_not_exact() -> None:
    metric = mine(lambda compute_macs: compute_macs / 1e9)
    complete, incomplete = (measured(metric, records(uncovered=uncovered)) for uncovered in ({}, {"aten.mv": 1}))
    assert (complete.estimator, incomplete.estimator) == ("exact", "from incomplete counts")
    assert [warning.code for warning in incomplete.warnings] == ["count_incomplete"]
    for own, base in ((complete, incomplete), (incomplete, complete), (incomplete, incomplete)):
        cell = compare_cell(own, base, 0.05)
        assert (cell.verdict, cell.verdict_reason) == ("unclear", "incomplete_count")


def test_times_over_an_incomplete_count_have_no_rounds_to_compare() -> None:
    metric = mine(lambda timing, compute_macs: median_s(timing) / compute_macs)
    complete, incomplete = (measured(metric, records(uncovered=uncovered)) for uncovered in ({}, {"aten.mv": 1}))
    assert (complete.estimator, len(complete.rounds)) == ("geometric mean of 5 rounds", 5)
    assert (incomplete.estimator, incomplete.rounds, incomplete.interval) == ("from incomplete counts", (), None)
    assert compare_cell(incomplete, incomplete, 0.05).verdict_reason == "incomplete_count"


def test_what_is_computed_from_an_estimate_is_an_estimate() -> None:
    table = LayerTable((LayerRow(ROOT, "Net", 0, 0, 100, 0, 400, 0, 1000),), liveness=Liveness(200, ROOT, 0))
    found = measured(
        mine(lambda memory_footprint_est_bytes: memory_footprint_est_bytes / 2), [record("analysis", table.to_dict())]
    )
    assert (found.value, found.estimator) == (300, "estimated")


@pytest.mark.parametrize(("reads", "verdict"), [("layers", "same"), ("timing", "unclear")])
def test_a_profiler_claims_no_more_than_a_sweep(reads: str, verdict: str) -> None:
    from torch import nn

    quick = sweeprof.Protocol(warmup_steps=1, warmup_s=0, sample_s=0, min_samples=3, min_s=0)
    metric, model = mine(READERS[reads]), nn.Linear(4, 2)
    profilers = []
    for _ in range(2):
        profilers.append(sweeprof.Profiler(model, data={"test": [np.zeros((3, 4), np.float32)]}, protocol=quick))
        profilers[-1].register(metric)
        profilers[-1].compute("mine/x")
    (difference,) = sweeprof.compare(profilers[0], profilers[1])
    assert (difference.verdict, difference.reason is None) == (verdict, verdict == "same")
