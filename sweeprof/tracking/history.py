"""The history of a combination over sweeps: one long-lived run per combination, a point per sweep, so that MLflow draws the trend.

A point has a step of its sweep, in the order of creation, and the sweep's creation as its time: whatever is sent in whatever
order, and again, ends as one line in the order of the sweeps.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeprof.report.markdown import escaped
from sweeprof.results.compare import Comparison
from sweeprof.text import one_line, shortened
from sweeprof.tracking.connection import until_done
from sweeprof.tracking.descriptions import capped
from sweeprof.tracking.runs import (
    NAME_LIMIT,
    all_runs,
    axis_params,
    experiment_name,
    metric_values,
    milliseconds,
    name_of,
)
from sweeprof.tracking.tables import tracked_keys
from sweeprof.tracking.views import HISTORY, ViewOf, run_address, trend_tag, write_tags

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

STEP_TAG = "sweeprof.step"
"""The newest step of a run."""
_NOTE = (
    "The history of sweeps measured by sweeprof: a run per combination, a point per sweep, drawn in the view *trend*."
)
_MOST_VERSIONS = 20
_PER_SECOND = 1_000_000
"""Steps; MLflow's pages have them as floating-point numbers, which are exact for three centuries."""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One sweep's entry in the history of a combination."""

    combination_id: str
    step: int
    at_ms: int
    metrics: dict[str, float]
    """Empty for a combination that was not measured."""
    name: str
    params: dict[str, str]
    tags: dict[str, str]


def history_name(sweep_name: str) -> str:
    """The experiment with the histories of all sweeps of a name."""
    return f"{shortened(experiment_name(sweep_name), NAME_LIMIT - 8)} history"


def record_history(client: MlflowClient, experiment_id: str, comparison: Comparison, of: ViewOf, home: str) -> None:
    """Add the sweep to the history of its combinations; adding it again changes what has changed.

    Args:
        of: the views of the sweep.
        home: id of the experiment with the sweep's runs.

    Raises:
        mlflow.exceptions.MlflowException: MLflow cannot be reached, or refuses.
    """
    known = until_done(lambda _: _known(client, experiment_id))
    begun = False
    for point in points(comparison, of, home):
        runs = known.get(point.combination_id, [])
        begun |= not runs and bool(point.metrics)
        until_done(functools.partial(_add, client, experiment_id, point, runs))
    if begun:
        _make_single(client, experiment_id, points(comparison, of, home))
    trend = ViewOf(HISTORY, "trend", "", 0, {}, {name: of.keys[name] for name in of.headlines})
    tags = {**trend_tag(trend), "mlflow.note.content": _NOTE}
    write_tags(client, experiment_id, "the history", lambda _: tags)


def _make_single(client: MlflowClient, experiment_id: str, added: Iterable[HistoryEntry]) -> None:
    """Leave one run per combination, where another sweep began the same at this moment, or a request was repeated on its way."""
    known = until_done(lambda _: _known(client, experiment_id))
    for point in added:
        runs = known.get(point.combination_id, [])
        if len(runs) > 1:
            until_done(functools.partial(_add, client, experiment_id, point, runs))


def step_of(created: str, sweep_id: str) -> int:
    """The step of a sweep, another for each: its second of creation, and a number from its id for those of one second."""
    return milliseconds(created) // 1000 * _PER_SECOND + zlib.crc32(sweep_id.encode()) % _PER_SECOND


def points(comparison: Comparison, of: ViewOf, home: str) -> Iterator[HistoryEntry]:
    """The point of every combination: its headlines, in the units in which runs have them."""
    keys, at, step = (
        tracked_keys(comparison),
        milliseconds(comparison.created),
        step_of(comparison.created, comparison.sweep_id),
    )
    versions, sweep = _versions(comparison), run_address("", home, of.parent_id)
    for row in comparison.rows:
        yield HistoryEntry(
            combination_id=row.combination_id,
            step=step,
            at_ms=at,
            metrics=metric_values(row, {name: keys[name] for name in of.headlines}) if row.status == "ok" else {},
            name=name_of(comparison, row, comparison.axes),
            params=axis_params(row, row.axes),
            tags={
                "sweeprof.kind": "history",
                "sweeprof.combination_id": row.combination_id,
                STEP_TAG: str(step),
                "sweeprof.versions": capped(versions),
                "mlflow.note.content": capped(f"Newest: [{escaped(of.title)}]({sweep}) · {escaped(versions)}"),
                "mlflow.source.name": capped(row.command),
                "mlflow.source.type": "LOCAL",
            },
        )


def _versions(comparison: Comparison) -> str:
    """Return the versions of the libraries: a combination keeps its history when they change, and they explain jumps."""
    found = comparison.environment.get("versions") or {}
    return ", ".join(
        f"{one_line(str(name))} {one_line(str(version))}" for name, version in [*found.items()][:_MOST_VERSIONS]
    )


def _known(client: MlflowClient, experiment_id: str, combination_id: str | None = None) -> dict[str, list[Run]]:
    """The runs by combination id, the oldest first; more than one where two sweeps began a history at once."""
    condition = "tags.`sweeprof.kind` = 'history'"
    if combination_id is not None:
        condition += f" and tags.`sweeprof.combination_id` = '{combination_id}'"
    found: dict[str, list[Run]] = {}
    for run in sorted(
        all_runs(client, experiment_id, condition), key=lambda run: (run.info.start_time, run.info.run_id)
    ):
        found.setdefault(run.data.tags.get("sweeprof.combination_id", ""), []).append(run)
    return found


def _add(client: MlflowClient, experiment_id: str, point: HistoryEntry, runs: Sequence[Run], tried: int) -> None:
    """Add a point to the history that ``runs`` are; runs of an earlier attempt are searched for first."""
    from mlflow.exceptions import MlflowException

    def look() -> list[Run]:
        return _known(client, experiment_id, point.combination_id).get(point.combination_id, [])

    runs = look() if tried else runs
    try:
        _put(client, experiment_id, point, runs)
    except MlflowException:
        # Another sweep that ends at this moment may have replaced the run, or merged it into another.
        there = look()
        if [run.info.run_id for run in there] == [run.info.run_id for run in runs]:
            raise
        _put(client, experiment_id, point, there)


def _put(client: MlflowClient, experiment_id: str, point: HistoryEntry, runs: Sequence[Run]) -> None:
    _merge(client, runs)
    if runs:
        _extend(client, experiment_id, runs[0], point)
    elif point.metrics:
        _begin(client, experiment_id, point, point.tags, _metrics(point))


def _begin(
    client: MlflowClient, experiment_id: str, point: HistoryEntry, tags: Mapping[str, str], metrics: Sequence[Metric]
) -> str:
    """The id of a new run."""
    # The step comes with the points: a run without it has none yet.
    first = {key: value for key, value in tags.items() if key != STEP_TAG}
    id = str(client.create_run(experiment_id, point.at_ms, first, point.name).info.run_id)
    _log(client, id, metrics, tags, point.params)
    client.set_terminated(id, "FINISHED", point.at_ms)
    return id


def _extend(client: MlflowClient, experiment_id: str, run: Run, point: HistoryEntry) -> None:
    """Add the point to its run; a run whose point of that step was another is replaced, as MLflow takes nothing back."""
    id = run.info.run_id
    newest = int(run.data.tags.get(STEP_TAG, "0"))
    if point.step > newest:
        if point.metrics:
            _log(client, id, _metrics(point), point.tags, point.params if newest == 0 else {})
        if run.info.status != "FINISHED":  # who began it was ended
            client.set_terminated(id, "FINISHED", point.at_ms)
        return
    all_points = _points_of(client, run)
    there = {(metric.key, metric.value) for metric in all_points if metric.step == point.step}
    if there <= point.metrics.items():
        if len(there) < len(point.metrics):
            _log(client, id, _metrics(point))
        return
    others = [metric for metric in all_points if metric.step != point.step]
    if not others and not point.metrics:
        client.delete_run(id)
        return
    tags = {key: run.data.tags.get(key, text) for key, text in point.tags.items()}
    new = [*others, *_metrics(point)]
    heir = _begin(client, experiment_id, point, point.tags if point.step == newest else tags, new)
    _bequeath(client, id, heir, but=point.step)


def _merge(client: MlflowClient, runs: Sequence[Run]) -> None:
    """Give what the later runs of one combination have to the first."""
    for run in runs[1:]:
        _log(client, runs[0].info.run_id, _points_of(client, run))
        _bequeath(client, run.info.run_id, runs[0].info.run_id)


def _bequeath(client: MlflowClient, run_id: str, heir: str, but: int | None = None) -> None:
    """Delete a run whose points ``heir`` has, and give it those that another sweep has added meanwhile."""
    client.delete_run(run_id)
    # A run that is deleted takes no more; and MLflow keeps but one of equal points.
    left = _points_of(client, client.get_run(run_id))
    _log(client, heir, [metric for metric in left if metric.step != but])


def _points_of(client: MlflowClient, run: Run) -> list[Metric]:
    return [metric for key in run.data.metrics for metric in client.get_metric_history(run.info.run_id, key)]


def _metrics(point: HistoryEntry) -> list[Metric]:
    from mlflow.entities import Metric

    return [Metric(key, value, point.at_ms, point.step) for key, value in point.metrics.items()]


def _log(
    client: MlflowClient,
    run_id: str,
    metrics: Sequence[Metric],
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
) -> None:
    from mlflow.entities import Param, RunTag

    client.log_batch(
        run_id,
        metrics,
        [Param(key, value) for key, value in (params or {}).items()],
        [RunTag(key, value) for key, value in (tags or {}).items()],
        synchronous=True,
    )
