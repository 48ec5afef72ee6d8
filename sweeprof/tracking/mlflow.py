"""A sweep in MLflow: a run per sweep, a run per combination below it, and saved views that compare them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sweeprof.credentials import redacted_address, redacted_message
from sweeprof.errors import SweeprofError
from sweeprof.report.cells import one_line, shortened
from sweeprof.results.compare import Comparison
from sweeprof.results.record import Record
from sweeprof.tracking import Links, SweepInfo, SweepOutcome
from sweeprof.tracking.artifacts import add_extras, stage_combination, stage_sweep
from sweeprof.tracking.history import history_name, record_history
from sweeprof.tracking.process import ENVIRONMENT
from sweeprof.tracking.rest import VIEWER
from sweeprof.tracking.retry import connected, dispensable, is_foreign, log_artifacts, retrying, until_done
from sweeprof.tracking.run_index import delete_strays, known_runs, sweep_run, with_params
from sweeprof.tracking.runs import METRICS_TAG, RunContent, run_contents
from sweeprof.tracking.sweeps import (
    experiment_name,
    experiment_tags,
    final_view,
    first_view,
    sweep_content,
    sweep_info,
    sweep_params,
)
from sweeprof.tracking.views import NOTE, VERDICT_TAG, ViewOf, view_address, write_tags

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

__all__ = ["ENVIRONMENT", "MlflowTracker", "TrackingError", "import_library"]

SAID_LIMIT = 500
"""Characters of what MLflow said: a proxy may have answered with a page of HTML."""

_OWN_TAGS = ("sweeprof.", VERDICT_TAG, "answer", "confidence")
"""Beginnings of the keys of tags that are deleted where they no longer apply."""

_LOG = logging.getLogger(__name__)


def import_library() -> None:
    """Import MLflow, which takes seconds; an error is reported by whatever needs it first."""
    with contextlib.suppress(Exception):
        importlib.import_module("mlflow.tracking")


class TrackingError(SweeprofError):
    """The tracker was not reached, or refused; the records are on disk, and closing again sends what is missing."""


class MlflowTracker:
    """Sends sweeps to an MLflow server, or to a database below ``output``.

    Args:
        uri: of the tracking server or database; None for ``<output>/mlflow.db``.
        output: the folder of all sweeps; unless there is a server, its ``mlflow-artifacts`` takes the artifacts.
        history: whether the headlines of every combination go into its history, too.
    """

    def __init__(self, uri: str | None, output: Path | str, history: bool = False) -> None:
        self._history = history
        self.on_progress: Callable[[], object] = lambda: None
        folder = Path(output).absolute()
        self._uri = uri or f"sqlite:///{folder / 'mlflow.db'}"
        self._is_server = self._uri.startswith(("http://", "https://"))
        # Without a location MLflow would take the working directory of whoever makes the experiment.
        self._artifacts = None if self._is_server else (folder / "mlflow-artifacts").as_uri()

    def open(self, sweep: SweepInfo) -> Links:
        """Make the schema, the experiment, the sweep's run and its views; tried once, as :meth:`close` does it again.

        Raises:
            TrackingError: MLflow cannot be reached, or refuses.
        """
        with self._told():
            client = connected(self._uri)
            experiment = self._experiment(client, sweep.name)
            parent = sweep_run(client, experiment, sweep)
            if parent.info.status != "RUNNING":
                client.update_run(parent.info.run_id, status="RUNNING")
            _write_views(client, experiment, first_view(sweep, parent.info.run_id))
        return self._links(experiment, sweep.sweep_id)

    def close(self, comparison: Comparison, records: Sequence[Record], folder: Path, ending: SweepOutcome) -> Links:
        """Send every combination that is not there yet, then the comparison, also where nothing was opened.

        What fails for now is tried again until nothing has succeeded for :data:`~sweeprof.tracking.process.GIVE_UP_S`.

        Raises:
            TrackingError: MLflow cannot be reached, or refuses; it says how much is there.
        """
        sweep, sent = sweep_info(comparison), list[str]()
        with self._told(lambda: f"; {len(sent)} of {sweep.combinations} combinations are there"):
            client, experiment, parent, known = self._send_combinations(comparison, records, folder, ending, sent)
            parent_id = parent.info.run_id
            until_done(lambda _: delete_strays(client, experiment, sweep.sweep_id, known))
            whole = functools.partial(sweep_content, comparison, records, folder, ending, experiment, parent)
            stage = functools.partial(stage_sweep, folder=folder, comparison=comparison)
            own = functools.partial(sweep_run, client, experiment, sweep, parent_id)
            until_done(lambda _: _send(client, experiment, own(), whole(), stage))
            # A server may take no views and no history: these come last, so that it has all the rest.
            views = final_view(comparison, parent_id)
            if self._history:
                with dispensable("history"):
                    id = until_done(lambda _: self._experiment(client, history_name(sweep.name)))
                    client.set_tag(parent_id, NOTE, whole(id).tags[NOTE])
                    record_history(client, id, comparison, views, experiment)
            _write_views(client, experiment, views)
        return self._links(experiment, sweep.sweep_id)

    def send_ahead(self, comparison: Comparison, records: Sequence[Record], folder: Path, ending: SweepOutcome) -> None:
        """Send the combinations while the reports of the sweep are written; :meth:`close` then sends the rest.

        Raises:
            TrackingError: MLflow cannot be reached, or refuses.
        """
        with self._told():
            self._send_combinations(comparison, records, folder, ending, [])

    def _send_combinations(
        self,
        comparison: Comparison,
        records: Sequence[Record],
        folder: Path,
        ending: SweepOutcome,
        sent: list[str],
    ) -> tuple[MlflowClient, str, Run, dict[str, Run]]:
        """Send every combination that is not there yet, adding its id to ``sent``.

        Returns the client, the experiment's id, the sweep's run, and the runs of the sweep that belong to no combination.
        """
        sweep = sweep_info(comparison)
        client = retrying(until_done(lambda _: connected(self._uri)), self.on_progress)
        experiment = until_done(lambda _: self._experiment(client, sweep.name))
        params = sweep_params(comparison)
        parent = until_done(lambda _: with_params(client, sweep_run(client, experiment, sweep), params))
        known = until_done(lambda _: known_runs(client, experiment, sweep.sweep_id))
        for id, content in run_contents(comparison, records, ending, parent.info.run_id, experiment):
            stage = functools.partial(stage_combination, folder=folder, combination_id=id, config=content.config)
            until_done(functools.partial(_bring, client, experiment, content, stage, known.pop(id, None)))
            sent.append(id)
        return client, experiment, parent, known

    def show(self, comparison: Comparison, records: Sequence[Record], folder: Path, ids: Collection[str]) -> None:
        """Send some combinations, and show the state of the whole sweep in its run: description, answer, counts and reports.

        Raises:
            TrackingError: MLflow cannot be reached, or refuses.
        """
        from mlflow.entities import Metric, RunTag

        with self._told():
            client, experiment, parent = self._add(comparison, records, folder, ids)
            content = sweep_content(comparison, records, folder, "finished", experiment, parent)
            run_id = parent.info.run_id
            there, now = parent.data, int(time.time() * 1000)
            client.log_batch(
                run_id,
                metrics=[
                    Metric(k, value, now, 0) for k, value in content.metrics.items() if there.metrics.get(k) != value
                ],
                tags=[RunTag(key, text) for key, text in content.tags.items() if there.tags.get(key) != text],
                synchronous=True,
            )
            with tempfile.TemporaryDirectory(prefix="sweeprof-") as staged:
                stage_sweep(Path(staged), folder, comparison)
                log_artifacts(client, parent, Path(staged))

    def _add(
        self, comparison: Comparison, records: Sequence[Record], folder: Path, ids: Collection[str]
    ) -> tuple[MlflowClient, str, Run]:
        """Send some combinations; returns the client, the experiment's id and the sweep's run."""
        sweep = sweep_info(comparison)
        client = retrying(until_done(lambda _: connected(self._uri)), self.on_progress)
        experiment = until_done(lambda _: self._experiment(client, sweep.name))
        parent = until_done(lambda _: sweep_run(client, experiment, sweep))
        known = until_done(lambda _: known_runs(client, experiment, sweep.sweep_id))
        for id, content in run_contents(comparison, records, None, parent.info.run_id, experiment):
            if id in ids:
                stage = functools.partial(stage_combination, folder=folder, combination_id=id, config=content.config)
                until_done(functools.partial(_bring, client, experiment, content, stage, known.get(id)))
        return client, experiment, parent

    @contextlib.contextmanager
    def _told(self, more: Callable[[], str] = str) -> Iterator[None]:
        """Whatever goes wrong in MLflow, its drivers and the network as a line without passwords, and ``more``."""
        try:
            yield
        except Exception as error:
            if not is_foreign(error):
                raise
            # Not chained: MLflow's messages quote the address, password included.
            message = shortened(one_line(redacted_message(str(error))), SAID_LIMIT)
            raise TrackingError(f"MLflow at {redacted_address(self._uri, '')}: {message}{more()}") from None

    def _links(self, experiment: str, sweep_id: str) -> Links:
        base = redacted_address(self._uri, "") if self._is_server else VIEWER
        return Links(not self._is_server, view_address(base, experiment, sweep_id, "table"))

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


def _bring(
    client: MlflowClient,
    experiment: str,
    content: RunContent,
    stage: Callable[[Path], None],
    run: Run | None,
    tried: int,
) -> None:
    """Send a combination that may have a run; one that was tried to send may have another by now."""
    if tried:
        id = content.tags["sweeprof.combination_id"]
        run = known_runs(client, experiment, content.tags["sweeprof.sweep_id"], id).get(id)
    if run is None or not _is_sent(run, content):
        _send(client, experiment, run, content, stage)


def _send(
    client: MlflowClient, experiment: str, run: Run | None, content: RunContent, stage: Callable[[Path], None]
) -> None:
    """Make the run, or bring it up to date; its status comes last and says that all the rest is there.

    Args:
        stage: lays the artifacts out in a folder.
    """
    from mlflow.entities import Metric, Param, RunTag

    if run and _is_past_mending(run, content):
        client.delete_run(run.info.run_id)
        run = None
    if run is None:
        run, tags = client.create_run(experiment, content.start_ms, dict(content.tags), content.name), content.tags
    else:
        tags = _own_tags(run, content)
        if run.info.run_name != content.name:
            client.update_run(run.info.run_id, name=content.name)
    id = run.info.run_id
    for key in tags.keys() - content.tags.keys():
        client.delete_tag(id, key)
    # Of two values with one time MLflow shows the larger, so a changed value is sent with the time of its change.
    now, there = int(time.time() * 1000), run.data.metrics
    changed = {key: value for key, value in content.metrics.items() if there.get(key) != value}
    client.log_batch(
        id,
        metrics=[Metric(key, value, now if key in there else content.end_ms, 0) for key, value in changed.items()],
        params=[Param(key, value) for key, value in content.params.items() if key not in run.data.params],
        tags=[RunTag(key, text) for key, text in content.tags.items() if tags.get(key) != text],
        synchronous=True,
    )
    with tempfile.TemporaryDirectory(prefix="sweeprof-") as staged:
        stage(Path(staged))
        add_extras(client, id, Path(staged), content.inputs)
        log_artifacts(client, run, Path(staged))
    client.set_terminated(id, content.status, content.end_ms)


def _is_past_mending(run: Run, content: RunContent) -> bool:
    """True if a run must be replaced: MLflow cannot change a parameter or a start time, nor remove a metric.

    What others have logged is theirs; and a sweep's run stays, as its children and its baseline's tag are tied to it.
    """
    if content.tags["sweeprof.kind"] == "sweep":
        return False
    other = any(run.data.params.get(key, text) != text for key, text in content.params.items())
    gone = set(run.data.tags.get(METRICS_TAG, "").split("\n")) - content.metrics.keys()
    # Of a combination that was not measured the start is the sweep's.
    late = run.info.start_time != content.start_ms and not run.data.metrics
    return other or late or not gone.isdisjoint(run.data.metrics)


def _is_sent(run: Run, content: RunContent) -> bool:
    there = (run.info.run_name, run.info.status, run.info.end_time)
    return (
        there == (content.name, content.status, content.end_ms)
        and content.params.items() <= run.data.params.items()
        and content.metrics.items() <= run.data.metrics.items()
        and _own_tags(run, content) == content.tags
        and not _is_past_mending(run, content)
    )


def _own_tags(run: Run, content: RunContent) -> dict[str, str]:
    return {key: text for key, text in run.data.tags.items() if key.startswith(_OWN_TAGS) or key in content.tags}


def _write_views(client: MlflowClient, experiment_id: str, of: ViewOf) -> None:
    """Write the views of a sweep, and delete outdated ones."""
    write_tags(client, experiment_id, of.title, lambda present: experiment_tags(of, experiment_id, present))
