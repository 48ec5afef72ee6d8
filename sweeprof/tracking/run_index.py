"""The runs of a sweep that MLflow already has: the server itself is the index, and duplicate runs are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeprof.tracking import SweepInfo
from sweeprof.tracking.sweeps import opened

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
    wanted = f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = '{kind}'{only}"
    runs: list[Run] = []
    token: str | None = ""
    while token is not None:
        page = client.search_runs([experiment], wanted, max_results=PAGE, page_token=token or None)
        runs += page
        token = page.token or None
    return runs
