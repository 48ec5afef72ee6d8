"""The comparison of a sweep, from its records; needs only the folder, so it can be repeated."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sweeprof.errors import Damaged
from sweeprof.metrics.compute import UNITS, by_unit, in_units
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.quality import parts_of, with_parts
from sweeprof.metrics.select import select
from sweeprof.passes.registry import baseline_passes, exclusive_passes
from sweeprof.plan.comparing import judged, most_rounds, protocol_of, thresholds_of
from sweeprof.plan.plan import Combination, Plan, Trial
from sweeprof.results.comparison import (
    Comparison,
    Progress,
    Row,
    SearchSummary,
    common_and_own,
    compare_rows,
    find_baselines,
    key_of,
    unsteady_warnings,
)
from sweeprof.results.files import read_json
from sweeprof.results.measurement import Measurement, MetricInfo
from sweeprof.results.record import FINE, Failure, Json, Record, Status, Warning, check_environment
from sweeprof.run.search import disagreement, measured_plan, not_run, output_references, unjudged
from sweeprof.storage import Folder, Jobs, MissingResults, begun

OF_A_TRIAL = ("scheduler", "session", "ran", "others", "threads", "load", "gpu", "settings", "deviations")
"""Keys of a record's environment that do not describe its host."""


def seen_hosts(records: Iterable[Record], seen: dict[str, Json]) -> None:
    """Add to ``seen`` the environment of every host that is not in it yet."""
    for record in records:
        host = record.environment.get("host")
        if host is not None and host not in seen:
            seen[host] = {key: value for key, value in record.environment.items() if key not in OF_A_TRIAL}


def of_cluster(driver: Mapping[str, Any], hosts: Mapping[str, Json]) -> Json:
    """Return the environment of a sweep whose jobs ran on these hosts: that of the first, with the names and processors of all."""
    if not hosts:
        return dict(driver)
    first = next(iter(hosts.values()))
    models = dict.fromkeys(str(one["cpu"].get("model")) for one in hosts.values() if one.get("cpu"))
    cpu = {**(first.get("cpu") or {}), "model": "; ".join(models)} if models else first.get("cpu")
    return {**first, "host": ", ".join(sorted(hosts)), "cpu": cpu, "submitted_from": driver.get("host")}


SEVERITY: tuple[Status, ...] = ("lost", "crashed", "oom", "timeout", "failed", "skipped", "unsupported", "ok")
"""The order of statuses; a combination has the most severe one of its trials."""


MOST_TRACEBACKS = 50
"""Maximum number of different tracebacks in a comparison; those of further failures are only in their logs."""
BASELINES_KEPT = 64


def comparison_of(
    folder: Folder,
    missing: str = "its shard ended before it was measured",
    running: bool = False,
    only: Collection[str] | None = None,
    trust: bool = False,
) -> Comparison:
    """Return the comparison of everything measured so far.

    Args:
        missing: the reason given for planned trials that have not begun.
        running: whether the sweep is running: the comparison says so, and trials that have begun are not lost.
        only: ids of combinations with their baselines, only their records are read; the rows of others are empty.
        trust: whether the modules of metrics that the plan names may be imported.

    Raises:
        UserError: the plan names metrics that cannot be imported, or only with ``trust``.
        Damaged: the plan cannot be read.
    """
    whole = folder.read_plan()
    plan = measured_plan(whole, folder)
    selected = select(plan.metrics, trust)
    bases = find_baselines(plan.baseline, {c.id: c.axes for c in plan.combinations})
    common, settings = common_and_own([c.config for c in plan.combinations])
    damaged: list[str] = []
    unfinished = begun(folder.events, damaged=damaged)
    missing_results = MissingResults(plan, Jobs(folder.path).outcomes(), unfinished, missing, running)

    def records_of(id: str, unread: dict[str, str] | None = None) -> list[Record]:
        return folder.records_of(id, damaged=unread) if only is None or id in only else []

    @lru_cache(BASELINES_KEPT)
    def of_baseline(id: str) -> tuple[Record, ...]:
        return tuple(record for record in records_of(id) if record.pass_name in baseline_passes())

    references = output_references(plan, bases)
    rows: list[Row] = []
    measurements: dict[str, dict[str, Measurement]] = {}
    hosts: dict[str, Json] = {}
    tracebacks: set[str] = set()
    for combination, own_settings in zip(plan.combinations, settings, strict=True):
        unread: dict[str, str] = {}
        own = records_of(combination.id, unread)
        damaged += (f"records/{combination.id}/{name}: {reason}" for name, reason in unread.items())
        if plan.cluster:
            seen_hosts(own, hosts)
        own += missing_results.placeholder_records(combination, own, unread, lambda trial: not folder.is_decided(trial))
        base = bases[combination.id]
        compared = own if base == combination.id else of_baseline(base) if base else None
        wanted = [*selected, *parts_of(selected, own)]
        measured = evaluate(wanted, own, compared, combination.config["batch_size"])
        failures = _with_new_tracebacks(_failures(folder, own, measured), tracebacks)
        row = _row(combination, own, measured, base, own_settings, failures)
        measurements[combination.id] = {name: _without_traceback(one) for name, one in measured.items()}
        reference = references.get(combination.id)
        if reference is not None and (only is None or reference.id in only):
            theirs = of_baseline(reference.id)
            row = _judged_by(row, disagreement(own, theirs, reference.tolerance, reference.whose))
            tolerance = reference.tolerance if "quality" in plan.passes else None
            doubt = unjudged(own, theirs, tolerance, reference.whose)
            row = dataclasses.replace(row, warnings=(*row.warnings, doubt)) if doubt and row.has_values else row
        rows.append(row)
    rows = _without_differing_baselines(rows)
    infos = [entry.metric.info for entry in selected]
    named = _goals_and_conditions(plan, infos)
    scores = [f"quality/{name}" for c in plan.combinations for name in c.config.get("quality") or {}]
    infos, measurements = with_parts(infos, measurements, scores)
    metrics, measurements = by_unit(infos, measurements, named)
    thresholds = thresholds_of(plan, metrics)
    driver = _environment(folder, damaged)
    too_large = not_run(whole, folder, trust)
    comparison = Comparison(
        sweep_id=plan.sweep_id,
        name=plan.name,
        created=plan.created,
        command=plan.command,
        axes=tuple(plan.axes),
        metrics=metrics,
        baseline=plan.baseline,
        rows=compare_rows(rows, measurements, plan.threshold, thresholds),
        environment=of_cluster(driver, hosts) if plan.cluster else driver,
        excluded=(*plan.excluded, *too_large),
        threshold=plan.threshold,
        thresholds=thresholds,
        protocol={**protocol_of(plan.combinations), **({"budget": [plan.budget]} if plan.budget else {})},
        settings=common,
        running=_progress(folder, whole, plan) if running else None,
        search=_search_summary(whole, len(too_large)),
    )
    comparison = judged(comparison, plan, folder.baseline, damaged)
    return dataclasses.replace(comparison, damaged=tuple(damaged))


def _progress(folder: Folder, whole: Plan, measured: Plan) -> Progress:
    """Return how many trials have ended; of a search it is known how many combinations it measures, but not which."""
    planned = measured.trials()
    done = sum(map(folder.is_done, planned))
    if whole.search is None:
        return Progress(done, len(planned))
    return Progress(done, max(done, len(whole.trials()) * whole.size // max(1, len(whole.combinations))))


def _goals_and_conditions(plan: Plan, infos: Sequence[MetricInfo]) -> list[str]:
    """Return the metrics that constraints name, and the goals of a search."""
    conditions = " ".join(plan.compare.constraints or ())
    goals = [goal.metric for goal in plan.search.goals] if plan.search else []
    names = [info.name for info in in_units(infos, UNITS)]
    return [name for name in names if name in goals or name.rpartition("/")[2] in conditions]


def _search_summary(plan: Plan, too_large: int) -> SearchSummary | None:
    """Return the search of a plan; ``too_large``: how many combinations it did not measure because a smaller one was too large."""
    if plan.search is None:
        return None
    able = sum(c.unsupported is None for c in plan.combinations)
    return SearchSummary(plan.search.goals, plan.search.trials, able, too_large)


def _environment(folder: Folder, damaged: list[str]) -> Json:
    """Return the environment of the driver; empty if it cannot be read, which is added to ``damaged``."""
    try:
        environment: Json = read_json(folder.environment)
        check_environment(environment)
    except (Damaged, OSError) as error:
        damaged.append(f"environment.json: {error if isinstance(error, Damaged) else error.strerror}")
        return {}
    return environment


def _row(
    combination: Combination,
    records: Sequence[Record],
    measured: dict[str, Measurement],
    base: str | None,
    settings: Json,
    failures: Sequence[Failure],
) -> Row:
    status, reason = _status(records)
    timed = [r.status for r in records if r.pass_name == "timing" and r.status != "unsupported"]
    complete = timed.count("ok")
    walls = [r.wall_s for r in records if r.pass_name == "timing" and r.status == "ok"]
    is_incomplete = status not in ("ok", "unsupported") and complete > 0
    if status == "ok" and failures:
        reason = f"{failures[0].source}: {failures[0].message}"
    warnings = [w for record in records for w in record.warnings] + [w for m in measured.values() for w in m.warnings]
    warnings += unsteady_warnings(record.environment for record in records if record.pass_name in exclusive_passes())
    return Row(
        combination_id=combination.id,
        axes=combination.axes,
        status=status,
        reason=f"{complete} of {len(timed)} rounds measured; {reason}" if is_incomplete else reason,
        cells={},
        baseline_id=base,
        command=combination.command,
        warnings=_without_repeats(warnings),
        wall_s=sum(record.wall_s for record in records),
        environment=key_of(r.environment for r in records if r.pass_name == "timing" and r.environment),
        settings=settings,
        sessions=sessions_of(records),
        rounds_complete=complete,
        rounds_planned=len(timed),
        most_rounds=most_rounds(combination.config),
        round_s=statistics.fmean(walls) if walls else 0.0,
        is_incomplete=is_incomplete,
        test_data=_test_data(records),
        precision_method=_precision_method(records),
        failures=tuple(failures),
    )


def _test_data(records: Sequence[Record]) -> str | None:
    """Return what tells the samples of one test split from those of another; None if there is not one class for each sample."""
    record = next((record for record in records if record.pass_name == "quality"), None)
    targets = None if record is None or record.status != "ok" else (record.observations or {}).get("targets")
    if targets is None:
        return None
    digest = hashlib.sha256(json.dumps(targets).encode()).hexdigest()[:8]
    return f"{len(targets):,} samples with targets {digest}"


def _precision_method(records: Sequence[Record]) -> str | None:
    """Return the method that the first pass reports whose model was loaded; None if the backend reports none."""
    reported = (record.environment.get("settings", {}).get("precision method") for record in records)
    return next((str(method) for method in reported if method is not None), None)


def _failures(folder: Folder, records: Sequence[Record], measured: Mapping[str, Measurement]) -> list[Failure]:
    """Return the failures of a combination, each error once: of passes, the most severe first, then of metrics."""
    by_message: dict[str, Failure] = {}
    failed = [record for record in records if record.status not in (*FINE, "skipped")]
    for record in sorted(failed, key=lambda record: SEVERITY.index(record.status)):
        message, name = record.reason or "no reason was given", str(record.pass_name)
        first = by_message.get(message)
        if first is None:
            by_message[message] = Failure(name, message, record.location, record.traceback, _log_of(folder, record))
        elif name not in first.source.split(", "):
            by_message[message] = dataclasses.replace(first, source=f"{first.source}, {name}")
    found = list(by_message.values())
    shared: dict[tuple[str, str | None], dict[str, Failure]] = {}  # by several metrics of one function
    for name, measurement in measured.items():
        if measurement.failure is not None:
            key = (measurement.failure.message, measurement.failure.location)
            shared.setdefault(key, {})[name] = measurement.failure
    live = next((record for record in records if record.pass_name == "live"), None)
    for by_name in shared.values():
        source = f"metric{'s' * (len(by_name) > 1)} {', '.join(by_name)}"
        is_live = live is not None and any(name in (live.observations or {}).get("results", {}) for name in by_name)
        log = _log_of(folder, live) if live is not None and is_live else None
        found.append(dataclasses.replace(next(iter(by_name.values())), source=source, log=log))
    return found


def _log_of(folder: Folder, record: Record) -> str | None:
    """Return the path of a trial's log below the sweep's folder; None if there is none."""
    log = folder.log_path(Trial(record.combination_id, record.pass_name, record.round))
    return str(log.relative_to(folder.path)) if log.is_file() else None


def _with_new_tracebacks(failures: Sequence[Failure], known: set[str]) -> list[Failure]:
    """Return the failures with the tracebacks that no earlier row has; thousands of rows may fail for one reason."""
    kept = []
    for failure in failures:
        is_new = failure.traceback is not None and failure.traceback not in known and len(known) < MOST_TRACEBACKS
        if is_new:
            known.add(str(failure.traceback))
        kept.append(failure if is_new else dataclasses.replace(failure, traceback=None))
    return kept


def _without_traceback(measurement: Measurement) -> Measurement:
    """Return the measurement without its error's traceback, which the row has."""
    if measurement.failure is None:
        return measurement
    return dataclasses.replace(measurement, failure=dataclasses.replace(measurement.failure, traceback=None))


def _judged_by(row: Row, difference: str | None) -> Row:
    """Return the row; one whose outputs differ is failed and has no baseline."""
    if difference is None or not row.has_values:
        return row
    return dataclasses.replace(row, status="failed", reason=difference, baseline_id=None, is_incomplete=False)


def _without_differing_baselines(rows: Sequence[Row]) -> list[Row]:
    """Return the rows; those whose baseline is failed because its outputs differ are compared with nothing, and say why."""
    differing = {
        row.combination_id: str(row.reason) for row in rows if row.baseline_id is None and row.status == "failed"
    }
    found = []
    for row in rows:
        reason = differing.get(row.baseline_id or "")
        if reason is None:
            found.append(row)
            continue
        text = f"there is no comparison, because the baseline failed: {reason}"
        warning = Warning("baseline_differs", text, "correct the baseline's model, or choose another baseline")
        found.append(dataclasses.replace(row, baseline_id=None, warnings=(*row.warnings, warning)))
    return found


def sessions_of(records: Sequence[Record]) -> tuple[str | None, ...]:
    """Return for each timing round the run of the shard that timed it; empty for records of versions that did not store it."""
    found = {r.round: r.environment.get("session", "") for r in records if r.pass_name == "timing" and r.status == "ok"}
    return tuple(found.get(number) for number in range(max(found, default=-1) + 1))


def _status(records: Sequence[Record]) -> tuple[Status, str | None]:
    """Return the most severe status and why; a single capability that a backend lacks does not make a combination unsupported."""
    grave = [r for r in records if r.status != "unsupported"] or list(records)
    worst = min(grave, key=lambda record: SEVERITY.index(record.status), default=None)
    if worst is None:
        return "skipped", "nothing was planned for it"
    if worst.status == "ok":
        return "ok", None
    return worst.status, f"{worst.pass_name}: {worst.reason}" if worst.status != "unsupported" else worst.reason


def _without_repeats(warnings: Sequence[Warning]) -> tuple[Warning, ...]:
    return tuple(dict.fromkeys(warnings))
