"""A sweep in MLflow: a run per sweep, a run per combination below it, and saved views that compare them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from sweeprof.errors import SweeprofError
from sweeprof.results.compare import Comparison
from sweeprof.results.record import Record
from sweeprof.tracking import Ending, Links, SweepInfo
from sweeprof.tracking.artifacts import stage_combination, stage_sweep, tags_of
from sweeprof.tracking.credentials import without_credentials
from sweeprof.tracking.history import history_name, record_history
from sweeprof.tracking.inputs import log_inputs
from sweeprof.tracking.menu import write_views
from sweeprof.tracking.notes import baseline_names
from sweeprof.tracking.process import ENVIRONMENT, VIEWER, viewer_command
from sweeprof.tracking.runs import RunContent, run_contents
from sweeprof.tracking.sweeps import Place, experiment_name, final_view, first_view, opened, sweep_content, sweep_info
from sweeprof.tracking.views import view_address

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

__all__ = ["ENVIRONMENT", "MlflowTracker", "TrackingError"]

_LOG = logging.getLogger(__name__)


class TrackingError(SweeprofError):
    """The tracker was not reached, or refused; the records are on disk, and closing again sends what is missing."""


class MlflowTracker:
    """Sends sweeps to an MLflow server, or to a database below ``output``.

    Args:
        uri: of the tracking server or database; None for ``<output>/mlflow.db``.
        output: the folder of all sweeps; unless there is a server, its ``mlflow-artifacts`` takes the artifacts.
        history: whether the headlines of every combination go into its history, too.
    """

    def __init__(self, uri: str | None, output: Path | str, history: bool = True) -> None:
        self._history = history
        folder = Path(output).absolute()
        self._uri = uri or f"sqlite:///{folder / 'mlflow.db'}"
        self._is_server = self._uri.startswith(("http://", "https://"))
        # Without a location MLflow would take the working directory of whoever makes the experiment.
        self._artifacts = None if self._is_server else (folder / "mlflow-artifacts").as_uri()

    def open(self, sweep: SweepInfo) -> Links:
        """Make the schema, the experiment, the sweep's run and its views.

        Raises:
            TrackingError: MLflow cannot be reached, or refuses.
        """
        with self._connected() as client:
            experiment = self._experiment(client, sweep.name)
            parent = _parent(client, experiment, sweep)
            if parent.info.status != "RUNNING":
                client.update_run(parent.info.run_id, status="RUNNING")
            write_views(client, experiment, first_view(sweep, parent.info.run_id))
        shown = without_credentials(self._uri)
        base, command = (shown, None) if self._is_server else (VIEWER, viewer_command(shown))
        return Links(command, view_address(base, experiment, sweep.sweep_id, "table"))

    def close(self, comparison: Comparison, records: Sequence[Record], folder: Path, ending: Ending) -> None:
        """Send every combination that is not there yet, then the comparison.

        Raises:
            TrackingError: MLflow cannot be reached, or refuses.
        """
        with self._connected() as client:
            experiment = self._experiment(client, comparison.name)
            parent = _parent(client, experiment, sweep_info(comparison))
            parent_id = parent.info.run_id
            # The columns and charts come first: should the sending break off, what is there can be compared.
            write_views(client, experiment, final_view(comparison, parent_id))
            known = _known(client, experiment, comparison.sweep_id)
            for id, content in run_contents(comparison, records, ending, parent_id, experiment):
                with tempfile.TemporaryDirectory(prefix="sweeprof-") as staged:
                    stage_combination(Path(staged), folder, id, content.config)
                    _send(client, experiment, known.pop(id, None), content, staged)
            for run in known.values():  # of a plan that was replaced when the sweep was gone on with
                client.delete_run(run.info.run_id)
            with tempfile.TemporaryDirectory(prefix="sweeprof-") as staged:
                stage_sweep(Path(staged), folder, comparison)
                history = self._experiment(client, history_name(comparison.name)) if self._history else None
                place = Place(experiment, parent_id, history, baseline_names(parent.data.tags))
                _send(client, experiment, parent, sweep_content(comparison, records, folder, ending, place), staged)
            if history is not None:
                record_history(client, history, comparison, final_view(comparison, parent_id), place.address)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[MlflowClient]:
        from mlflow.exceptions import MlflowException

        try:
            yield self._connect()
        except (MlflowException, OSError) as error:
            # Not chained: MLflow's messages quote the address, password included.
            where = without_credentials(self._uri)
            raise TrackingError(f"MLflow at {where}: {without_credentials(str(error))}") from None

    def _connect(self) -> MlflowClient:
        from mlflow.tracking import MlflowClient

        if not self._uri.startswith("sqlite:///"):
            return MlflowClient(tracking_uri=self._uri)
        path = Path(self._uri.removeprefix("sqlite:///").partition("?")[0]).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of eight processes that open an empty database at once, seven die in its migration (MLFLOW.md 3).
        with FileLock(f"{path}.lock", timeout=60):
            return MlflowClient(tracking_uri=self._uri)

    def _experiment(self, client: MlflowClient, sweep_name: str) -> str:
        """Id of the experiment, made or restored where needed."""
        from mlflow.exceptions import MlflowException

        name = experiment_name(sweep_name)
        found = client.get_experiment_by_name(name)
        if found is None:
            try:
                return client.create_experiment(name, artifact_location=self._artifacts)
            except MlflowException as error:
                found = client.get_experiment_by_name(name)
                # Unless another sweep of that name was faster, it is a real error.
                if found is None or error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
        if found.lifecycle_stage == "deleted":
            _LOG.warning("MLflow's experiment %r was deleted; it is restored to take this sweep", name)
            client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)


def _parent(client: MlflowClient, experiment: str, sweep: SweepInfo) -> Run:
    found = _search(client, experiment, sweep.sweep_id, "sweep")
    if found:
        return found[0]
    content = opened(sweep)
    return client.create_run(experiment, content.start_ms, dict(content.tags), content.name)


def _known(client: MlflowClient, experiment: str, sweep_id: str) -> dict[str, Run]:
    """The runs of the sweep that are there already, by combination id."""
    found: dict[str, Run] = {}
    runs = _search(client, experiment, sweep_id, "combination")
    for run in sorted(runs, key=lambda run: run.info.status == "RUNNING"):
        id = run.data.tags.get("sweeprof.combination_id", "")
        if found.setdefault(id, run) is not run:
            # A reply was lost and MLflow's client asked again: the second run would be RUNNING for ever.
            client.delete_run(run.info.run_id)
    return found


def _search(client: MlflowClient, experiment: str, sweep_id: str, kind: str) -> list[Run]:
    wanted = f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = '{kind}'"
    runs: list[Run] = []
    token: str | None = ""
    while token is not None:
        page = client.search_runs([experiment], wanted, max_results=1000, page_token=token or None)
        runs += page
        token = page.token or None
    return runs


def _send(client: MlflowClient, experiment: str, run: Run | None, content: RunContent, folder: str) -> None:
    """Make the run, or bring it up to date; its status comes last and says that all the rest is there."""
    from mlflow.entities import Metric, Param, RunTag

    content = dataclasses.replace(content, tags=content.tags | tags_of(Path(folder)))
    tags: dict[str, str] = {}
    if run is not None:
        tags = {key: text for key, text in run.data.tags.items() if key.startswith("sweeprof.") or key in content.tags}
        if _is_sent(run, tags, content):
            return
        # Neither can a parameter be changed nor a metric be taken back: such a run is replaced.
        if run.data.params.items() - content.params.items() or run.data.metrics.keys() - content.metrics:
            client.delete_run(run.info.run_id)
            run = None
    if run is None:
        run, tags = client.create_run(experiment, content.start_ms, dict(content.tags), content.name), content.tags
    elif run.info.run_name != content.name:
        client.update_run(run.info.run_id, name=content.name)
    id = run.info.run_id
    for key in tags.keys() - content.tags.keys():
        client.delete_tag(id, key)
    # Of two values with one time MLflow shows the larger, so a changed value is sent with the time of its change.
    at = int(time.time() * 1000) if run.data.metrics else content.end_ms
    changed = {key: value for key, value in content.metrics.items() if run.data.metrics.get(key) != value}
    client.log_batch(
        id,
        metrics=[Metric(key, value, at, 0) for key, value in changed.items()],
        params=[Param(key, value) for key, value in content.params.items() if key not in run.data.params],
        tags=[RunTag(key, text) for key, text in content.tags.items() if tags.get(key) != text],
        synchronous=True,
    )
    log_inputs(client, id, content.inputs)
    client.log_artifacts(id, folder)
    client.set_terminated(id, content.status, content.end_ms)


def _is_sent(run: Run, tags: dict[str, str], content: RunContent) -> bool:
    there = (run.info.run_name, run.info.status, run.info.end_time, tags, run.data.params, run.data.metrics)
    return there == (content.name, content.status, content.end_ms, content.tags, content.params, content.metrics)
