"""The history of combinations in a real MLflow."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from support.samples import comparison
from support.store import Store
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.differences import Cell
from sweeprof.tracking import history
from sweeprof.tracking.history import history_name, step_of
from sweeprof.tracking.runs import milliseconds

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

FIRST = "c000000000000"
KEY = "latency/forward_ms"
NAME = "quickstart history"


def night(day: int, latency: float = 0.001, **changes: Any) -> Comparison:
    """The sweep of a day: two combinations, the first of them with the given latency, the second crashed."""
    whole = comparison()
    first, crashed = whole.rows[0], whole.rows[5]
    measured = dataclasses.replace(first.cells["latency/forward"].measurement, value=latency)
    first = dataclasses.replace(first, cells={**first.cells, "latency/forward": Cell(measured)})
    created = f"2026-11-{day:02}T00:30:00+00:00"
    return dataclasses.replace(
        whole, **{"sweep_id": f"s{day}", "created": created, "rows": (first, crashed), **changes}
    )


def send(store: Store, *sweeps: Comparison) -> None:
    for of in sweeps:
        store.send(of, history=True)


def first(store: Store) -> Run:
    return store.combinations(NAME, "history")[FIRST]


def line(store: Store) -> list[tuple[int, float]]:
    """Day and value of each point of the first combination, in the order of steps."""
    start = milliseconds("2026-11-01T00:30:00+00:00")
    found = store.client.get_metric_history(first(store).info.run_id, KEY)
    points = sorted((point.step, point.timestamp, point.value) for point in found)
    assert all(time == step // 1_000_000 * 1000 for step, time, _ in points)
    return [(1 + (time - start) // 86_400_000, value) for _, time, value in points]


def log_point(client: MlflowClient, id: str, day: int, value: float) -> None:
    """What another sweep writes."""
    created = night(day).created
    client.log_metric(id, KEY, value, milliseconds(created), step_of(created, f"s{day}"))


@pytest.mark.slow
def test_every_measured_combination_has_a_line_over_the_nights(store: Store) -> None:
    send(store, night(20), night(21, 0.002))
    assert list(store.combinations(NAME, "history")) == [FIRST]  # none of the crashed one
    run = first(store)
    assert (run.info.run_name, run.info.status) == ("lenet5/torch/cpu/b1", "FINISHED")
    assert run.data.params == {"model": "lenet5", "backend": "torch", "device": "cpu", "batch_size": "1"}
    assert line(store) == [(20, 1.0), (21, 2.0)]
    assert run.data.metrics[KEY] == 2.0
    assert set(run.data.metrics) == {KEY, "throughput/samples_per_s", "quality/accuracy"}
    assert "[quickstart 2026-11-21 00:30](#/experiments/" in run.data.tags["mlflow.note.content"]
    assert "mlflow.sharedViewState.sweeprof-history-trend" in store.experiment(NAME).tags


@pytest.mark.slow
def test_sending_again_adds_nothing(store: Store) -> None:
    send(store, night(20), night(20))
    before = first(store).to_dictionary()
    send(store, night(20))
    assert first(store).to_dictionary() == before
    assert line(store) == [(20, 1.0)]


FAILED = dataclasses.replace(night(21).rows[0], status="failed", reason="no luck")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sweeps", "points", "newest"),
    [
        ([night(20), night(22, 0.003), night(21, 0.002)], [(20, 1.0), (21, 2.0), (22, 3.0)], 22),
        ([night(20), night(21), night(21, 0.007)], [(20, 1.0), (21, 7.0)], 21),
        ([night(20), night(21), night(21, rows=(FAILED,))], [(20, 1.0)], 21),
        ([night(20), night(20, 0.002, sweep_id="t20"), night(20)], [(20, 1.0), (20, 2.0)], 20),
    ],
    ids=["older one sent later", "last resumed", "failed after all", "two of one second"],
)
def test_each_sweep_is_a_point(
    store: Store, sweeps: list[Comparison], points: list[tuple[int, float]], newest: int
) -> None:
    send(store, *sweeps)
    assert sorted(line(store)) == points
    run = first(store)
    assert run.info.status == "FINISHED"
    assert run.data.metrics[KEY] == line(store)[-1][1]
    assert f"2026-11-{newest}" in run.data.tags["mlflow.note.content"]


@pytest.mark.slow
def test_two_beginnings_of_one_history_become_one(store: Store) -> None:
    send(store, night(20))
    begun = first(store)
    # What another sweep leaves that looked at the same moment, and one that was killed after making its run.
    for points in (1, 0):
        twin = store.client.create_run(begun.info.experiment_id, begun.info.start_time + 5, {**begun.data.tags})
        for _ in range(points):
            log_point(store.client, twin.info.run_id, 21, 2.0)
    send(store, night(22, 0.003))
    assert first(store).info.run_id == begun.info.run_id
    assert line(store) == [(20, 1.0), (21, 2.0), (22, 3.0)]


@pytest.mark.parametrize("replaced", [True, False])
def test_what_is_added_to_a_deleted_run_is_kept(store: Store, monkeypatch: pytest.MonkeyPatch, replaced: bool) -> None:
    from mlflow.tracking import MlflowClient

    send(store, night(20))
    old = first(store)
    if not replaced:
        old = store.client.create_run(old.info.experiment_id, old.info.start_time + 5, {**old.data.tags})
    delete = MlflowClient.delete_run

    def add_first(self: MlflowClient, id: str) -> None:
        if id == old.info.run_id:
            log_point(self, id, 19, 9.0)
        delete(self, id)

    monkeypatch.setattr(MlflowClient, "delete_run", add_first)
    latency = 0.005 if replaced else 0.001
    send(store, night(20, latency))
    assert line(store) == [(19, 9.0), (20, 1000 * latency)]


def test_a_history_that_was_begun_and_not_written_is_resumed(store: Store) -> None:
    send(store, night(20, rows=night(20).rows[1:]))
    tags = {"sweeprof.kind": "history", "sweeprof.combination_id": FIRST}
    begun = store.client.create_run(store.experiment(NAME).experiment_id, 5, tags)
    send(store, night(20))
    run = first(store)
    assert (run.info.run_id, run.info.status) == (begun.info.run_id, "FINISHED")
    assert run.data.params["model"] == "lenet5"
    assert line(store) == [(20, 1.0)]


def test_a_run_that_was_replaced_meanwhile_is_looked_for_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    send(store, night(20))
    stale = history._known(store.client, store.experiment(NAME).experiment_id)
    send(store, night(20, 0.005))  # which replaces the run
    look, asked = history._known, list[str]()

    def late(client: MlflowClient, experiment_id: str) -> dict[str, list[Run]]:
        asked.append(experiment_id)
        return stale if len(asked) == 1 else look(client, experiment_id)

    monkeypatch.setattr(history, "_known", late)
    send(store, night(21, 0.002))
    assert line(store) == [(20, 5.0), (21, 2.0)]


def test_without_history_there_is_no_experiment_for_it(store: Store) -> None:
    store.send(night(20))
    assert store.client.get_experiment_by_name(NAME) is None
    assert "[history]" not in store.sweep().data.tags["mlflow.note.content"]


def test_the_name_of_the_experiment_fits() -> None:
    assert history_name("quickstart") == NAME
    assert len(history_name("x" * 400)) == 250
