"""Ratios to the baseline and verdicts, as MLflow sorts and filters by them; the sweep's parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from support.samples import build, comparison, records
from support.store import Store
from sweeprof.results.compared_rows import Comparison, compare_rows, find_baselines
from sweeprof.results.measurement import Better, Number
from sweeprof.tracking.runs import Ratios

if TYPE_CHECKING:
    from mlflow.entities import Run

LATENCY = "latency/forward"
RATIO = "vs_baseline/latency"
SLOWER = 1.9
"""Of the sample, tensorflow over torch."""


def compared(
    whole: Comparison,
    baseline: Mapping[str, object],
    threshold: float | None = 0.05,
    times: Mapping[str, float] | None = None,
) -> Comparison:
    """Compared with ``baseline`` anew, in three rounds of every latency, which some combinations take ``times`` as long."""
    measured = {row.combination_id: {name: cell.measurement for name, cell in row.cells.items()} for row in whole.rows}
    for id, cells in measured.items():
        if LATENCY in cells and (value := cells[LATENCY].value) is not None:
            value *= (times or {}).get(id, 1.0)
            rounds = (value * 0.999, value, value * 1.001)
            cells[LATENCY] = dataclasses.replace(cells[LATENCY], value=value, rounds=rounds)
    bases = find_baselines(baseline, {row.combination_id: row.axes for row in whole.rows})
    rows = [dataclasses.replace(row, baseline_id=bases[row.combination_id], cells={}) for row in whole.rows]
    made = compare_rows(rows, measured, threshold)
    return dataclasses.replace(whole, rows=made, threshold=threshold, baseline=dict(baseline))


def decided(backend: str = "torch", times: Mapping[str, float] | None = None) -> Comparison:
    """The sample, compared with a backend."""
    return compared(comparison(("lenet5", "mlp")), {"backend": backend}, times=times)


def send(store: Store, of: Comparison) -> None:
    """Send a sweep that has left no files, which takes less time."""
    store.tracker().close(of, records(of), store.folder(of), "finished")


def by_name(store: Store, condition: str = "", order: str = "tags.`sweeprof.place`") -> dict[str, Run]:
    """The runs of combinations for which a condition in MLflow's language holds."""
    return {run.info.run_name: run for run in store.search("combination", condition, order)}


def test_every_ratio_is_the_quotient_of_two_logged_values(store: Store) -> None:
    send(store, decided())
    keys = {
        RATIO: "latency/forward_ms",
        "vs_baseline/memory_rss_peak": "memory/rss_peak_mib",
        "vs_baseline/quality_accuracy": "quality/accuracy",
    }
    runs, quotients = by_name(store), 0
    for name, run in runs.items():
        base = runs[name.replace("/tensorflow/", "/torch/")]
        for ratio, key in keys.items():
            assert (ratio in run.data.metrics) == (key in run.data.metrics)
            if key in run.data.metrics:
                quotient = run.data.metrics[key] / base.data.metrics[key]
                assert run.data.metrics[ratio] == pytest.approx(quotient, rel=1e-4)
                quotients += 1
    assert quotients == 10 * len(keys)


def test_mlflow_filters_and_sorts_by_ratio_and_verdict(store: Store) -> None:
    send(store, decided("tensorflow"))
    without_baseline = {"lenet5/torch/b64", "mlp/torch/b1"}
    faster = [name for name in by_name(store) if "/torch/" in name and name not in without_baseline]
    assert list(by_name(store, f"metrics.`{RATIO}` < 1")) == faster
    assert list(by_name(store, "tags.verdict = 'better'")) == faster
    assert set(by_name(store, "tags.verdict = 'no_baseline'")) == without_baseline
    assert list(by_name(store, "tags.verdict = 'crashed'")) == ["lenet5/tensorflow/b64"]
    assert list(by_name(store, "tags.verdict = 'unsupported'")) == ["mlp/tensorflow/b1"]
    assert len(by_name(store, "tags.verdict = 'baseline'")) == 4
    assert len(by_name(store, "tags.`verdict.memory_rss_peak` = 'better'")) == 4
    slowest_first = by_name(store, f"metrics.`{RATIO}` > 0", f"metrics.`{RATIO}` DESC").values()
    ratios = [run.data.metrics[RATIO] for run in slowest_first]
    assert ratios == [1.0] * 4 + [pytest.approx(1 / SLOWER, rel=1e-4)] * 4


def test_a_value_measured_again_changes_the_ratios_of_others(store: Store) -> None:
    send(store, decided())
    (base,) = (row for row in decided().rows if (*row.axes.values(),) == ("mlp", "torch", "cpu", 8))
    send(store, decided(times={base.combination_id: 4.0}))
    run = by_name(store)["mlp/tensorflow/b8"]
    assert run.data.metrics[RATIO] == pytest.approx(SLOWER / 4, rel=1e-4)
    assert run.data.tags["verdict"] == "better"


def test_the_sweep_has_its_axes_and_protocol_as_parameters(store: Store) -> None:
    settings = {"mode": "inference", "protocol.rounds": 3, "backend.threads": 1}
    send(store, dataclasses.replace(decided(), settings=settings))
    assert store.sweep().data.params == {
        "model": "lenet5, mlp",
        "backend": "torch, tensorflow",
        "device": "cpu",
        "batch_size": "1, 8, 64",
        "mode": "inference",
        "protocol.rounds": "3",
    }


def test_another_plan_has_other_parameters_and_keeps_what_others_logged(store: Store) -> None:
    whole = dataclasses.replace(decided(), settings={"protocol.rounds": 3, "seed.weights": 0})
    send(store, dataclasses.replace(whole, rows=whole.rows[:2]))
    before = store.sweep()
    store.client.set_tag(before.info.run_id, "baseline.nightly", "true")
    store.client.log_param(before.info.run_id, "ticket", "1234")
    store.client.log_metric(before.info.run_id, "mine", 7.0)
    for _ in range(2):
        send(store, dataclasses.replace(whole, rows=whole.rows[:4], settings={"protocol.rounds": 3}))
        after = store.sweep()
    assert (after.data.params["batch_size"], after.data.params["ticket"]) == ("1, 8, 64", "1234")
    assert "seed.weights" not in after.data.params
    assert (after.data.metrics["mine"], after.data.metrics["combinations_total"]) == (7.0, 4)
    assert after.data.tags["baseline.nightly"] == "true"
    assert {run.data.tags["mlflow.parentRunId"] for run in by_name(store).values()} == {after.info.run_id}
    assert (after.info.status, after.info.start_time) == ("FINISHED", before.info.start_time)


def made(points: list[dict[str, Any]], values: list[dict[str, Number]]) -> Comparison:
    infos: dict[str, tuple[str, Better]] = {"latency/iteration": ("s", "lower"), LATENCY: ("s", "lower")}
    return build(points, infos, values)


def test_the_step_of_training_and_of_inference_is_one_latency() -> None:
    points = [{"mode": mode, "backend": b} for mode in ("inference", "training") for b in ("torch", "jax")]
    trained: list[dict[str, Number]] = [
        {LATENCY: 1.0, "latency/iteration": 4.0},
        {LATENCY: 2.0, "latency/iteration": 2.0},
    ]
    of = compared(made(points, [{LATENCY: 1.0}, {LATENCY: 2.0}, *trained]), {"backend": "torch"}, None)
    ratios = [Ratios(of).metrics(row) for row in of.rows]
    forward = "vs_baseline/latency_forward"
    assert ratios == [{RATIO: 1.0}, {RATIO: 2.0}, {RATIO: 1.0, forward: 1.0}, {RATIO: 0.5, forward: 2.0}]


def test_without_a_baseline_there_is_no_ratio_and_the_verdict_is_the_reason() -> None:
    of = made([{"model": "a"}, {"model": "b"}], [{LATENCY: 1.0}, {LATENCY: 2.0}])
    rows = tuple(dataclasses.replace(row, baseline_id=None) for row in of.rows)
    found = Ratios(dataclasses.replace(of, rows=rows))
    assert found.main_key(rows) == ""
    assert [(found.metrics(row), found.tags(row)) for row in rows] == [({}, {"verdict": "no_baseline"})] * 2


def test_a_sweep_in_which_every_row_is_a_baseline_compares_nothing() -> None:
    whole = decided()
    assert Ratios(whole).main_key(whole.rows) == RATIO
    baselines = tuple(row for row in whole.rows if row.is_baseline)
    assert baselines
    assert Ratios(whole).main_key(baselines) == ""
