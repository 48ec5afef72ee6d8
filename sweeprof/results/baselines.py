"""A comparison with another baseline among its own rows. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from sweeprof.results.compare import Comparison, compare_rows, find_baselines
from sweeprof.results.record import Json


def offered_baselines(comparison: Comparison) -> list[Json]:
    """Return the baselines that a comparison can be given: every value of every axis that has several, but not its own.

    The values of the axes that the own baseline names come first.
    """
    own = {axis: value for axis, value in comparison.baseline.items() if axis in comparison.varying_axes()}
    found: list[Json] = []
    for axis in sorted(comparison.varying_axes(), key=lambda axis: axis not in own):
        values: dict[str, Any] = {str(row.axes[axis]): row.axes[axis] for row in comparison.rows if axis in row.axes}
        is_numeric = all(isinstance(value, int | float) for value in values.values())
        ordered = sorted(values.values()) if is_numeric else values.values()
        baselines: list[Json] = [{axis: value} for value in ordered]
        found += [one for one in baselines if comparison.against is not None or one != own]
    return found


def with_baseline(comparison: Comparison, baseline: Json, metrics: Collection[str]) -> Comparison:
    """Return a comparison of the same rows with another of them as baseline, by the rules of :func:`compare_rows`.

    A row that is compared with nothing, because its outputs differ, stays so.

    Args:
        comparison: of one sweep, or of two; in the latter case the other sweep is left out.
        baseline: axis values that select the baseline of each row.
        metrics: names of the metrics to compare; the others are left out.
    """
    axes = {row.combination_id: row.axes for row in comparison.rows}
    planned, bases = find_baselines(comparison.baseline, axes), find_baselines(baseline, axes)
    excluded = set()
    if comparison.against is None:
        differing = [r for r in comparison.rows if r.baseline_id is None and r.status == "failed"]
        excluded = {r.combination_id for r in differing if planned[r.combination_id]}
    rows, measurements = [], {}
    for row in comparison.rows:
        id = row.combination_id
        base = None if id in excluded or bases[id] in excluded else bases[id]
        # Samples that were interleaved with those of the own baseline are pairs with no other row.
        has_pairs = comparison.against is None and base == planned[id]
        known = {name: row.cells[name].measurement for name in metrics if name in row.cells}
        if not has_pairs:
            known = {name: dataclasses.replace(one, paired=()) if one.paired else one for name, one in known.items()}
        measurements[id] = known
        warnings = tuple(warning for warning in row.warnings if warning.code != "run_apart")
        rows.append(dataclasses.replace(row, baseline_id=base, warnings=warnings))
    compared = compare_rows(rows, measurements, comparison.threshold, comparison.thresholds)
    infos = tuple(info for info in comparison.metrics if info.name in metrics)
    return dataclasses.replace(comparison, baseline=baseline, rows=compared, metrics=infos, against=None)
