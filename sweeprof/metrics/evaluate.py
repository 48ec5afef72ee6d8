"""From what the passes saw to measurements."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweeprof.metrics.metric import SOURCES, Estimate, Metric, Missing, declared
from sweeprof.metrics.select import Selected
from sweeprof.profiling.live import Live
from sweeprof.profiling.memory import Memory
from sweeprof.profiling.quality import Quality
from sweeprof.profiling.timing import Timing
from sweeprof.results.allocations import Allocations
from sweeprof.results.artifact import Artifact
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.lines import Lines
from sweeprof.results.measurement import Measurement
from sweeprof.results.operators import Operators
from sweeprof.results.own_counts import OwnCounts
from sweeprof.results.peaks import Peaks
from sweeprof.results.record import PassName, Record

_READERS: dict[PassName, Callable[[Mapping[str, Any]], Any]] = {
    "analysis": LayerTable.from_dict,
    "training": Training.from_dict,
    "own_counts": OwnCounts.from_dict,
    "artifact": Artifact.from_dict,
    "peaks": Peaks.from_dict,
    "timing": Timing.from_dict,
    "layer_times": LayerTimes.from_dict,
    "operators": Operators.from_dict,
    "memory": Memory.from_dict,
    "allocations": Allocations.from_dict,
    "lines": Lines.from_dict,
    "quality": Quality.from_dict,
    "live": Live.from_dict,
}


def evaluate(
    selected: Sequence[Selected], records: Sequence[Record], baseline: Sequence[Record] | None, batch_size: int
) -> dict[str, Measurement]:
    """Every selected metric of one combination; what cannot be had is a measurement with a reason.

    Args:
        records: of the combination.
        baseline: of the combination it is compared with; its own records for a baseline, None where there is none.
    """
    return measured(selected, _values(records, baseline, batch_size))


def measured(
    selected: Sequence[Selected], values: Mapping[str, Any], known: Mapping[str, Metric] | None = None
) -> dict[str, Measurement]:
    """Every selected metric of ``values``: what each source is, or :class:`Missing`; live results are under ``live``.

    Args:
        known: the metrics that others may read, by their names as parameters; None for all that are declared.
    """
    reading = _Reading(selected, values, declared() if known is None else known)
    return {s.metric.info.name: reading.measurement(s) for s in selected}


def counted(table: Any) -> Any:
    """The table for metrics that read what the forward does, or why there is none."""
    if isinstance(table, LayerTable) and table.uncounted is not None:
        return Missing(f"analysis: unsupported: {table.uncounted}")
    return table


def _values(records: Sequence[Record], baseline: Sequence[Record] | None, batch_size: int) -> dict[str, Any]:
    table = _single(records, "analysis")
    return {
        "layers": counted(table),
        "weights": table,
        "training": _single(records, "training"),
        "timing": _rounds(records, baseline),
        "baseline_quality": _baseline_quality(baseline),
        "batch_size": batch_size,
        **{name: _single(records, name) for name in _READERS if name not in ("analysis", "training", "timing")},
    }


def _single(records: Sequence[Record], pass_name: PassName) -> Any:
    record = next((r for r in records if r.pass_name == pass_name), None)
    if record is None:
        return Missing(f"{pass_name}: not run")
    if record.status != "ok" or record.observations is None:
        return Missing(f"{pass_name}: {record.status}: {record.reason}")
    return _READERS[pass_name](record.observations)


def _rounds(records: Sequence[Record], baseline: Sequence[Record] | None) -> Any:
    done = _timings(records)
    if not done:
        return _single(records, "timing")
    rivals = _rivals(records, baseline) if any(one.duel for one in done) else {}
    return tuple(dataclasses.replace(one, rival=rivals.get(one.duel.id)) if one.duel else one for one in done)


def _timings(records: Sequence[Record]) -> list[Timing]:
    done = [r for r in records if r.pass_name == "timing" and r.status == "ok"]
    return [Timing.from_dict(r.observations or {}, r.round) for r in sorted(done, key=lambda record: record.round)]


def _rivals(records: Sequence[Record], baseline: Sequence[Record] | None) -> dict[str, Timing]:
    """The baseline's timings by the duel; none for the baseline itself."""
    if not baseline or baseline[0].combination_id == records[0].combination_id:
        return {}
    return {timing.duel.id: timing for timing in _timings(baseline) if timing.duel}


def _baseline_quality(baseline: Sequence[Record] | None) -> Any:
    if baseline is None:
        return Missing("the sweep has no baseline for this combination")
    found = _single(baseline, "quality")
    return Missing(f"of the baseline, {found.reason}") if isinstance(found, Missing) else found


class _Reading:
    """Metrics of one set of values; a function is called once however many metrics are made of what it returns."""

    def __init__(self, selected: Sequence[Selected], values: Mapping[str, Any], known: Mapping[str, Metric]) -> None:
        self._values, self._known = values, known
        self._selected = {id(s.metric): s for s in selected}
        self._results: dict[tuple[int, str], Any] = {}
        self._asked: list[str] = []

    def measurement(self, selected: Selected) -> Measurement:
        """The measurement of a metric."""
        info, result = selected.metric.info, self._estimate(selected)
        if isinstance(result, Missing):
            return Measurement(info.name, info.unit, info.better, None, result.reason)
        return Measurement(
            name=info.name,
            unit=info.unit,
            better=info.better,
            value=result.value,
            estimator=result.estimator,
            interval=result.interval,
            detail=result.detail,
            rounds=result.rounds,
            round_numbers=result.round_numbers,
            warnings=result.warnings,
            paired=result.paired,
            calibrated=result.calibrated,
        )

    def _estimate(self, selected: Selected) -> Estimate | Missing:
        metric = selected.metric
        if metric.is_live:
            return self._found_live(metric)
        arguments = {name: self._argument(name) for name in metric.reads}
        absent = next((v for v in arguments.values() if isinstance(v, Missing)), None)
        if absent is not None:
            return absent
        key = (id(metric.function), repr(sorted(selected.options.items())))
        if key not in self._results:
            self._results[key] = _called(metric, {**arguments, **selected.options})
        returned = self._results[key]
        return checked(returned if isinstance(returned, Missing) else metric.part_of(returned))

    def _argument(self, name: str) -> Any:
        if name in SOURCES:
            return self._values[name]
        if name in self._asked:
            return Missing(f"the metrics {', '.join([*self._asked, name])} read each other")
        other = self._known[name]
        self._asked.append(name)
        try:
            result = self._estimate(self._selected.get(id(other), Selected(other)))
        finally:
            self._asked.pop()
        return Missing(f"{other.info.name}: {result.reason}") if isinstance(result, Missing) else result.value

    def _found_live(self, metric: Metric) -> Estimate | Missing:
        live = self._values["live"]
        if isinstance(live, Missing):
            return live
        found = live.results.get(metric.info.name, {"reason": "live: it was not computed"})
        return Missing(found["reason"]) if "reason" in found else Estimate(**found)


def _called(metric: Metric, arguments: Mapping[str, Any]) -> Any:
    try:
        return metric.function(**arguments)
    except Exception as error:  # a user's metric must not take the comparison with it
        return Missing(f"the metric raised {type(error).__name__}: {error}")


def checked(result: Any) -> Estimate | Missing:
    """What a metric's function gave, as an estimate in plain numbers, or why it is none."""
    if isinstance(result, Missing):
        return result
    estimate = result if isinstance(result, Estimate) else Estimate(result, "exact")
    value: Any = estimate.value  # a user's function may return anything
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item") and not getattr(value, "is_meta", False):
        value = value.item()
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        return Missing(f"the metric gave {value!r}, which is not a finite number")
    return _plain(dataclasses.replace(estimate, value=_number(value)))


def _plain(estimate: Estimate) -> Estimate:
    """The estimate in Python's own numbers; a metric may have computed in numpy's, which JSON does not take."""
    return dataclasses.replace(
        estimate,
        interval=None if estimate.interval is None else (float(estimate.interval[0]), float(estimate.interval[1])),
        detail={key: _number(value) for key, value in estimate.detail.items()},
        rounds=tuple(map(float, estimate.rounds)),
        paired=tuple(map(float, estimate.paired)),
        calibrated=tuple(map(float, estimate.calibrated)),
    )


def _number(value: Any) -> Any:
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


assert {p for p in SOURCES.values() if p} == set(_READERS)
