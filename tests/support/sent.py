"""Sweeps that are sent by the command that sends, and what MLflow has of them afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.command import QUIET, environment
from sweeprof.results.files import read_json
from sweeprof.tracking.history import step_of

if TYPE_CHECKING:
    from mlflow.entities import Run

LOCKS = "/tmp/sweeprof-faults"
SENT = ("model=fake", "backend=fake", "dataset=synthetic", "compare.baseline={batch_size: 1}", f"limits.locks={LOCKS}")
METRICS = "metrics.select=[compute/macs,latency/forward]"
HISTORY = "tracking.history=true"
SIZES = (1, 2)


@contextmanager
def mlflow_settings(**settings: int) -> Iterator[None]:
    """Start commands with ``MLFLOW_HTTP_REQUEST_*`` within this context: ``max_retries`` is 6 otherwise, ``timeout`` 20 seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setitem(QUIET, f"MLFLOW_HTTP_REQUEST_{name.upper()}", str(value))
        yield


def start_sync(home: Path, folder: Path, uri: str) -> subprocess.Popen[str]:
    return start(home, [str(folder), f"uri={uri}"])


def start(home: Path, words: list[str]) -> subprocess.Popen[str]:
    """The command that sends, with words of one's own."""
    return subprocess.Popen(
        [sys.executable, "-m", "sweeprof", "sync", *words],
        cwd=home,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def sync(home: Path, folder: Path, uri: str) -> tuple[int, str]:
    """The exit code, and what was said on stderr."""
    process = start_sync(home, folder, uri)
    try:
        _, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert "Traceback" not in err
    return process.returncode, err


def runs(uri: str, sweep_id: str) -> list[Run]:
    """All runs of a sweep in any state, those that were deleted left out."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    return list(client.search_runs(experiments, f"tags.`sweeprof.sweep_id` = '{sweep_id}'", max_results=1000))


def histories(uri: str, combination_id: str) -> list[Run]:
    """The history of a combination: one run, whatever sweeps there were."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("adhoc history")
    assert experiment is not None
    wanted = f"tags.`sweeprof.kind` = 'history' and tags.`sweeprof.combination_id` = '{combination_id}'"
    return list(client.search_runs([experiment.experiment_id], wanted))


def assert_whole(uri: str, folder: Path, sizes: tuple[int, ...] = SIZES) -> None:
    """Every run is there exactly once, finished, with its parameters, metrics, artifacts, parent and history."""
    from mlflow.tracking import MlflowClient

    found = runs(uri, read_json(folder / "plan.json")["sweep_id"])
    (parent,) = (run for run in found if run.data.tags["sweeprof.kind"] == "sweep")
    children = [run for run in found if run.data.tags["sweeprof.kind"] == "combination"]
    assert Counter(run.data.params["batch_size"] for run in children) == Counter(map(str, sizes))
    assert {run.info.status for run in found} == {"FINISHED"}
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert all(run.data.metrics["latency/forward_ms"] > 0 for run in children)
    client = MlflowClient(tracking_uri=uri)
    assert "report.html" in {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert "config.json" in {file.path for file in client.list_artifacts(children[-1].info.run_id)}
    created, sweep_id = (read_json(folder / "plan.json")[key] for key in ("created", "sweep_id"))
    for child in children:
        (history,) = histories(uri, child.data.tags["sweeprof.combination_id"])
        assert history.info.status == "FINISHED"
        points = client.get_metric_history(history.info.run_id, "latency/forward_ms")
        own = [point.value for point in points if point.step == step_of(created, sweep_id)]
        assert own == [child.data.metrics["latency/forward_ms"]]
    stored = read_json(folder / "tracking.json")
    assert stored["sent"]
    assert stored["trouble"] is None
