"""A sweep in MLflow: a run per sweep, a run per combination below it, and saved views that compare them."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeprof.credentials import redacted_address, redacted_message, without_credentials
from sweeprof.errors import SweeprofError
from sweeprof.report.layer_formats import tree
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.files import read_json, write_atomically, write_json
from sweeprof.results.layers import LayerTable
from sweeprof.results.record import Record
from sweeprof.text import one_line, shortened
from sweeprof.tracking import Links, SweepInfo, SweepOutcome, Tracker, runs
from sweeprof.tracking.connection import ENVIRONMENT, VIEWER, check_listening, connected, deleting, dispensable
from sweeprof.tracking.history import history_name, record_history
from sweeprof.tracking.views import NOTE, ViewOf, view_address, write_tags

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


__all__ = ["ENVIRONMENT", "MlflowTracker", "TrackingError", "import_library"]

SAID_LIMIT = 500
"""Characters of what MLflow said: a proxy may have answered with a page of HTML."""

_LOG = logging.getLogger(__name__)


def import_library() -> None:
    """Import MLflow, which takes seconds; an error is reported by whatever needs it first."""
    with contextlib.suppress(Exception):
        importlib.import_module("mlflow.tracking")


class TrackingError(SweeprofError):
    """The tracker was not reached, or refused; the records are on disk, and closing again sends what is missing."""


class MlflowTracker(Tracker):
    """Sends sweeps to an MLflow server, or to a database below ``output``.

    Args:
        uri: of the tracking server or database; None for ``<output>/mlflow.db``.
        output: the folder of all sweeps; unless there is a server, its ``mlflow-artifacts`` takes the artifacts.
        history: whether the headlines of every combination go into its history, too.
        parent_run: id of the run below which the run of the sweep is put, in the same experiment, as MLflow shows no others there.
    """

    def __init__(
        self, uri: str | None, output: Path | str, history: bool = False, parent_run: str | None = None
    ) -> None:
        self._history, self._parent_run = history, parent_run
        self._sent: dict[str, runs.RunContent] = {}
        """What this process has sent of combinations, by id."""
        self._is_reached = False
        """Whether the server has been there: one that has may be restarting, and requests to it are repeated."""
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
        with self._errors_explained():
            client, experiment = self._connected(sweep.name)
            parent = runs.sweep_run(client, experiment, sweep, self._parent_run)
            client.update_run(parent.info.run_id, status="RUNNING")
            _write_views(client, experiment, runs.first_view(sweep, parent.info.run_id), self._parent_run is None)
        return self._links(experiment, sweep.sweep_id)

    def show(self, comparison: Comparison, records: Sequence[Record], folder: Path, ids: Collection[str]) -> None:
        """Send some combinations, and show the state of the whole sweep in its run: description, answer, counts and reports.

        Raises:
            TrackingError: MLflow cannot be reached, or refuses.
        """
        with self._errors_explained():
            self._send_sweep(comparison, records, folder, None, ids, {})

    def close(self, comparison: Comparison, records: Sequence[Record], folder: Path, ending: SweepOutcome) -> Links:
        """Send every combination, then the comparison, also where nothing was opened, and delete runs that do not belong to it.

        Raises:
            TrackingError: MLflow cannot be reached, or refuses; it says how much is there.
        """
        ids, sent = {row.combination_id for row in comparison.rows}, dict[str, str]()
        with self._errors_explained(lambda: f"; {len(sent)} of {len(ids)} combinations are there"):
            client, experiment, parent = self._send_sweep(comparison, records, folder, ending, ids, sent)
            parent_id = parent.info.run_id
            # Runs of an earlier plan, and those that a repeated request has created twice.
            kept = {parent_id, *sent.values()}
            for kind in ("combination", "sweep"):
                for run in runs.runs_of_sweep(client, experiment, comparison.sweep_id, kind):
                    if run.info.run_id not in kept:
                        client.delete_run(run.info.run_id)
            # A server may take no views and no history: these come last, so that it has all the rest.
            views = runs.final_view(comparison, parent_id)
            if self._history:
                with dispensable("history"):
                    history = self._experiment(client, history_name(comparison.name))
                    whole = runs.sweep_content(comparison, records, folder, ending, experiment, parent, history)
                    client.set_tag(parent_id, NOTE, whole.tags[NOTE])
                    record_history(client, history, comparison, views, experiment, self.on_progress)
            _write_views(client, experiment, views, self._parent_run is None)
        return self._links(experiment, comparison.sweep_id)

    def _connected(self, sweep_name: str) -> tuple[MlflowClient, str]:
        """Return a client and the id of the sweep's experiment."""
        if not self._is_reached:
            check_listening(self._uri)
        client = connected(self._uri)
        if self._parent_run is not None:
            experiment = _experiment_of(client, self._parent_run)
        else:
            experiment = self._experiment(client, sweep_name)
        self._is_reached = True
        return client, experiment

    def _send_sweep(
        self,
        comparison: Comparison,
        records: Sequence[Record],
        folder: Path,
        ending: SweepOutcome | None,
        ids: Collection[str],
        sent: dict[str, str],
    ) -> tuple[MlflowClient, str, Run]:
        """Send combinations, each to its run, then the state of the sweep to its own.

        Args:
            ids: of the combinations.
            sent: takes the ids of the runs by those of the combinations.

        Returns:
            a client, the id of the experiment, and the run of the sweep.
        """
        client, experiment = self._connected(comparison.name)
        parent = runs.sweep_run(client, experiment, runs.sweep_info(comparison), self._parent_run)
        content = runs.sweep_content(comparison, records, folder, ending, experiment, parent)
        if runs.must_replace(parent, content):  # after a change of plan
            parent = runs.replaced(client, parent, content)
        known: dict[str, Run] = {}
        for found in runs.runs_of_sweep(client, experiment, comparison.sweep_id, "combination"):
            known.setdefault(found.data.tags.get("sweeprof.combination_id", ""), found)
        for id, own in runs.run_contents(comparison, records, ending, parent.info.run_id, experiment):
            if id not in ids:
                continue
            run = known.get(id)
            # What this process has sent already is not sent again, for a sweep that is shown while it runs.
            if run is None or self._sent.get(id) != own:
                if run is None:
                    run = client.create_run(experiment, own.start_ms, dict(own.tags), own.name)
                elif runs.must_replace(run, own):
                    run = runs.replaced(client, run, own)
                self._send(
                    client, run, own, partial(stage_combination, folder=folder, combination_id=id, config=own.config)
                )
                self._sent[id] = own
            sent[id] = run.info.run_id
        content = runs.sweep_content(comparison, records, folder, ending, experiment, parent)
        self._send(client, parent, content, partial(stage_sweep, folder=folder, comparison=comparison))
        return client, experiment, parent

    def _send(self, client: MlflowClient, run: Run, content: runs.RunContent, stage: Callable[[Path], None]) -> None:
        """Bring a run up to date; its status comes last and says that all the rest is there.

        Args:
            stage: lays the artifacts out in a folder.
        """
        from mlflow.entities import Metric, Param, RunTag

        id, there = run.info.run_id, run.data.metrics
        if run.info.run_name != content.name:
            client.update_run(id, name=content.name)
        for key in run.data.tags.keys() - content.tags.keys():
            if key.startswith(runs.OWN_TAGS):
                with deleting():
                    client.delete_tag(id, key)
        metrics = []
        for key, value in content.metrics.items():
            # Of two values with one time MLflow shows the larger, so a changed value is sent with the time of its change.
            at = content.end_ms if key not in there else int(time.time() * 1000)
            if there.get(key) != value:
                metrics.append(Metric(key, value, at, 0))
        params = [Param(key, text) for key, text in content.params.items()]
        with tempfile.TemporaryDirectory(prefix="sweeprof-") as staged:
            folder = Path(staged)
            stage(folder)
            tags = {**content.tags, **runs.tag_of(folder), **structure_tag(folder)}
            client.log_batch(id, metrics, params, [RunTag(key, text) for key, text in tags.items()], synchronous=True)
            runs.log_inputs(client, id, content.inputs)
            self.on_progress()
            # One at a time, so that a slow upload makes progress.
            for path in sorted(filter(Path.is_file, folder.rglob("*"))):
                place = path.parent.relative_to(folder).as_posix()
                client.log_artifact(id, str(path), None if place == "." else place)
                self.on_progress()
        if content.status is not None:
            client.set_terminated(id, content.status, content.end_ms)

    @contextlib.contextmanager
    def _errors_explained(self, more: Callable[[], str] = str) -> Iterator[None]:
        """Raise errors of MLflow, its drivers and the network as :class:`TrackingError`, without passwords, and with ``more``."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (MlflowException, OSError, SQLAlchemyError) as error:
            # Not chained: MLflow's messages quote the address, password included.
            message = shortened(one_line(redacted_message(str(error))), SAID_LIMIT)
            raise TrackingError(f"MLflow at {redacted_address(self._uri, '')}: {message}{more()}") from None

    def _links(self, experiment: str, sweep_id: str) -> Links:
        base = redacted_address(self._uri, "") if self._is_server else VIEWER
        return Links(not self._is_server, view_address(base, experiment, sweep_id, "table"))

    def _experiment(self, client: MlflowClient, sweep_name: str) -> str:
        """Return the id of the experiment, which is made or restored if needed."""
        from mlflow.exceptions import MlflowException

        name = runs.experiment_name(sweep_name)
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


def _write_views(client: MlflowClient, experiment_id: str, of: ViewOf, is_own: bool) -> None:
    """Write the views of a sweep, and delete outdated ones; ``is_own`` as in :func:`runs.experiment_tags`."""
    write_tags(
        client, experiment_id, of.title, lambda present: runs.experiment_tags(of, experiment_id, present, is_own)
    )


def _experiment_of(client: MlflowClient, parent_run: str) -> str:
    """Return the id of the experiment of a run; raise :class:`TrackingError` if there is no such run."""
    from mlflow.exceptions import MlflowException

    where = f"the run {parent_run} (tracking.parent_run, or MLFLOW_RUN_ID)"
    try:
        info = client.get_run(parent_run).info
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise TrackingError(f"{where} is not in the store {redacted_address(client.tracking_uri, '')}") from None
    if info.lifecycle_stage == "deleted":
        raise TrackingError(f"{where} was deleted")
    return str(info.experiment_id)


# The artifacts of a combination and of a sweep.


STRUCTURE_FILE = "model.txt"
STRUCTURE_TAG = "model.structure"

MOST_STRUCTURE_LINES = 5000
"""Of the tree; of a model with more calls the deepest levels are left out."""
_DIGEST_LINE = "structure"


def structure_text(record: Path) -> str | None:
    """Return the tree of the layers in the record of an analysis, its digest in the last line; None if there is no such record.

    Raises:
        Damaged: the file is not a record.
    """
    if not record.is_file():
        return None
    found = Record.from_dict(read_json(record))
    if found.status != "ok" or found.observations is None:
        return None
    table = LayerTable.from_dict(found.observations)
    depth = None
    ending = f"{_DIGEST_LINE}  {structure_digest(table)}\n"
    if len(table.rows) > MOST_STRUCTURE_LINES:
        rows_by_depth = Counter(row.depth for row in table.rows)
        depth, lines = 0, rows_by_depth[0] + rows_by_depth[1]
        while lines <= MOST_STRUCTURE_LINES:
            depth += 1
            lines += rows_by_depth[depth + 1]
        ending = f"Levels below {depth} are left out; layers.csv has them.\n{ending}"
    return f"{tree(table, depth=depth)}\n{ending}"


def structure_digest(table: LayerTable) -> str:
    """12 hexadecimal digits, the same for models with the same modules and parameters, whatever they are run on."""
    modules = {row.path: (row.path, row.type, row.params, row.trainable) for row in table.rows}
    content = json.dumps(sorted(modules.values()), separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def structure_tag(folder: Path) -> dict[str, str]:
    """Return the tag with the digest of the structure below ``folder``; empty if there is none."""
    path = folder / STRUCTURE_FILE
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines()
        words = lines[-1].split() if lines else []  # the user may have left a file of this name
        if len(words) == 2 and words[0] == _DIGEST_LINE:
            return {STRUCTURE_TAG: words[1]}
    return {}


_OF_SWEEP = ("comparison.md", "comparison.csv", "comparison.json", "report.html")


def stage_combination(target: Path, folder: Path, combination_id: str, config: Mapping[str, Any] | None) -> None:
    """Copy a combination's files below ``target``, and write its resolved config.

    ``records/*.json``, ``layers.{csv,html}``, ``operators.csv`` and ``memory/*.csv``, and what the passes left:
    ``trace.json.gz``, ``lines_*.txt``. Made of them: ``model.txt``, ``tables/{layers,operators}.json``.
    """
    for name in ("records", "memory"):
        for path in sorted((folder / name / combination_id).glob("[!.]*")):
            _copy(path, target / name / path.name)
    for name in ("layers", "operators"):
        for path in sorted((folder / name).glob(f"{combination_id}.*")):
            _copy(path, target / f"{name}{path.suffix}")
    left = folder / "artifacts" / combination_id
    for path in sorted(left.rglob("[!.]*")):
        _copy(path, target / path.relative_to(left))
    if config is not None:
        write_json(target / "config.json", config, durable=False)
        _copy(target / "config.json", target / "config.json")
    tables = ("layers.csv", runs.LAYERS, runs.layers), ("operators.csv", runs.OPERATORS, runs.operators)
    for name, table, make in tables:
        if (target / name).is_file():
            _make(target / table, partial(_read_into, make, target / name))
    _make(target / STRUCTURE_FILE, lambda: structure_text(target / "records" / "analysis-r0.json"))


def _read_into(make: Callable[[str], Any], source: Path) -> Any:
    """Return what is made of the text of a file; an error of reading it is one of making it."""
    return make(source.read_text(encoding="utf-8"))


def stage_sweep(target: Path, folder: Path, comparison: Comparison) -> None:
    """Copy the comparison and the report of ``folder`` to ``target``, those that there are.

    Made of ``comparison``: ``tables/comparison.json``.
    """
    for name in _OF_SWEEP:
        _copy(folder / name, target / name)
    _make(target / runs.COMPARISON, lambda: runs.combinations(comparison))


def _copy(path: Path, target: Path) -> None:
    """Copy a file, if it is one; text without the passwords of addresses, because others than the machine's owner read it."""
    if not path.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    content = path.read_bytes()
    if path.suffix != ".gz":  # a trace
        # Bytes that are no text pass through unchanged, and so do the ends of lines.
        text = without_credentials(content.decode("utf-8", "surrogateescape"))
        content = text.encode("utf-8", "surrogateescape")
    target.write_bytes(content)


def _make(target: Path, make: Callable[[], Any]) -> None:
    """Write what ``make`` returns, text or a table, unless it is None or has no rows."""
    try:
        made = make()
    except Exception:
        # It repeats what other files hold: whatever is wrong with it, those are worth more.
        _LOG.warning("there is no %s", target.name, exc_info=True)
        return
    if isinstance(made, str):
        write_atomically(target, without_credentials(made), durable=False)
    elif made is not None and made["data"]:
        write_json(target, made, compact=True, durable=False)
