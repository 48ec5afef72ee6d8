"""The content of a tracker's runs for a combination and its sweep, as plain data within the tracker's limits."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sweeprof.credentials import without_credentials
from sweeprof.numbers import fixed_key, fixed_value
from sweeprof.report.answer import STEPS, answer, main_metric, metric_of
from sweeprof.report.cells import ratio_text, verdict_note
from sweeprof.report.columns import baseline_text, called_metrics, metric_title, shown_metrics
from sweeprof.report.figure import backend_colours
from sweeprof.report.markdown import escaped
from sweeprof.results.comparison import Comparison, Row, reason_of, value_of
from sweeprof.results.environment import user_name
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.record import Record
from sweeprof.text import axis_number, axis_text, one_line, shortened
from sweeprof.tracking import SweepInfo, SweepOutcome
from sweeprof.tracking.descriptions import baseline_names, capped, description, links_to, outcome_text
from sweeprof.tracking.tables import INTERVAL_ENDS, INTERVAL_OF, safe_key, tracked_keys, unique_keys
from sweeprof.tracking.views import (
    HEADLINES,
    HISTORY,
    NOTE,
    PLACE_TAG,
    TREND,
    VERDICT_TAG,
    ViewOf,
    newest_view,
    run_address,
    view_address,
    view_tags,
)
from sweeprof.tracking.views import links as view_links

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


# Ratios to the baseline and verdicts of a combination as metrics and tags, so that MLflow sorts and filters by them.


RATIOS = "vs_baseline/"
"""Begins the key of a ratio: the value over the baseline's, whatever is better; 1 for a baseline itself."""


class Ratios:
    """The ratios and verdicts of a comparison; the time of a step is ``latency``, in inference and in training.

    Args:
        comparison: whose metrics with a better direction are compared.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._main = main_metric(comparison)
        infos: list[MetricInfo] = [self._main] if self._main else []
        infos += [info for info in called_metrics(comparison) if info not in infos and info.better is not None]
        names = {info.name: info.name.removesuffix("_bytes").replace("/", "_") for info in infos}
        if self._main and self._main.name in STEPS:
            names[self._main.name] = "latency"
        self._keys = unique_keys({name: RATIOS + short for name, short in names.items()})

    def main_key(self, rows: tuple[Row, ...]) -> str:
        """Return the key of the main metric's ratio; empty if no row is compared."""
        key = self._keys[self._main.name] if self._main else ""
        return key if any(key in self.metrics(row) for row in rows if not row.is_baseline) else ""

    def metrics(self, row: Row) -> dict[str, float]:
        """Return the row's ratios by key, those that it has."""
        found = {}
        for name, key in self._of(row).items():
            ratio = row.cells[name].ratio if row.baseline_has_values else None
            if row.is_baseline and value_of(row, name):
                ratio = 1.0
            if ratio is not None and math.isfinite(ratio) and row.has_values:
                found[key] = fixed_value(ratio, "ratio")
        return found

    def tags(self, row: Row) -> dict[str, str]:
        """Return the row's verdicts; without one on the main metric, the reason in one word."""
        main = metric_of(row, self._main) if self._main else ""
        cells = {name: row.cells[name] for name in self._of(row)} if row.has_values else {}
        tags = {
            f"{VERDICT_TAG}.{key.removeprefix(RATIOS)}": str(cells[name].verdict)
            for name, key in self._of(row).items()
            if name != main and name in cells and cells[name].verdict
        }
        if not row.has_values:
            verdict: str = row.status
        elif row.is_baseline:
            verdict = "baseline"
        elif main in cells and cells[main].verdict:
            verdict = str(cells[main].verdict)
        else:
            verdict = "not_measured" if row.baseline_has_values else "no_baseline"
        return {VERDICT_TAG: verdict, **tags}

    def _of(self, row: Row) -> dict[str, str]:
        """The key of each metric that the row has, by name; the step of the row takes the key of the main metric."""
        keys = {name: key for name, key in self._keys.items() if name in row.cells}
        if self._main:
            step = metric_of(row, self._main)
            if step != self._main.name:
                keys.pop(self._main.name, None)
            if step in row.cells:
                keys[step] = self._keys[self._main.name]
        return keys


# The content of a tracker's runs for a combination and its sweep, as plain data within the tracker's limits.


RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

# MLflow's limits: it truncates longer values at the end, where a reason or a path is most informative.
NAME_LIMIT = 250
PARAM_LIMIT = 6000

METRICS_TAG, PARAMS_TAG = "sweeprof.metrics", "sweeprof.params"
"""The keys of the metrics and parameters that sweeprof has logged, one a line: others that a run has are somebody else's."""
OWN_TAGS = ("sweeprof.", VERDICT_TAG, "answer", "confidence")
"""Beginnings of the keys of tags that are deleted where they no longer apply."""
_PART_LIMIT = 40
"""Of one axis in a run's name; the column that shows it is narrower still."""
_SHORT = {"batch_size": "b"}


@dataclass(frozen=True, slots=True)
class RunContent:
    """A run of the tracker."""

    name: str
    start_ms: int
    end_ms: int
    """Milliseconds since 1970, UTC, as when the combination was measured; also the time of its metrics."""
    status: RunStatus | None
    """None while the run is not complete."""
    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, float]
    config: Mapping[str, object] | None = None
    """The resolved config; None for a combination that left no record."""
    inputs: tuple[Input, ...] = ()


def milliseconds(iso: str) -> int:
    """An ISO 8601 time in milliseconds since 1970; UTC where it names no zone."""
    time = datetime.fromisoformat(iso)
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def time_span(comparison: Comparison, records: Sequence[Record]) -> tuple[int, int]:
    """From when until when the records were measured, in milliseconds; the sweep's beginning where there are none."""
    timed = [record for record in records if record.started]
    start = min((milliseconds(r.started) for r in timed), default=milliseconds(comparison.created))
    return start, max((milliseconds(r.started) + round(r.wall_s * 1000) for r in timed), default=start)


def run_contents(
    comparison: Comparison,
    records: Sequence[Record],
    ending: SweepOutcome | None,
    parent_id: str,
    experiment_id: str = "0",
) -> Iterator[tuple[str, RunContent]]:
    """Id and run of every combination; ``parent_id`` is the run of the sweep.

    Args:
        ending: of the sweep; None while others are measured: nothing is compared yet.
    """
    by_id: dict[str, list[Record]] = {}
    for record in records:
        by_id.setdefault(record.combination_id, []).append(record)
    places, colours, keys = _places(comparison), _colours(comparison), tracked_keys(comparison)
    titles = {info.name: metric_title(info, comparison.rows) for info in shown_metrics(comparison)}
    links = links_to(parent_id, experiment_id)
    ratios = Ratios(comparison)
    for row in comparison.rows:
        own = by_id.get(row.combination_id, [])
        start, end = time_span(comparison, own)
        params = axis_params(row, comparison.axes)
        metrics, verdicts = metric_values(row, keys), {}
        if ending is not None:
            metrics, verdicts = metrics | ratios.metrics(row), ratios.tags(row)
        place = {
            PLACE_TAG: f"{places[row.combination_id]:05d}",
            "mlflow.parentRunId": parent_id,
            "mlflow.runColor": colours[row.combination_id],
        }
        yield (
            row.combination_id,
            RunContent(
                name=run_name(comparison, row),
                start_ms=start,
                end_ms=end,
                status=_status(row, own, ending),
                tags={
                    **_tags(comparison, row, titles, metrics, params),
                    "mlflow.note.content": outcome_text(row, titles, links),
                    **place,
                    **verdicts,
                },
                params=params,
                metrics=metrics,
                config=own[-1].config if own else None,
                inputs=dataset_inputs(record.config for record in own[-1:]),
            ),
        )


def _places(comparison: Comparison) -> dict[str, int]:
    """The rows' order by combination id; those that differ in the baseline's axes alone stand beside each other."""
    axes = sorted(comparison.axes, key=lambda axis: axis in comparison.baseline)
    ranks: dict[str, dict[str, int]] = {}
    for axis in axes:
        values = [row.axes.get(axis) for row in comparison.rows]
        if all(axis_number(value) is not None for value in values):
            values.sort()
        ranks[axis] = {text: rank for rank, text in enumerate(dict.fromkeys(map(axis_text, values)))}
    ordered = sorted(comparison.rows, key=lambda row: [ranks[axis][axis_text(row.axes.get(axis))] for axis in axes])
    return {row.combination_id: place for place, row in enumerate(ordered, 1)}


def run_name(comparison: Comparison, row: Row) -> str:
    """The values of the varying axes, e.g. ``lenet5/torch/b8``: what is alike in all runs is not repeated in each."""
    axes = comparison.varying_axes() or tuple(a for a in ("model", "backend") if a in comparison.axes)
    return name_of(comparison, row, axes)


def name_of(comparison: Comparison, row: Row, axes: Iterable[str]) -> str:
    """The values of the given axes as the name of a run."""
    return shortened("/".join(_name_part(a, row.axes.get(a)) for a in axes) or one_line(comparison.name), NAME_LIMIT)


def _status(row: Row, records: Sequence[Record], ending: SweepOutcome | None) -> RunStatus:
    if row.status == "ok":
        return "FINISHED"
    unmeasured = not records or row.status in ("skipped", "lost")
    return "KILLED" if ending == "interrupted" and unmeasured else "FAILED"


def _name_part(axis: str, value: object) -> str:
    text = shortened(axis_text(value), _PART_LIMIT)
    if isinstance(value, str):
        return text
    return f"{_SHORT[axis]}{text}" if axis in _SHORT else f"{axis.rpartition('.')[2]}={text}"


def axis_params(row: Row, axes: Iterable[str]) -> dict[str, str]:
    """The row's values of these axes as parameters."""
    return {safe_key(axis): shortened(axis_text(row.axes[axis]), PARAM_LIMIT) for axis in axes if axis in row.axes}


def metric_values(row: Row, keys: Mapping[str, str]) -> dict[str, float]:
    """The row's values by tracked key; ``keys`` has that of each metric, and of the ends of an interval, to track."""
    found = {}
    for name, key in keys.items():
        value = value_of(row, name)
        if value is not None:
            found[key] = fixed_value(value, row.cells[name].measurement.unit)
    interval = row.cells[INTERVAL_OF].measurement.interval if keys.get(INTERVAL_OF) in found else None
    if interval is not None:
        ends = zip(INTERVAL_ENDS, interval, strict=True)
        unit = row.cells[INTERVAL_OF].measurement.unit
        found |= {keys[name]: fixed_value(end, unit) for name, end in ends if name in keys and math.isfinite(end)}
    return found


def _tags(
    comparison: Comparison, row: Row, judged: Iterable[str], metrics: Iterable[str], params: Iterable[str]
) -> dict[str, str]:
    missing = [f"{i.name}: {reason_of(row, i.name)}" for i in comparison.metrics if value_of(row, i.name) is None]
    tags = {
        "sweeprof.kind": "combination",
        "sweeprof.sweep_id": comparison.sweep_id,
        "sweeprof.combination_id": row.combination_id,
        "sweeprof.status": row.status,
        "sweeprof.reason": one_line(row.reason or ""),
        "sweeprof.missing": "\n".join(missing),
        "sweeprof.baseline": "" if row.baseline_id is None else row.baseline_id,
        "sweeprof.verdicts": "\n".join(_verdicts(row, judged)),
        "sweeprof.misses": "\n".join(row.misses),
        "sweeprof.pareto": "yes" if row.on_front else "",
        METRICS_TAG: "\n".join(metrics),
        PARAMS_TAG: "\n".join(params),
        "mlflow.source.name": row.command,
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": str((comparison.environment.get("git") or {}).get("revision") or ""),
    }
    return {key: capped(text) for key, text in tags.items() if text}


def _verdicts(row: Row, judged: Iterable[str]) -> Iterator[str]:
    """Return the lines of a run's description about verdicts: the baseline, then one line per metric with a verdict."""
    for name in judged:
        cell = row.cells.get(name)
        if cell is not None and cell.verdict is not None:
            yield f"{name}: {ratio_text(cell)} ({cell.verdict}: {verdict_note(cell)})"


def _colours(comparison: Comparison) -> dict[str, str]:
    """The runs' colours by combination id."""
    # A single backend's colour would say nothing: then the models, or what else varies, take the colours.
    varying = comparison.varying_axes()
    axis = next((a for a in ("backend", "model", *varying) if a in varying), "backend")
    names = {row.combination_id: axis_text(row.axes.get(axis)) for row in comparison.rows}
    colours = backend_colours(names.values())
    return {id: colours[name] for id, name in names.items()}


# Datasets as inputs of runs, so that MLflow shows and searches them.


# MLflow refuses more (its validation.py).
_NAME_LIMIT, _SOURCE_LIMIT = 500, 65_535
MOST_INPUTS = 100
"""Of one run."""
_NOT_CONTENT = ("preload", "preload_for")


@dataclass(frozen=True, slots=True)
class Input:
    """A dataset of a run."""

    name: str
    digest: str
    """Of its settings: two combinations with equal ones saw the same samples."""
    source: str
    """Its settings as JSON."""
    context: str
    """The use of the data: ``inference`` or ``training``."""


def dataset_input(config: Mapping[str, object] | None) -> Input | None:
    """The dataset that a combination's resolved config names; None where it names none."""
    dataset = (config or {}).get("dataset")
    if not isinstance(dataset, Mapping) or not dataset:
        return None
    content = {key: value for key, value in dataset.items() if key not in _NOT_CONTENT}
    source = without_credentials(json.dumps(content, sort_keys=True, default=str))
    name = str(content.get("_target_", "dataset")).rpartition(".")[2]
    return Input(
        name=shortened(one_line(name), _NAME_LIMIT) or "dataset",
        digest=hashlib.sha256(source.encode()).hexdigest()[:12],
        source=shortened(source, _SOURCE_LIMIT),
        context=str((config or {}).get("mode", "inference")),
    )


def dataset_inputs(configs: Iterable[Mapping[str, object] | None]) -> tuple[Input, ...]:
    """Return the inputs of several combinations, each once."""
    found = dict.fromkeys(made for config in configs if (made := dataset_input(config)) is not None)
    return tuple(found)[:MOST_INPUTS]


def log_inputs(client: MlflowClient, run_id: str, inputs: Sequence[Input]) -> None:
    """Add the inputs to a run; one that it has already is not added again.

    Raises:
        mlflow.exceptions.MlflowException: the server does not take them.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.exceptions import MlflowException

    made = [
        DatasetInput(
            Dataset(one.name, one.digest, "sweeprof", one.source), [InputTag("mlflow.data.context", one.context)]
        )
        for one in inputs
    ]
    if made:
        try:
            client.log_inputs(run_id, datasets=made)
        except MlflowException:
            # MLflow refuses one of two sweeps that bring the same dataset at one moment; now it is there for both.
            client.log_inputs(run_id, datasets=made)


# The runs that MLflow already has.


PAGE = 500
"""Runs per request: a server takes up to 11 ms for each (measured with MLflow 3.17), and must answer within the time limit."""


def all_runs(client: MlflowClient, experiment: str, condition: str) -> list[Run]:
    """All runs for which ``condition``, in MLflow's language, holds, the oldest first."""
    runs: list[Run] = []
    token: str | None = ""
    while token is not None:
        page = client.search_runs([experiment], condition, max_results=PAGE, page_token=token or None)
        runs += page
        token = page.token or None
    return sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))


def runs_of_sweep(client: MlflowClient, experiment: str, sweep_id: str, kind: str) -> list[Run]:
    """The runs of a sweep, of the kind ``sweep`` or ``combination``.

    There is more than one for the same thing if a request was repeated whose response was lost.
    """
    condition = f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = '{kind}'"
    found = all_runs(client, experiment, condition)
    return sorted(found, key=lambda run: run.info.status == "RUNNING")  # those that nobody completed come last


def sweep_run(client: MlflowClient, experiment: str, sweep: SweepInfo) -> Run:
    """The run of the sweep, created if there is none."""
    found = runs_of_sweep(client, experiment, sweep.sweep_id, "sweep")
    if found:
        return found[0]
    content = opened(sweep)
    return client.create_run(experiment, content.start_ms, dict(content.tags), content.name)


def must_replace(run: Run, content: RunContent) -> bool:
    """True if MLflow cannot change the run to ``content``: it changes no parameter and no start, and removes no metric."""
    there = run.data
    for key, text in content.params.items():
        if there.params.get(key, text) != text:
            return True
    own_params = set(there.tags.get(PARAMS_TAG, "").split("\n"))
    own_metrics = set(there.tags.get(METRICS_TAG, "").split("\n"))
    if own_params & (there.params.keys() - content.params.keys()):
        return True
    if own_metrics & (there.metrics.keys() - content.metrics.keys()):
        return True
    # Of a combination that was not measured the start is the sweep's.
    return run.info.start_time != content.start_ms and not there.metrics


def replaced(client: MlflowClient, run: Run, content: RunContent) -> Run:
    """Delete a run, and create one that has what others have logged to it, apart from artifacts."""
    from mlflow.entities import Metric, Param

    there = run.data
    foreign_tags = {key: text for key, text in there.tags.items() if not key.startswith((*OWN_TAGS, "mlflow."))}
    own_params = {*there.tags.get(PARAMS_TAG, "").split("\n"), *content.params}
    own_metrics = {*there.tags.get(METRICS_TAG, "").split("\n"), *content.metrics}
    tags = {**foreign_tags, **content.tags}
    new = client.create_run(run.info.experiment_id, content.start_ms, tags, content.name)
    client.log_batch(
        new.info.run_id,
        [Metric(key, value, content.start_ms, 0) for key, value in there.metrics.items() if key not in own_metrics],
        [Param(key, text) for key, text in there.params.items() if key not in own_params],
        synchronous=True,
    )
    client.delete_run(run.info.run_id)
    return client.get_run(new.info.run_id)


# The content of a tracker's run for a whole sweep, as plain data; reads nothing but the sweep's ``comparison.md``.


_EXPERIMENT_NOTE = "Sweeps measured by sweeprof"
"""Begins the description of an experiment; one that somebody has written begins otherwise, and stays."""
_EXPECTED = ("latency/forward", "memory/added_bytes", "throughput/samples_per_s", "quality/accuracy")
"""What most sweeps measure."""
_SETTINGS = ("mode", "inputs", "dataset", "protocol", "seed")
"""Beginnings of the keys of settings that are parameters of a sweep."""
_STATUS: dict[SweepOutcome, RunStatus] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


def sweep_info(comparison: Comparison) -> SweepInfo:
    """Return the properties of the sweep that were known when it began."""
    c = comparison
    return SweepInfo(c.sweep_id, c.name, c.command, c.created, c.axes, len(c.rows))


def experiment_name(sweep_name: str) -> str:
    """The experiment that takes all sweeps of a name; an empty name would be refused."""
    return shortened(one_line(sweep_name), NAME_LIMIT) or "sweeprof"


def run_title(sweep: SweepInfo) -> str:
    """Name of the sweep's run, e.g. ``quickstart 2026-11-21 00:30``."""
    return f"{shortened(experiment_name(sweep.name), NAME_LIMIT - 20)} {sweep.created[:16].replace('T', ' ')}"


def opened(sweep: SweepInfo) -> RunContent:
    """The sweep's run before anything is measured."""
    tags = {
        "sweeprof.kind": "sweep",
        "sweeprof.sweep_id": sweep.sweep_id,
        "mlflow.user": user_name() or "",
        "mlflow.source.name": capped(sweep.command),
        "mlflow.source.type": "LOCAL",
        NOTE: f"{sweep.combinations} combinations are being measured.",
    }
    start = milliseconds(sweep.created)
    return RunContent(run_title(sweep), start, start, "FINISHED", {k: text for k, text in tags.items() if text}, {}, {})


def sweep_content(
    comparison: Comparison,
    records: Sequence[Record],
    folder: Path,
    ending: SweepOutcome | None,
    experiment_id: str,
    parent: Run,
    history_id: str | None = None,
) -> RunContent:
    """The sweep's run with what came out.

    Args:
        ending: of the sweep; None while it is measured.
        folder: of ``comparison.md``.
        parent: the sweep's run.
        history_id: of the experiment with the history of its combinations.
    """
    before, found = opened(sweep_info(comparison)), answer(comparison)
    report = folder / "comparison.md"
    markdown = report.read_text(encoding="utf-8") if report.is_file() else f"**{found}**"
    links = view_links(experiment_id, final_view(comparison, parent.info.run_id))
    if history_id is not None:
        links.append(f"[history]({view_address('', history_id, HISTORY, TREND)})")
    note = description(markdown, f"Compare as {' · '.join(links)}", baseline_names(parent.data.tags))
    params = sweep_params(comparison)
    tags = {**before.tags, NOTE: note, "answer": capped(str(found))}
    tags |= {"sweeprof.baseline": capped(baseline_text(comparison)), PARAMS_TAG: capped("\n".join(params))}
    if found.confidence:
        tags["confidence"] = found.confidence
    revision = (comparison.environment.get("git") or {}).get("revision")
    if revision:
        tags["mlflow.source.git.commit"] = capped(str(revision))
    counts = {"combinations_ok": float(comparison.counts()["ok"]), "combinations_total": float(len(comparison.rows))}
    _, end = time_span(comparison, records)
    inputs = dataset_inputs(record.config for record in records)
    status = None if ending is None else _STATUS[ending]
    return RunContent(before.name, before.start_ms, end, status, tags, params, counts, None, inputs)


def sweep_params(comparison: Comparison) -> dict[str, str]:
    """The parameters of the sweep's run: each axis with its values, and settings that all combinations have in common."""
    params = {}
    for axis in comparison.axes:
        values = dict.fromkeys(axis_text(row.axes[axis]) for row in comparison.rows if axis in row.axes)
        params[safe_key(axis)] = shortened(", ".join(values), PARAM_LIMIT)
    for key, value in comparison.settings.items():
        if key.partition(".")[0] in _SETTINGS and value not in (None, "", {}, []):
            params.setdefault(safe_key(key), shortened(without_credentials(axis_text(value)), PARAM_LIMIT))
    return params


def experiment_tags(of: ViewOf, experiment_id: str, there: Mapping[str, str]) -> dict[str, str]:
    """The tags of the experiment: the views of a sweep and, unless ``there`` are those of a newer one, what it says of itself."""
    tags = view_tags(of)
    if of.created_ms < newest_view(there):
        return tags
    if of.headlines:
        tags["mlflow.experiment.primaryMetric.name"] = of.keys[of.headlines[0]]
    if there.get(NOTE, _EXPERIMENT_NOTE).startswith(_EXPERIMENT_NOTE):
        sweep, links = run_address("", experiment_id, of.parent_id), " · ".join(view_links(experiment_id, of))
        # One line: the page shows no more unless it is asked.
        tags[NOTE] = f"{_EXPERIMENT_NOTE}; the newest is [{escaped(of.title)}]({sweep}): {links}"
    return tags


def first_view(sweep: SweepInfo, parent_id: str) -> ViewOf:
    """The view before it is known which metrics there will be."""
    keys = {name: fixed_key(name, HEADLINES[name]) for name in _EXPECTED}
    axes = {safe_key(axis): 0 for axis in sweep.axes}
    created = milliseconds(sweep.created)
    return ViewOf(sweep.sweep_id, run_title(sweep), parent_id, created, axes, keys, f"{RATIOS}latency")


def final_view(comparison: Comparison, parent_id: str) -> ViewOf:
    """The view of what was measured: an axis with one value needs no column."""
    sweep = sweep_info(comparison)
    axes = {
        safe_key(axis): max((len(axis_text(row.axes.get(axis))) for row in comparison.rows), default=0)
        for axis in comparison.varying_axes() or comparison.axes
    }
    return ViewOf(
        sweep.sweep_id,
        run_title(sweep),
        parent_id,
        milliseconds(sweep.created),
        axes,
        tracked_keys(comparison),
        Ratios(comparison).main_key(comparison.rows),
        max((len(run_name(comparison, row)) for row in comparison.rows), default=0),
        failures=any(row.status != "ok" for row in comparison.rows),
    )
