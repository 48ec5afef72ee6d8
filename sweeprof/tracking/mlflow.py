"""A sweep in MLflow: a run per sweep, a run per combination below it, and saved views that compare them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeprof.credentials import redacted_address, redacted_message, without_credentials
from sweeprof.errors import SweeprofError
from sweeprof.report.layers.text import tree
from sweeprof.results.compare import Comparison
from sweeprof.results.files import read_json, write_atomically, write_json
from sweeprof.results.layers import LayerTable
from sweeprof.results.record import Record
from sweeprof.text import one_line, shortened
from sweeprof.tracking import Links, SweepInfo, SweepOutcome, tables
from sweeprof.tracking.connection import (
    ENVIRONMENT,
    VIEWER,
    connected,
    dispensable,
    is_foreign,
    log_artifacts,
    retrying,
    until_done,
)
from sweeprof.tracking.history import history_name, record_history
from sweeprof.tracking.runs import (
    METRICS_TAG,
    Input,
    RunContent,
    delete_strays,
    experiment_name,
    experiment_tags,
    final_view,
    first_view,
    known_runs,
    log_inputs,
    run_contents,
    sweep_content,
    sweep_info,
    sweep_params,
    sweep_run,
    with_params,
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

        What fails for now is tried again until nothing has succeeded for :data:`~sweeprof.tracking.connection.GIVE_UP_S`.

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


# The files of a combination and of a sweep, laid out as a tracker shows them.


STRUCTURE_FILE = "model.txt"
STRUCTURE_TAG = "model.structure"

MOST_STRUCTURE_LINES = 5000
"""Of the tree; of a model with more calls the deepest levels are left out."""
_DIGEST_LINE = "structure"


def structure_text(record: Path) -> str | None:
    """The tree of the layers in the record of an analysis, its digest in the last line; None where there is no such record.

    Raises:
        Damaged: the file is not a record.
    """
    if not record.is_file():
        return None
    found = Record.from_dict(read_json(record))
    if found.status != "ok" or found.observations is None:
        return None
    table = LayerTable.from_dict(found.observations)
    depth = _deepest_drawn_level(table)
    left_out = [] if depth is None else [f"Levels below {depth} are left out; layers.csv has them."]
    return "\n".join([tree(table, depth=depth), *left_out, f"{_DIGEST_LINE}  {structure_digest(table)}", ""])


def structure_digest(table: LayerTable) -> str:
    """12 hexadecimal digits, the same for models with the same modules and parameters, whatever they are run on."""
    modules = {row.path: (row.path, row.type, row.params, row.trainable) for row in table.rows}
    content = json.dumps(sorted(modules.values()), separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def structure_tag(folder: Path) -> dict[str, str]:
    """The tag with the digest of the structure below ``folder``; empty where there is none."""
    path = folder / STRUCTURE_FILE
    last = path.read_text(encoding="utf-8").splitlines()[-1].split() if path.is_file() else []
    return {STRUCTURE_TAG: last[1]} if len(last) == 2 and last[0] == _DIGEST_LINE else {}


def _deepest_drawn_level(table: LayerTable) -> int | None:
    """The deepest level that is drawn; None: all."""
    if len(table.rows) <= MOST_STRUCTURE_LINES:
        return None
    rows = Counter(row.depth for row in table.rows)
    depth, lines = 0, 0
    while (lines := lines + rows[depth]) <= MOST_STRUCTURE_LINES:
        depth += 1
    return max(0, depth - 1)


_BINARY = {".gz"}
"""Traces."""
_OF_SWEEP = ("comparison.md", "comparison.csv", "comparison.json", "report.html")


def stage_combination(target: Path, folder: Path, combination_id: str, config: Mapping[str, Any] | None) -> None:
    """Copy a combination's files below ``target``, and write its resolved config.

    ``records/*.json``, ``layers.{csv,html}``, ``operators.csv`` and ``memory/*.csv``, and what the passes left:
    ``trace.json.gz``, ``lines_*.txt``. Made of them: ``model.txt``, ``tables/{layers,operators}.json``.
    """
    for name in ("records", "memory"):
        for path in sorted(p for p in (folder / name / combination_id).glob("[!.]*") if p.is_file()):
            _copy(path, target / name / path.name)
    for name in ("layers", "operators"):
        for path in sorted((folder / name).glob(f"{combination_id}.*")):
            _copy(path, target / f"{name}{path.suffix}")
    left = folder / "artifacts" / combination_id
    for path in sorted(path for path in left.rglob("[!.]*") if path.is_file()):
        _copy(path, target / path.relative_to(left))
    if config is not None:
        write_json(target / "config.json", config, durable=False)
        _copy(target / "config.json", target / "config.json")
    _make_from(target / "layers.csv", target / tables.LAYERS, tables.layers)
    _make_from(target / "operators.csv", target / tables.OPERATORS, tables.operators)
    _make(target / STRUCTURE_FILE, lambda: structure_text(target / "records" / "analysis-r0.json"))


def stage_sweep(target: Path, folder: Path, comparison: Comparison) -> None:
    """Copy the comparison and the report of ``folder`` to ``target``, those that there are.

    Made of ``comparison``: ``tables/comparison.json``.
    """
    for path in (folder / name for name in _OF_SWEEP):
        if path.is_file():
            _copy(path, target / path.name)
    _make(target / tables.COMPARISON, lambda: tables.combinations(comparison))


def add_extras(client: MlflowClient, run_id: str, staged: Path, inputs: Sequence[Input]) -> None:
    """Tag a run with which of its files are tables and what its model's structure is, and add its datasets.

    Raises:
        mlflow.exceptions.MlflowException: the server does not take them.
    """
    from mlflow.entities import RunTag

    tags = tables.tag_of(staged) | structure_tag(staged)
    if tags:
        client.log_batch(run_id, tags=[RunTag(key, text) for key, text in tags.items()], synchronous=True)
    log_inputs(client, run_id, inputs)


def _make_from(source: Path, target: Path, make: Callable[[str], Any]) -> None:
    if source.is_file():
        _make(target, lambda: make(source.read_text(encoding="utf-8")))


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


def _copy(path: Path, target: Path) -> None:
    """A tracker is read by others than the machine's owner: text loses the passwords of its addresses."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in _BINARY:
        shutil.copyfile(path, target)
        return
    # Bytes that are no text pass through unchanged, and so do the ends of lines.
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    target.write_bytes(without_credentials(text).encode("utf-8", "surrogateescape"))
