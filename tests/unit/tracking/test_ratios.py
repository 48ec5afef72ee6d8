"""Ratios to the baseline and verdicts, as MLflow sorts and filters by them; the sweep's parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.samples import build, comparison, records
from sweeprof.results.compared_rows import Comparison, compare_rows, find_baselines
from sweeprof.results.measurement import Better, Measurement
from sweeprof.tracking.mlflow import MlflowTracker
from sweeprof.tracking.runs import Ratios

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

LATENCY = "latency/forward"
RATIO = "vs_baseline/latency"
SLOWER = 1.9
"""Of the sample, tensorflow over torch."""


def decided(baseline: Mapping[str, object] | None = None, threshold: float = 0.05) -> Comparison:
    """The sample with three rounds of every latency, compared with ``baseline`` (torch)."""
    whole = comparison(("lenet5", "mlp"))
    bases = find_baselines(baseline or whole.baseline, {row.combination_id: row.axes for row in whole.rows})
    measured: dict[str, dict[str, Measurement]] = {}
    for row in whole.rows:
        cells = {name: cell.measurement for name, cell in row.cells.items()}
        value = cells[LATENCY].value
        if value is not None:
            rounds = (value * 0.999, float(value), value * 1.001)
            cells[LATENCY] = dataclasses.replace(cells[LATENCY], rounds=rounds)
        measured[row.combination_id] = cells
    rows = [dataclasses.replace(row, baseline_id=bases[row.combination_id], cells={}) for row in whole.rows]
    compared = compare_rows(rows, measured, threshold)
    return dataclasses.replace(whole, rows=compared, threshold=threshold, baseline=dict(baseline or whole.baseline))


def send(output: Path, of: Comparison) -> None:
    MlflowTracker(None, output).close(of, records(of), output / of.sweep_id, "finished")


def named(client: MlflowClient, condition: str = "", order: str = "tags.`sweeprof.place`") -> list[str]:
    """Names of the runs of combinations for which a condition in MLflow's language holds."""
    return [run.info.run_name for run in found(client, condition, order)]


def found(client: MlflowClient, condition: str = "", order: str = "tags.`sweeprof.place`") -> list[Run]:
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment is not None
    whole = " and ".join(filter(None, ["tags.`sweeprof.kind` = 'combination'", condition]))
    return [*client.search_runs([experiment.experiment_id], whole, order_by=[order])]


def sweep_runs(client: MlflowClient) -> list[Run]:
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment is not None
    return [*client.search_runs([experiment.experiment_id], "tags.`sweeprof.kind` = 'sweep'")]


def test_every_ratio_is_the_quotient_of_two_logged_values(output: Path, client: MlflowClient) -> None:
    send(output, decided())
    by_axes = {
        tuple(run.data.params[axis] for axis in ("model", "backend", "batch_size")): run for run in found(client)
    }
    keys = {
        RATIO: "latency/forward_ms",
        "vs_baseline/memory_rss_peak": "memory/rss_peak_mib",
        "vs_baseline/quality_accuracy": "quality/accuracy",
    }
    compared = 0
    for (model, _, size), run in by_axes.items():
        base = by_axes[model, "torch", size]
        for ratio, key in keys.items():
            if key in run.data.metrics:
                quotient = run.data.metrics[key] / base.data.metrics[key]
                assert run.data.metrics[ratio] == pytest.approx(quotient, rel=1e-4)
                compared += 1
            else:
                assert ratio not in run.data.metrics
    assert compared == 10 * len(keys)


def test_mlflow_filters_and_sorts_by_ratio_and_verdict(output: Path, client: MlflowClient) -> None:
    send(output, decided({"backend": "tensorflow"}))
    faster = [run.info.run_name for run in found(client) if "/torch/" in run.info.run_name]
    without_baseline = {"lenet5/torch/b64", "mlp/torch/b1"}
    assert named(client, f"metrics.`{RATIO}` < 1") == [name for name in faster if name not in without_baseline]
    assert named(client, "tags.verdict = 'better'") == named(client, f"metrics.`{RATIO}` < 1")
    assert set(named(client, "tags.verdict = 'no_baseline'")) == without_baseline
    assert named(client, "tags.verdict = 'crashed'") == ["lenet5/tensorflow/b64"]
    assert named(client, "tags.verdict = 'unsupported'") == ["mlp/tensorflow/b1"]
    assert len(named(client, "tags.verdict = 'baseline'")) == 4
    assert len(named(client, "tags.`verdict.memory_rss_peak` = 'better'")) == 4
    values = [run.data.metrics[RATIO] for run in found(client, f"metrics.`{RATIO}` > 0", f"metrics.`{RATIO}` DESC")]
    assert values == [1.0] * 4 + [pytest.approx(1 / SLOWER, rel=1e-4)] * 4


def test_a_second_comparison_with_another_baseline_replaces_the_first(output: Path, client: MlflowClient) -> None:
    send(output, decided())
    before = {run.info.run_id for run in found(client)}
    send(output, decided({"backend": "tensorflow"}))
    runs = {run.info.run_name: run for run in found(client)}
    assert runs["mlp/torch/b8"].data.metrics[RATIO] == pytest.approx(1 / SLOWER, rel=1e-4)
    assert runs["mlp/torch/b8"].data.tags["verdict"] == "better"
    assert runs["mlp/tensorflow/b8"].data.metrics[RATIO] == 1.0
    assert runs["mlp/tensorflow/b8"].data.tags["verdict"] == "baseline"
    # Its baseline crashed: it has no ratio any more, and so another run, as MLflow removes no metric.
    assert RATIO not in runs["lenet5/torch/b64"].data.metrics
    assert len(before - {run.info.run_id for run in runs.values()}) == 2
    (parent,) = sweep_runs(client)
    assert parent.data.tags["answer"].startswith("torch is faster than tensorflow in all 4 cases")
    assert parent.data.tags["sweeprof.baseline"] == "tensorflow"
    send(output, decided())
    assert {run.data.tags["verdict"] for run in found(client)} == {"baseline", "worse", "crashed", "unsupported"}


def test_a_value_measured_again_changes_the_ratios_of_others(output: Path, client: MlflowClient) -> None:
    send(output, decided())
    whole = decided()
    measured = {row.combination_id: {n: c.measurement for n, c in row.cells.items()} for row in whole.rows}
    base = next(row for row in whole.rows if row.axes["model"] == "mlp" and row.axes["batch_size"] == 8)
    old = measured[base.combination_id][LATENCY]
    assert old.value is not None
    slow = dataclasses.replace(old, value=4 * old.value, rounds=tuple(4 * value for value in old.rounds))
    measured[base.combination_id][LATENCY] = slow
    bare = [dataclasses.replace(row, cells={}) for row in whole.rows]
    send(output, dataclasses.replace(whole, rows=compare_rows(bare, measured, 0.05)))
    (run,) = found(client, "attributes.run_name = 'mlp/tensorflow/b8'")
    assert run.data.metrics[RATIO] == pytest.approx(SLOWER / 4, rel=1e-4)
    assert run.data.tags["verdict"] == "better"


def test_the_sweep_has_its_axes_and_protocol_as_parameters(output: Path, client: MlflowClient) -> None:
    settings = {"mode": "inference", "protocol.rounds": 3, "backend.threads": 1}
    send(output, dataclasses.replace(decided(), settings=settings))
    (parent,) = sweep_runs(client)
    assert parent.data.params == {
        "model": "lenet5, mlp",
        "backend": "torch, tensorflow",
        "device": "cpu",
        "batch_size": "1, 8, 64",
        "mode": "inference",
        "protocol.rounds": "3",
    }


def test_another_plan_has_other_parameters_and_keeps_what_others_logged(output: Path, client: MlflowClient) -> None:
    whole = dataclasses.replace(decided(), settings={"protocol.rounds": 3, "seed.weights": 0})
    send(output, dataclasses.replace(whole, rows=whole.rows[:2]))
    (before,) = sweep_runs(client)
    client.set_tag(before.info.run_id, "baseline.nightly", "true")
    client.log_param(before.info.run_id, "ticket", "1234")
    client.log_metric(before.info.run_id, "mine", 7.0)
    changed = dataclasses.replace(whole, rows=whole.rows[:4], settings={"protocol.rounds": 3})
    for _ in range(2):
        send(output, changed)
        (after,) = sweep_runs(client)
    assert after.data.params["batch_size"] == "1, 8, 64"
    assert after.data.params["ticket"] == "1234"
    assert "seed.weights" not in after.data.params
    assert after.data.metrics["mine"] == 7.0
    assert after.data.metrics["combinations_total"] == 4
    assert after.data.tags["baseline.nightly"] == "true"
    assert {run.data.tags["mlflow.parentRunId"] for run in found(client)} == {after.info.run_id}
    assert (after.info.status, after.info.start_time) == ("FINISHED", before.info.start_time)


def test_the_step_of_training_and_of_inference_is_one_latency() -> None:
    points = [{"mode": mode, "backend": b} for mode in ("inference", "training") for b in ("torch", "jax")]
    infos: dict[str, tuple[str, Better]] = {"latency/iteration": ("s", "lower"), LATENCY: ("s", "lower")}
    values = [
        {LATENCY: 1.0},
        {LATENCY: 2.0},
        {LATENCY: 1.0, "latency/iteration": 4.0},
        {LATENCY: 2.0, "latency/iteration": 2.0},
    ]
    made = build(points, infos, values)
    bases = find_baselines({"backend": "torch"}, {row.combination_id: row.axes for row in made.rows})
    measured = {row.combination_id: {n: c.measurement for n, c in row.cells.items()} for row in made.rows}
    rows = [dataclasses.replace(row, baseline_id=bases[row.combination_id], cells={}) for row in made.rows]
    made = dataclasses.replace(made, rows=compare_rows(rows, measured, None), baseline={"backend": "torch"})
    ratios = [Ratios(made).metrics(row) for row in made.rows]
    forward = "vs_baseline/latency_forward"
    assert ratios == [{RATIO: 1.0}, {RATIO: 2.0}, {RATIO: 1.0, forward: 1.0}, {RATIO: 0.5, forward: 2.0}]


def test_without_a_baseline_there_is_no_ratio_and_the_verdict_is_the_reason() -> None:
    made = build([{"model": "a"}, {"model": "b"}], {LATENCY: ("s", "lower")}, [{LATENCY: 1.0}, {LATENCY: 2.0}])
    rows = tuple(dataclasses.replace(row, baseline_id=None) for row in made.rows)
    found = Ratios(dataclasses.replace(made, rows=rows))
    assert found.main_key(rows) == ""
    assert [(found.metrics(row), found.tags(row)) for row in rows] == [({}, {"verdict": "no_baseline"})] * 2


def test_a_sweep_in_which_every_row_is_a_baseline_compares_nothing() -> None:
    whole = decided()
    assert Ratios(whole).main_key(whole.rows) == RATIO
    baselines = tuple(row for row in whole.rows if row.is_baseline)
    assert baselines
    assert Ratios(whole).main_key(baselines) == ""
