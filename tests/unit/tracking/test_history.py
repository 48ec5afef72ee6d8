"""The history of combinations in a real MLflow."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.samples import comparison, records
from sweeprof.results.compared_rows import Cell, Comparison
from sweeprof.tracking.history import history_name, step_of
from sweeprof.tracking.mlflow import MlflowTracker
from sweeprof.tracking.runs import milliseconds, sweep_info

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

FIRST = "c000000000000"
KEY = "latency/forward_ms"


def night(day: int, latency: float = 0.001, **changes: Any) -> Comparison:
    """The sweep of a day: two combinations, the first of them with the given latency, the second crashed."""
    whole = comparison()
    first, crashed = whole.rows[0], whole.rows[5]
    measured = dataclasses.replace(first.cells["latency/forward"].measurement, value=latency)
    first = dataclasses.replace(first, cells={**first.cells, "latency/forward": Cell(measured)})
    fields: dict[str, Any] = {
        "sweep_id": f"s{day}",
        "created": f"2026-11-{day:02}T00:30:00+00:00",
        "rows": (first, crashed),
    }
    return dataclasses.replace(whole, **{**fields, **changes})


def send(output: Path, of: Comparison, history: bool = True) -> None:
    tracker = MlflowTracker(None, output, history)
    tracker.open(sweep_info(of))
    tracker.close(of, records(of), output / of.sweep_id, "finished")


def histories(client: MlflowClient) -> dict[str, Run]:
    experiment = client.get_experiment_by_name("quickstart history")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], max_results=1000)
    by_id = {run.data.tags["sweeprof.combination_id"]: run for run in found}
    assert len(by_id) == len(found), "a combination has two histories"
    return by_id


def line(client: MlflowClient, run: Run) -> list[tuple[int, float]]:
    """Day and value of each point, in the order of steps."""
    start = milliseconds("2026-11-01T00:30:00+00:00")
    points = sorted(
        (point.step, point.timestamp, point.value) for point in client.get_metric_history(run.info.run_id, KEY)
    )
    assert all(time == step // 1_000_000 * 1000 for step, time, _ in points)
    return [(1 + (time - start) // 86_400_000, value) for _, time, value in points]


def test_every_measured_combination_has_a_line_over_the_nights(output: Path, client: MlflowClient) -> None:
    for day, latency in ((20, 0.001), (21, 0.002)):
        send(output, night(day, latency))
    (run,) = histories(client).values()
    assert run.data.tags["sweeprof.combination_id"] == FIRST
    assert (run.info.run_name, run.info.status) == ("lenet5/torch/cpu/b1", "FINISHED")
    assert run.data.params == {"model": "lenet5", "backend": "torch", "device": "cpu", "batch_size": "1"}
    assert line(client, run) == [(20, 1.0), (21, 2.0)]
    assert run.data.metrics[KEY] == 2.0
    assert set(run.data.metrics) == {KEY, "throughput/samples_per_s", "quality/accuracy"}
    assert "[quickstart 2026-11-21 00:30](#/experiments/" in run.data.tags["mlflow.note.content"]
    experiment = client.get_experiment_by_name("quickstart history")
    assert experiment is not None
    assert "mlflow.sharedViewState.sweeprof-history-trend" in experiment.tags


def test_sending_again_adds_nothing(output: Path, client: MlflowClient) -> None:
    for _ in range(2):
        send(output, night(20))
    before = histories(client)[FIRST].to_dictionary()
    send(output, night(20))
    assert histories(client)[FIRST].to_dictionary() == before
    assert line(client, histories(client)[FIRST]) == [(20, 1.0)]


def test_an_older_sweep_that_comes_later_has_its_place(output: Path, client: MlflowClient) -> None:
    for day, latency in ((20, 0.001), (22, 0.003), (21, 0.002)):
        send(output, night(day, latency))
    run = histories(client)[FIRST]
    assert line(client, run) == [(20, 1.0), (21, 2.0), (22, 3.0)]
    assert run.data.metrics[KEY] == 3.0
    assert "2026-11-22" in run.data.tags["mlflow.note.content"]


@pytest.mark.parametrize("day", [20, 21])
def test_a_resumed_sweep_changes_its_own_point(output: Path, client: MlflowClient, day: int) -> None:
    for number in (20, 21):
        send(output, night(number))
    send(output, night(day, 0.007))
    run = histories(client)[FIRST]
    assert line(client, run) == [(n, 7.0 if n == day else 1.0) for n in (20, 21)]
    assert "2026-11-21" in run.data.tags["mlflow.note.content"]
    assert run.info.status == "FINISHED"


def test_a_point_whose_combination_failed_after_all_is_gone(output: Path, client: MlflowClient) -> None:
    for number in (20, 21):
        send(output, night(number))
    failed = night(21)
    send(
        output,
        dataclasses.replace(failed, rows=(dataclasses.replace(failed.rows[0], status="failed", reason="no luck"),)),
    )
    assert line(client, histories(client)[FIRST]) == [(20, 1.0)]


def test_two_beginnings_of_one_history_become_one(output: Path, client: MlflowClient) -> None:
    send(output, night(20))
    first = histories(client)[FIRST]
    # What another sweep leaves that looked at the same moment, and one that was killed after making its run.
    for metric in ({KEY: 2.0}, {}):
        twin = client.create_run(first.info.experiment_id, first.info.start_time + 5, {**first.data.tags})
        for key, value in metric.items():
            at = milliseconds(night(21).created)
            client.log_metric(twin.info.run_id, key, value, at, step_of(night(21).created, "s21"))
    send(output, night(22, 0.003))
    run = histories(client)[FIRST]
    assert run.info.run_id == first.info.run_id
    assert line(client, run) == [(20, 1.0), (21, 2.0), (22, 3.0)]


def test_sweeps_of_one_second_have_a_point_each(output: Path, client: MlflowClient) -> None:
    for of in (night(20), night(20, 0.002, sweep_id="t20"), night(20)):
        send(output, of)
    assert sorted(line(client, histories(client)[FIRST])) == [(20, 1.0), (20, 2.0)]


@pytest.mark.parametrize("replaced", [True, False])
def test_what_another_sweep_adds_before_a_run_is_deleted_is_kept(
    output: Path, client: MlflowClient, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    from mlflow.tracking import MlflowClient

    send(output, night(20))
    old = histories(client)[FIRST]
    if not replaced:
        old = client.create_run(old.info.experiment_id, old.info.start_time + 5, {**old.data.tags})
    delete = MlflowClient.delete_run

    def add_first(self: MlflowClient, id: str) -> None:
        if id == old.info.run_id:
            self.log_metric(id, KEY, 9.0, milliseconds(night(19).created), step_of(night(19).created, "s19"))
        delete(self, id)

    monkeypatch.setattr(MlflowClient, "delete_run", add_first)
    send(output, night(20, 0.005) if replaced else night(20))
    assert line(client, histories(client)[FIRST]) == [(19, 9.0), (20, 5.0 if replaced else 1.0)]


def test_a_history_that_another_sweep_begins_at_the_same_moment_ends_as_one_run(
    output: Path, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    create, twins = MlflowClient.create_run, []

    def repeated(self: MlflowClient, *words: Any, **named: Any) -> Run:
        made = create(self, *words, **named)
        if words[2].get("sweeprof.kind") == "history":
            twins.append(create(self, *words, **named))
        return made

    monkeypatch.setattr(MlflowClient, "create_run", repeated)
    send(output, night(20))
    assert len(twins) == 1
    run = histories(client)[FIRST]
    assert (run.info.status, run.data.params["model"]) == ("FINISHED", "lenet5")
    assert line(client, run) == [(20, 1.0)]


def test_a_history_that_was_begun_and_not_written_is_resumed(output: Path, client: MlflowClient) -> None:
    send(output, night(20, rows=night(20).rows[1:]))
    experiment = client.get_experiment_by_name("quickstart history")
    assert experiment is not None
    tags = {"sweeprof.kind": "history", "sweeprof.combination_id": FIRST}
    begun = client.create_run(experiment.experiment_id, 5, tags)
    send(output, night(20))
    run = histories(client)[FIRST]
    assert (run.info.run_id, run.info.status) == (begun.info.run_id, "FINISHED")
    assert run.data.params["model"] == "lenet5"
    assert line(client, run) == [(20, 1.0)]


def test_a_run_that_another_sweep_replaced_meanwhile_is_looked_for_again(
    output: Path, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweeprof.tracking import history

    send(output, night(20))
    stale = history._known(client, histories(client)[FIRST].info.experiment_id)
    send(output, night(20, 0.005))  # which replaces the run
    look, asked = history._known, list[str]()

    def late(client: MlflowClient, experiment_id: str) -> dict[str, list[Run]]:
        asked.append(experiment_id)
        return stale if len(asked) == 1 else look(client, experiment_id)

    monkeypatch.setattr(history, "_known", late)
    send(output, night(21, 0.002))
    assert line(client, histories(client)[FIRST]) == [(20, 5.0), (21, 2.0)]


def test_without_history_there_is_no_experiment_for_it(output: Path, client: MlflowClient) -> None:
    send(output, night(20), history=False)
    assert client.get_experiment_by_name("quickstart history") is None
    (parent,) = client.search_runs(["1"], "tags.`sweeprof.kind` = 'sweep'")
    assert "[history]" not in parent.data.tags["mlflow.note.content"]


def test_the_name_of_the_experiment_fits() -> None:
    assert history_name("quickstart") == "quickstart history"
    assert len(history_name("x" * 400)) == 250
