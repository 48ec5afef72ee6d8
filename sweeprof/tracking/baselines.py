"""Sweeps of MLflow as baselines: their comparison is downloaded, their run is tagged, by a process that imports MLflow."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sweeprof.credentials import redacted_message
from sweeprof.text import log_as_a_program
from sweeprof.tracking.runs import BASELINE_TAG, TAG_LIMIT, baseline_names, with_baselines
from sweeprof.tracking.views import NOTE

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

FILE = "comparison.json"


def fetch(client: MlflowClient, wanted: str, target: Path) -> None:
    """Download the comparison of a sweep's run, given by its id, that of one of its combinations, or a tag.

    Raises:
        LookupError: there is no such run, or it has no comparison.
    """
    kind, _, name = wanted.partition(":")
    if kind == "tag":
        key = BASELINE_TAG + name
        found = _search(client, f"tags.`{key}` = 'true'")
        if not found:
            raise LookupError(f"no run has the tag {key}")
        run = found[0]
    else:
        run = client.get_run(wanted)
    id = run.info.run_id
    if run.data.tags.get("sweeprof.kind") == "combination":
        id = run.data.tags.get("mlflow.parentRunId") or id
    if all(item.path != FILE for item in client.list_artifacts(id)):
        raise LookupError(f"run {id} has no {FILE}: it is no sweep of sweeprof, or was not finished")
    # Beside the target: a file cannot be renamed to another file system, as that of temporary files may be.
    with tempfile.TemporaryDirectory(prefix=".sweeprof-", dir=target.parent) as folder:
        Path(client.download_artifacts(id, FILE, folder)).replace(target)


def set_tag(client: MlflowClient, name: str, sweep_id: str) -> None:
    """Tag the run of a sweep, and no other.

    Raises:
        LookupError: the sweep is not there.
    """
    found = _search(client, f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = 'sweep'")
    if not found:
        raise LookupError(f"there is no run of the sweep {sweep_id}")
    key = BASELINE_TAG + name  # not a key that a sweep sets itself
    for run in _search(client, f"tags.`{key}` = 'true'"):
        client.delete_tag(run.info.run_id, key)
        _name_baselines(client, run.info.run_id)
    client.set_tag(found[0].info.run_id, key, "true")
    _name_baselines(client, found[0].info.run_id)


def _name_baselines(client: MlflowClient, run_id: str) -> None:
    """Let the description of a sweep's run name the baselines that the sweep is."""
    tags = client.get_run(run_id).data.tags
    before = tags.get(NOTE, "")
    after = with_baselines(before, baseline_names(tags))
    if before and after != before and len(after) <= TAG_LIMIT:
        client.set_tag(run_id, NOTE, after)


def _search(client: MlflowClient, condition: str) -> list[Run]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments, condition, order_by=["attributes.start_time DESC"]))


def answered(question: Mapping[str, str]) -> dict[str, str | None]:
    """Download a comparison, or tag a run, of the server in MLFLOW_TRACKING_URI; return the error, or None."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    log_as_a_program()
    try:
        client = MlflowClient(tracking_uri=os.environ["MLFLOW_TRACKING_URI"])
        if "run" in question:
            fetch(client, question["run"], Path(question["file"]))
        else:
            set_tag(client, question["tag"], question["sweep"])
    except (MlflowException, LookupError, OSError) as error:
        return {"error": redacted_message(" ".join(str(error).split()))}
    return {"error": None}
