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
from sweeprof.metrics.compute import by_unit
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.quality import parts_of, with_parts
from sweeprof.metrics.select import select
from sweeprof.passes.registry import baseline_passes, exclusive_passes
from sweeprof.plan.comparing import judged, most_rounds, protocol_of, thresholds_of
from sweeprof.plan.plan import Combination, Plan, Trial
from sweeprof.results.compared_rows import (
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
from sweeprof.run.search import (
    Reference,
    disagreement,
    measured_plan,
    named_metrics,
    not_run,
    output_references,
    unjudged,
)
from sweeprof.storage import Folder, MissingResults, begun

OF_A_TRIAL = ("scheduler", "session", "ran", "others", "threads", "load", "gpu", "settings", "deviations")
"""Keys of a record's environment that do not describe its host."""
SEVERITY: tuple[Status, ...] = ("lost", "crashed", "oom", "timeout", "failed", "skipped", "unsupported", "ok")
"""The order of statuses; a combination has the most severe one of its trials."""
MOST_TRACEBACKS = 50
"""Maximum number of different tracebacks in a comparison; those of further failures are only in their logs."""
BASELINES_KEPT = 64
"""Baselines whose records are kept in memory."""


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
    environment = dict(next(iter(hosts.values())))
    models: list[str] = []
    for host in hosts.values():
        if host.get("cpu") and str(host["cpu"].get("model")) not in models:
            models.append(str(host["cpu"].get("model")))
    if models:
        environment["cpu"] = {**(environment.get("cpu") or {}), "model": "; ".join(models)}
    environment["host"] = ", ".join(sorted(hosts))
    environment["submitted_from"] = driver.get("host")
    return environment


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
    missing_results = MissingResults(folder, plan, missing, running, unfinished)

    def records_of(id: str, unread: dict[str, str] | None = None) -> list[Record]:
        if only is not None and id not in only:
            return []
        return folder.records_of(id, damaged=unread)

    @lru_cache(BASELINES_KEPT)
    def of_baseline(id: str) -> tuple[Record, ...]:
        return tuple(record for record in records_of(id) if record.pass_name in baseline_passes())

    references = output_references(plan, bases)
    rows: list[Row] = []
    measurements: dict[str, dict[str, Measurement]] = {}
    hosts: dict[str, Json] = {}
    tracebacks: set[str] = set()
    for combination, own_settings in zip(plan.combinations, settings, strict=True):
        id, base = combination.id, bases[combination.id]
        unread: dict[str, str] = {}
        own = records_of(id, unread)
        damaged += (f"records/{id}/{name}: {reason}" for name, reason in unread.items())
        if plan.cluster:
            seen_hosts(own, hosts)
        own += missing_results.placeholder_records(combination, own, unread)
        compared = of_baseline(base) if base and base != id else None
        if base == id:
            compared = tuple(own)
        measured = evaluate([*selected, *parts_of(selected, own)], own, compared, combination.config["batch_size"])
        failures = _failures(folder, own, measured)
        _remove_known_tracebacks(failures, measured, tracebacks)
        measurements[id] = measured
        row = _row(combination, own, measured, base, own_settings, failures)
        reference = references.get(id)
        if reference is not None and (only is None or reference.id in only):
            row = _with_outputs_compared(row, own, of_baseline(reference.id), reference, "quality" in plan.passes)
        rows.append(row)
    _remove_failed_baselines(rows)

    infos: list[MetricInfo] = [entry.metric.info for entry in selected]
    scores = [f"quality/{name}" for c in plan.combinations for name in c.config.get("quality") or {}]
    named = named_metrics(plan, infos)
    infos, measurements = with_parts(infos, measurements, scores)
    metrics, measurements = by_unit(infos, measurements, named)
    thresholds = thresholds_of(plan, metrics)
    environment = _environment(folder, damaged)
    protocol = protocol_of(plan.combinations)
    if plan.budget:
        protocol["budget"] = [plan.budget]
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
        environment=of_cluster(environment, hosts) if plan.cluster else environment,
        excluded=(*plan.excluded, *too_large),
        threshold=plan.threshold,
        thresholds=thresholds,
        protocol=protocol,
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
    except Damaged as error:
        damaged.append(f"environment.json: {error}")
        return {}
    except OSError as error:
        damaged.append(f"environment.json: {error.strerror}")
        return {}
    return environment


def _remove_known_tracebacks(failures: list[Failure], measured: dict[str, Measurement], known: set[str]) -> None:
    """Leave each traceback in the failures of one row: thousands of rows may fail for one reason."""
    for position, failure in enumerate(failures):
        if failure.traceback in known or len(known) >= MOST_TRACEBACKS:
            failures[position] = dataclasses.replace(failure, traceback=None)
        elif failure.traceback is not None:
            known.add(failure.traceback)
    for name, measurement in measured.items():
        if measurement.failure is not None:  # whose traceback the row has
            without = dataclasses.replace(measurement.failure, traceback=None)
            measured[name] = dataclasses.replace(measurement, failure=without)


def _with_outputs_compared(
    row: Row, own: Sequence[Record], theirs: Sequence[Record], reference: Reference, has_quality: bool
) -> Row:
    """Return the row; one whose outputs differ from those of its reference is failed, and has no baseline."""
    if not row.has_values:
        return row
    difference = disagreement(own, theirs, reference.tolerance, reference.whose)
    if difference is not None:
        return dataclasses.replace(row, status="failed", reason=difference, baseline_id=None, is_incomplete=False)
    doubt = unjudged(own, theirs, reference.tolerance, reference.whose) if has_quality else None
    return dataclasses.replace(row, warnings=(*row.warnings, doubt)) if doubt else row


def _row(
    combination: Combination,
    records: Sequence[Record],
    measured: Mapping[str, Measurement],
    base: str | None,
    settings: Json,
    failures: Sequence[Failure],
) -> Row:
    """Return the row of a combination, without cells."""
    status, reason = _status(records, failures)
    planned = [r for r in records if r.pass_name == "timing" and r.status != "unsupported"]
    complete = [record for record in planned if record.status == "ok"]
    is_incomplete = status not in ("ok", "unsupported") and bool(complete)
    if is_incomplete:
        reason = f"{len(complete)} of {len(planned)} rounds measured; {reason}"
    warnings: list[Warning] = []
    for record in records:
        warnings += record.warnings
    for measurement in measured.values():
        warnings += measurement.warnings
    warnings += unsteady_warnings(record.environment for record in records if record.pass_name in exclusive_passes())
    test_data, precision_method = None, None
    for record in records:
        if record.pass_name == "quality" and record.status == "ok" and test_data is None:
            targets = (record.observations or {}).get("targets")  # absent without one class for each sample
            if targets is not None:
                digest = hashlib.sha256(json.dumps(targets).encode()).hexdigest()[:8]
                test_data = f"{len(targets):,} samples with targets {digest}"
        method = record.environment.get("settings", {}).get("precision method")
        if method is not None and precision_method is None:
            precision_method = str(method)
    return Row(
        combination_id=combination.id,
        axes=combination.axes,
        status=status,
        reason=reason,
        cells={},
        baseline_id=base,
        command=combination.command,
        warnings=tuple(dict.fromkeys(warnings)),
        wall_s=sum(record.wall_s for record in records),
        environment=key_of(r.environment for r in records if r.pass_name == "timing" and r.environment),
        settings=settings,
        sessions=sessions_of(records),
        rounds_complete=len(complete),
        rounds_planned=len(planned),
        most_rounds=most_rounds(combination.config),
        round_s=statistics.fmean([record.wall_s for record in complete] or [0.0]),
        is_incomplete=is_incomplete,
        test_data=test_data,
        precision_method=precision_method,
        failures=tuple(failures),
    )


def _status(records: Sequence[Record], failures: Sequence[Failure]) -> tuple[Status, str | None]:
    """Return the most severe status and why; a single capability that a backend lacks does not make a combination unsupported."""
    grave = [record for record in records if record.status != "unsupported"] or records
    worst = min(grave, key=lambda record: SEVERITY.index(record.status), default=None)
    if worst is None:
        return "skipped", "nothing was planned for it"
    if worst.status == "unsupported":
        return "unsupported", worst.reason
    if worst.status != "ok":
        return worst.status, f"{worst.pass_name}: {worst.reason}"
    return "ok", f"{failures[0].source}: {failures[0].message}" if failures else None


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
    by_error: dict[tuple[str, str | None], list[str]] = {}  # several metrics may share a function
    for name, measurement in measured.items():
        if measurement.failure is not None:
            by_error.setdefault((measurement.failure.message, measurement.failure.location), []).append(name)
    live = next((record for record in records if record.pass_name == "live"), None)
    found = list(by_message.values())
    for names in by_error.values():
        source = f"metric{'s' * (len(names) > 1)} {', '.join(names)}"
        log = None
        if live is not None and not (live.observations or {}).get("results", {}).keys().isdisjoint(names):
            log = _log_of(folder, live)
        failure = measured[names[0]].failure
        assert failure is not None
        found.append(dataclasses.replace(failure, source=source, log=log))
    return found


def _log_of(folder: Folder, record: Record) -> str | None:
    """Return the path of a trial's log below the sweep's folder; None if there is none."""
    log = folder.log_path(Trial(record.combination_id, record.pass_name, record.round))
    return str(log.relative_to(folder.path)) if log.is_file() else None


def _remove_failed_baselines(rows: list[Row]) -> None:
    """Remove the baseline of rows whose baseline failed because its outputs differ; a warning says why."""
    failed = {row.combination_id: row.reason for row in rows if row.baseline_id is None and row.status == "failed"}
    for position, row in enumerate(rows):
        if row.baseline_id in failed:
            text = f"there is no comparison, because the baseline failed: {failed[row.baseline_id]}"
            warning = Warning("baseline_differs", text, "correct the baseline's model, or choose another baseline")
            rows[position] = dataclasses.replace(row, baseline_id=None, warnings=(*row.warnings, warning))


def sessions_of(records: Sequence[Record]) -> tuple[str | None, ...]:
    """Return for each timing round the run of the shard that timed it; None for a round that was not timed."""
    found = {r.round: r.environment.get("session", "") for r in records if r.pass_name == "timing" and r.status == "ok"}
    return tuple(map(found.get, range(max(found, default=-1) + 1)))
