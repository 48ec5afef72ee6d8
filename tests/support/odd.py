"""Comparisons that are unlike the quickstart's: hostile names, other axes, a user's own metrics."""

from __future__ import annotations

import dataclasses
from typing import Any

from support.samples import comparison
from sweeprof.results.compared_rows import Cell, Comparison, Row
from sweeprof.results.measurement import Better, Measurement, MetricInfo, Number
from sweeprof.results.record import Status

SCRIPT = "<script>alert(1)</script>"
LONG = "very-long-model-name-" * 15


def build(
    points: list[dict[str, Any]],
    metrics: dict[str, tuple[str, Better]],
    values: list[dict[str, Number]],
    **fields: Any,
) -> Comparison:
    """A comparison without baselines: one row per point with its values; a metric that is not given has a reason."""
    infos = tuple(MetricInfo(name, unit, better, f"What {name} is.") for name, (unit, better) in metrics.items())
    rows = []
    for number, (point, known) in enumerate(zip(points, values, strict=True)):
        status: Status = "ok" if known else "failed"
        cells = {
            info.name: Cell(
                Measurement(
                    info.name,
                    info.unit,
                    info.better,
                    known.get(info.name),
                    None if info.name in known else "not measured",
                )
            )
            for info in infos
        }
        rows.append(
            Row(
                f"c{number}",
                point,
                status,
                None if known else "ValueError: no\nluck",
                cells,
                None,
                "python -m sweeprof",
            )
        )
    axes = tuple(dict.fromkeys(axis for point in points for axis in point))
    return Comparison(
        "s1", "odd", "2026-11-21T00:30:00+00:00", "python -m sweeprof", axes, infos, {}, tuple(rows), **fields
    )


def renamed(*models: str) -> Comparison:
    """The quickstart with other names for its models, in their order."""
    full = comparison()
    names = dict(zip(("lenet5", "mlp", "digits_resnet"), models, strict=False))
    rows = tuple(
        dataclasses.replace(row, axes={**row.axes, "model": names.get(row.axes["model"], row.axes["model"])})
        for row in full.rows
    )
    return dataclasses.replace(full, rows=rows)


def hostile() -> Comparison:
    """The quickstart with model names that try to break out of every format."""
    return renamed(f"{SCRIPT}|`*_$\n\x1b[31m", LONG, '"><img src=x onerror=alert(2)>')


def with_cells(of: Comparison, metric: str, **changes: Any) -> Comparison:
    """``of`` with fields of the cells of one metric replaced."""
    rows = tuple(
        dataclasses.replace(row, cells={**row.cells, metric: dataclasses.replace(row.cells[metric], **changes)})
        for row in of.rows
    )
    return dataclasses.replace(of, rows=rows)
