"""The history of a combination over sweeps: one long-lived run per combination, a point per sweep, so that MLflow draws the trend.

A point has a step of its sweep, in the order of creation, and the sweep's creation as its time: whatever is sent in whatever
order, and again, ends as one line in the order of the sweeps.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeprof.report.markdown import escaped
from sweeprof.results.compared_rows import Comparison
from sweeprof.text import one_line, shortened
from sweeprof.tracking.connection import is_unavailable
from sweeprof.tracking.runs import (
    NAME_LIMIT,
    all_runs,
    axis_params,
    capped,
    experiment_name,
    metric_values,
    milliseconds,
    name_of,
    tracked_keys,
)
from sweeprof.tracking.views import HISTORY, NOTE, ViewOf, run_address, trend_tag, write_tags

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
    """Return the name of the experiment with the histories of all sweeps of a name."""
    return f"{shortened(experiment_name(sweep_name), NAME_LIMIT - 8)} history"


def record_history(
    client: MlflowClient,
    experiment_id: str,
    comparison: Comparison,
    of: ViewOf,
    home: str,
    on_progress: Callable[[], object],
) -> None:
    """Add the sweep to the history of its combinations; adding it again changes what has changed.

    Args:
        of: the views of the sweep.
        home: id of the experiment with the sweep's runs.
        on_progress: is called after each combination.

    Raises:
        mlflow.exceptions.MlflowException: MLflow cannot be reached, or refuses.
    """
    from mlflow.exceptions import MlflowException

    known = _known(client, experiment_id)
    created = False
    for point in points(comparison, of, home):
        runs = known.get(point.combination_id, [])
        if runs or point.metrics:
            created |= not runs
            try:
                _add(client, experiment_id, point, runs)
            except MlflowException as error:
                if is_unavailable(error):
                    raise
                # Another sweep that ends at this moment may have replaced the run.
                runs = _known(client, experiment_id).get(point.combination_id, [])
                _add(client, experiment_id, point, runs)
            on_progress()
    if created:
        # Another sweep may have begun the same history at this moment, or a repeated request may have created a run twice.
        known = _known(client, experiment_id)
        for point in points(comparison, of, home):
            runs = known.get(point.combination_id, [])
            if len(runs) > 1:
                _add(client, experiment_id, point, runs)
    trend = ViewOf(HISTORY, "trend", "", 0, {}, {name: of.keys[name] for name in of.headlines})
    tags = {**trend_tag(trend), NOTE: _NOTE}
    write_tags(client, experiment_id, "the history", lambda _: tags)


def step_of(created: str, sweep_id: str) -> int:
    """Return the step of a sweep, which no other has: its second of creation, and a number from its id within that second."""
    return milliseconds(created) // 1000 * _PER_SECOND + zlib.crc32(sweep_id.encode()) % _PER_SECOND


def points(comparison: Comparison, of: ViewOf, home: str) -> Iterator[HistoryEntry]:
    """Yield the point of every combination: its headlines, in the units in which runs have them."""
    tracked, at = tracked_keys(comparison), milliseconds(comparison.created)
    keys = {name: tracked[name] for name in of.headlines}
    step = step_of(comparison.created, comparison.sweep_id)
    # A combination keeps its history when the versions of libraries change, and they explain jumps.
    known = list((comparison.environment.get("versions") or {}).items())[:_MOST_VERSIONS]
    versions = ", ".join(one_line(f"{name} {version}") for name, version in known)
    sweep = run_address("", home, of.parent_id)
    for row in comparison.rows:
        yield HistoryEntry(
            combination_id=row.combination_id,
            step=step,
            at_ms=at,
            metrics=metric_values(row, keys) if row.status == "ok" else {},
            name=name_of(comparison, row, comparison.axes),
            params=axis_params(row, row.axes),
            tags={
                "sweeprof.kind": "history",
                "sweeprof.combination_id": row.combination_id,
                STEP_TAG: str(step),
                "sweeprof.versions": capped(versions),
                NOTE: capped(f"Newest: [{escaped(of.title)}]({sweep}) · {escaped(versions)}"),
                "mlflow.source.name": capped(row.command),
                "mlflow.source.type": "LOCAL",
            },
        )


def _known(client: MlflowClient, experiment_id: str) -> dict[str, list[Run]]:
    """Return the runs by combination id, the oldest first; there is more than one if two sweeps began a history at once."""
    found: dict[str, list[Run]] = {}
    for run in all_runs(client, experiment_id, "tags.`sweeprof.kind` = 'history'"):
        found.setdefault(run.data.tags.get("sweeprof.combination_id", ""), []).append(run)
    return found


def _add(client: MlflowClient, experiment_id: str, point: HistoryEntry, runs: Sequence[Run]) -> None:
    """Add a point to the history that ``runs`` are, and leave one run.

    MLflow takes no point back: if there is another one of this sweep, a new run gets those of the other sweeps.
    """
    from mlflow.entities import Metric

    newest = max((int(run.data.tags.get(STEP_TAG, "0")) for run in runs), default=0)
    tags = point.tags
    others: dict[str, list[Metric]] = {}  # points of other sweeps, by the id of their run
    is_outdated = False
    for run in runs:
        others[run.info.run_id] = []
        if len(runs) > 1 or point.step <= newest:
            for old in _points_of(client, run):
                if old.step != point.step:
                    others[run.info.run_id].append(old)
                elif point.metrics.get(old.key) != old.value:
                    is_outdated = True
        if point.step < newest and run.data.tags.get(STEP_TAG) == str(newest):
            tags = {key: run.data.tags.get(key, text) for key, text in point.tags.items()}
    left = list(runs)
    kept = None
    if runs and not is_outdated:
        kept = left.pop(0)
        others.pop(kept.info.run_id)
    metrics = [metric for moved in others.values() for metric in moved]
    if not metrics and not point.metrics:
        for run in left:
            client.delete_run(run.info.run_id)
        return
    if kept is None:
        # The step comes with the points: a run without it has none yet.
        first = {key: text for key, text in tags.items() if key != STEP_TAG}
        kept = client.create_run(experiment_id, point.at_ms, first, point.name)
    run_id = kept.info.run_id
    metrics += [Metric(key, value, point.at_ms, point.step) for key, value in point.metrics.items()]
    _log(client, run_id, metrics, tags, point.params)
    if kept.info.status != "FINISHED":  # also if the process that created it was killed
        client.set_terminated(run_id, "FINISHED", point.at_ms)
    for run in left:
        client.delete_run(run.info.run_id)
        # A run that is deleted takes no more: what another sweep has added until now is moved, too. Equal points are stored once.
        late = _points_of(client, client.get_run(run.info.run_id))
        _log(client, run_id, [old for old in late if old.step != point.step])


def _points_of(client: MlflowClient, run: Run) -> list[Metric]:
    found: list[Metric] = []
    for key in run.data.metrics:
        found += client.get_metric_history(run.info.run_id, key)
    return found


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
