"""The runs of a sweep that MLflow already has: the server itself is the index, and duplicate runs are deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sweeprof.tracking import SweepInfo
from sweeprof.tracking.sweeps import PARAMS_TAG, opened

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


PAGE = 500
"""Runs per request: a server takes up to 11 ms for each (measured with MLflow 3.17), and must answer within the time limit."""


def sweep_run(client: MlflowClient, experiment: str, sweep: SweepInfo, kept: str | None = None) -> Run:
    """The run of the sweep, made where there is none; of several, ``kept`` is the id of the one to which others refer already."""
    found = _search(client, experiment, sweep.sweep_id, "sweep")
    if not found:
        content = opened(sweep)
        return client.create_run(experiment, content.start_ms, dict(content.tags), content.name)
    # An answer was lost and the run was made twice: whoever looks keeps the same one.
    first, *others = sorted(found, key=lambda run: (run.info.run_id != kept, *_rank(run)))
    for run in others:
        client.delete_run(run.info.run_id)
    return first


def with_params(client: MlflowClient, run: Run, params: Mapping[str, str]) -> Run:
    """The sweep's run, or a new one in its place if its parameters are others, after a change of plan: MLflow cannot change them.

    The new run has what others have logged, apart from artifacts.
    """
    from mlflow.entities import Metric, Param

    own = set(run.data.tags.get(PARAMS_TAG, "").split("\n"))
    there = run.data.params
    if all(there.get(key, text) == text for key, text in params.items()) and own.isdisjoint(there.keys() - params):
        return run
    tags = {key: text for key, text in run.data.tags.items() if key != PARAMS_TAG}
    new = client.create_run(run.info.experiment_id, run.info.start_time, tags, run.info.run_name)
    client.log_batch(
        new.info.run_id,
        [Metric(key, value, run.info.start_time, 0) for key, value in run.data.metrics.items()],
        [Param(key, text) for key, text in there.items() if key not in own],
        synchronous=True,
    )
    client.delete_run(run.info.run_id)
    return new


def known_runs(
    client: MlflowClient, experiment: str, sweep_id: str, combination_id: str | None = None
) -> dict[str, Run]:
    """The runs of the sweep, or of one combination, that are there already, by combination id."""
    only = f" and tags.`sweeprof.combination_id` = '{combination_id}'" if combination_id else ""
    found: dict[str, Run] = {}
    runs = _search(client, experiment, sweep_id, "combination", only)
    for run in sorted(runs, key=_rank):
        id = run.data.tags.get("sweeprof.combination_id", "")
        if found.setdefault(id, run) is not run:
            client.delete_run(run.info.run_id)  # made twice, as an answer was lost; it would be RUNNING for ever
    return found


def delete_strays(client: MlflowClient, experiment: str, sweep_id: str, left: dict[str, Run]) -> None:
    """Delete the runs of a replaced plan, and the duplicates that a repeated request left."""
    strays = _search(client, experiment, sweep_id, "combination", " and attributes.status = 'RUNNING'")
    for id in {run.info.run_id for run in (*left.values(), *strays)}:
        client.delete_run(id)


def _rank(run: Run) -> tuple[bool, str]:
    return run.info.status == "RUNNING", run.info.run_id


def _search(client: MlflowClient, experiment: str, sweep_id: str, kind: str, only: str = "") -> list[Run]:
    condition = f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = '{kind}'{only}"
    return all_runs(client, experiment, condition)


def all_runs(client: MlflowClient, experiment: str, condition: str) -> list[Run]:
    """All runs for which ``condition``, in MLflow's language, holds, page by page."""
    runs: list[Run] = []
    token: str | None = ""
    while token is not None:
        page = client.search_runs([experiment], condition, max_results=PAGE, page_token=token or None)
        runs += page
        token = page.token or None
    return runs
