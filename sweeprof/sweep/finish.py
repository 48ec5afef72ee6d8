"""From the records of a sweep to its comparison and reports; needs nothing but the folder, so it can be done again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.select import passes_of, select
from sweeprof.report.cells import axes_text
from sweeprof.report.csv import csv_text
from sweeprof.report.html import html
from sweeprof.report.markdown import markdown
from sweeprof.report.pictures.details import details
from sweeprof.report.plots import plots
from sweeprof.report.png import png
from sweeprof.results.compare import Comparison, Row, compare_rows, find_baseline
from sweeprof.results.files import read_json, write_atomically, write_json
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import Record, Status, Warning, read_records
from sweeprof.sweep.artifacts import observed, write_artifacts
from sweeprof.sweep.plan import Combination, Plan
from sweeprof.sweep.shard import Folder

SEVERITY: tuple[Status, ...] = ("crashed", "oom", "timeout", "failed", "skipped", "unsupported", "ok")
"""A combination has the gravest status of its trials."""


def comparison_of(folder: Folder, missing: str = "its shard ended before it was measured") -> Comparison:
    """The comparison of everything measured so far; ``missing`` is the reason given for planned trials without a record."""
    plan = Plan.from_dict(read_json(folder.plan))
    records: dict[str, list[Record]] = defaultdict(list)
    for record in read_records(folder.records) if folder.records.exists() else ():
        records[record.combination_id].append(record)
    selected = select(plan.metrics)
    points = {c.id: c.axes for c in plan.combinations}
    rows, measurements = [], {}
    for combination in plan.combinations:
        own = [*records[combination.id], *_absent(plan, combination, records[combination.id], missing)]
        base = find_baseline(combination.axes, plan.baseline, points)
        measured = evaluate(selected, own, records[base] if base else None, combination.config["batch_size"])
        measurements[combination.id] = measured
        rows.append(_row(combination, own, measured, base))
    return Comparison(
        sweep_id=plan.sweep_id,
        name=plan.name,
        created=plan.created,
        command=plan.command,
        axes=tuple(plan.axes),
        metrics=tuple(s.metric.info for s in selected),
        baseline=plan.baseline,
        rows=compare_rows(rows, measurements, plan.threshold),
        environment=read_json(folder.path / "environment.json"),
        excluded=plan.excluded,
        threshold=plan.threshold,
    )


def _absent(plan: Plan, combination: Combination, found: Sequence[Record], missing: str) -> list[Record]:
    """Stand-ins for the trials that left no record; they are never written, so that the trials can still be run."""
    if combination.unsupported is not None:
        reason = combination.unsupported
        return [
            Record(plan.sweep_id, combination.id, p, "unsupported", reason) for p in passes_of(select(plan.metrics))
        ]
    there = {(r.pass_name, r.round) for r in found}
    return [
        Record(plan.sweep_id, combination.id, trial.pass_name, "skipped", missing, trial.round)
        for shard in plan.shards
        for trial in shard
        if trial.combination_id == combination.id and (trial.pass_name, trial.round) not in there
    ]


def _row(
    combination: Combination, records: Sequence[Record], measured: dict[str, Measurement], base: str | None
) -> Row:
    status, reason = _status(records)
    warnings = [w for record in records for w in record.warnings] + [w for m in measured.values() for w in m.warnings]
    return Row(
        combination_id=combination.id,
        axes=combination.axes,
        status=status,
        reason=reason,
        cells={},
        baseline_id=base,
        command=combination.command,
        warnings=_without_repeats(warnings),
        wall_s=sum(record.wall_s for record in records),
    )


def _status(records: Sequence[Record]) -> tuple[Status, str | None]:
    """The gravest status and why; a single capability that a backend lacks does not make a combination unsupported."""
    grave = [r for r in records if r.status != "unsupported"] or list(records)
    worst = min(grave, key=lambda record: SEVERITY.index(record.status), default=None)
    if worst is None:
        return "skipped", "nothing was planned for it"
    if worst.status == "ok":
        return "ok", None
    return worst.status, f"{worst.pass_name}: {worst.reason}" if worst.status != "unsupported" else worst.reason


def _without_repeats(warnings: Sequence[Warning]) -> tuple[Warning, ...]:
    return tuple(dict.fromkeys(warnings))


def write_reports(folder: Folder, comparison: Comparison) -> Path:
    """Write the reports of a sweep into its folder; returns the path of ``report.html``.

    ``comparison.{json,csv,md}``, ``plots/*.png``, ``report.html``, and the files of every combination that
    :func:`sweeprof.sweep.artifacts.write_artifacts` names.
    """
    write_json(folder.path / "comparison.json", comparison.to_dict())
    write_atomically(folder.path / "comparison.csv", csv_text(comparison))
    write_atomically(folder.path / "comparison.md", markdown(comparison))
    drawn = plots(comparison)
    (folder.path / "plots").mkdir(exist_ok=True)
    for plot in drawn:
        (folder.path / "plots" / f"{plot.key}.png").write_bytes(png(plot))
    names = _names(comparison)
    seen = {names[id]: observed(folder, id) for id in names}
    links = {name: write_artifacts(folder, id, seen[name], title=name) for id, name in names.items()}
    tables = {name: one.layers for name, one in seen.items() if one.layers is not None}
    report = folder.path / "report.html"
    write_atomically(report, html(comparison, drawn, tables, details(seen, links)))
    return report


def _names(comparison: Comparison) -> dict[str, str]:
    """What a reader tells combinations apart by: the axes that vary, or all of a sweep of one."""
    varying = comparison.varying_axes() or list(comparison.axes)
    return {
        row.combination_id: axes_text({axis: row.axes[axis] for axis in varying if axis in row.axes})
        for row in comparison.rows
    }
