"""Metrics whose unit depends on the workload: one metric per unit, so that values in different units are never compared.

``throughput/units_per_s`` is selected; a comparison has ``throughput/tokens_per_s`` of the combinations that are counted in tokens,
and ``throughput/images_per_s`` of those that are counted in images.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from sweeprof.results.measurement import Measurement, MetricInfo

PLACEHOLDER = "units"
"""In the name and the unit of a metric stands for the unit of the workload."""
UNITS = ("tokens", "images", "pixels", "frames", "seconds of audio", "samples")
"""Common units of a workload; constraints and thresholds may name their metrics before anything is measured."""

NamedMeasurements = dict[str, Measurement]
"""Measurements of one combination by metric name."""


def depends_on_workload(info: MetricInfo) -> bool:
    """True if the unit of a metric is that of the workload."""
    return info.unit.startswith(f"{PLACEHOLDER}/") and PLACEHOLDER in info.name


def in_unit(info: MetricInfo, unit: str) -> MetricInfo:
    """Return the description of a metric for one unit of the workload, such as ``tokens``."""
    name = info.name.replace(PLACEHOLDER, re.sub(r"\W+", "_", unit.lower()).strip("_") or PLACEHOLDER)
    return dataclasses.replace(info, name=name, unit=info.unit.replace(PLACEHOLDER, unit, 1))


def in_units(infos: Sequence[MetricInfo], units: Iterable[str]) -> list[MetricInfo]:
    """Return the descriptions of metrics, and for each that depends on the workload those in all of the units."""
    found = {info.name: info for info in infos}
    for info in infos:
        for unit in units if depends_on_workload(info) else ():
            found.setdefault(in_unit(info, unit).name, in_unit(info, unit))
    return list(found.values())


def by_unit(
    infos: Sequence[MetricInfo], measured: Mapping[str, Mapping[str, Measurement]], named: Sequence[str] = ()
) -> tuple[tuple[MetricInfo, ...], dict[str, NamedMeasurements]]:
    """Return metrics and measurements in which every metric that depends on the workload is one metric per unit.

    A metric in a unit that is selected by its own name, as ``throughput/samples_per_s``, stays as it is. Where no combination has a
    value, the metric stays without a unit, unless the selected metrics have one in samples, which gives the same reasons.

    Args:
        infos: of the selected metrics.
        measured: by combination id and metric name.
        named: names of metrics that are there in any case, because a constraint uses them.
    """
    selected = {info.name for info in infos}
    found: dict[str, MetricInfo] = {}
    values: dict[str, NamedMeasurements] = {id: {} for id in measured}
    for info in infos:
        if not depends_on_workload(info):
            found[info.name] = info
            for id, own in measured.items():
                values[id][info.name] = own[info.name]
            continue
        known = [own[info.name] for own in measured.values() if own[info.name].value is not None]
        units = dict.fromkeys(one.unit.removesuffix(info.unit.removeprefix(PLACEHOLDER)) for one in known)
        asked = [unit for unit in UNITS if in_unit(info, unit).name in named]
        metrics = {one.name: one for one in (in_unit(info, unit) for unit in (*units, *asked))}
        if not metrics and in_unit(info, "samples").name not in selected:
            metrics = {info.name: info}
        for name, metric in metrics.items():
            if name in selected and name != info.name:
                continue
            found[name] = metric
            for id, own in measured.items():
                values[id][name] = _in_unit(own[info.name], metric)
    return tuple(found.values()), values


def _in_unit(measurement: Measurement, metric: MetricInfo) -> Measurement:
    """Return the measurement as that of a metric in one unit; without a value if it is in another one."""
    if measurement.value is None or measurement.unit == metric.unit:
        return dataclasses.replace(measurement, name=metric.name, unit=metric.unit)
    reason = f"the work of this combination is counted in {measurement.unit.rpartition('/')[0]}"
    return Measurement(metric.name, metric.unit, metric.better, None, reason)
