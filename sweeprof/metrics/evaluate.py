"""From the records of a combination to its measurements."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweeprof.metrics.metric import SOURCES, Estimate, Missing
from sweeprof.metrics.select import Selected
from sweeprof.profiling.layers import LayerTable
from sweeprof.profiling.memory import Memory
from sweeprof.profiling.quality import Quality
from sweeprof.profiling.timing import Timing
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import PassName, Record

_READERS: dict[PassName, Callable[[Mapping[str, Any]], Any]] = {
    "analysis": LayerTable.from_dict,
    "timing": Timing.from_dict,
    "memory": Memory.from_dict,
    "quality": Quality.from_dict,
}


def evaluate(
    selected: Sequence[Selected], records: Sequence[Record], baseline: Sequence[Record] | None, batch_size: int
) -> dict[str, Measurement]:
    """Every selected metric of one combination; what cannot be had is a measurement with a reason.

    Args:
        records: of the combination.
        baseline: of the combination it is compared with; its own records for a baseline, None where there is none.
    """
    values = _values(records, baseline, batch_size)
    return {s.metric.info.name: _evaluated(s, values) for s in selected}


def _values(records: Sequence[Record], baseline: Sequence[Record] | None, batch_size: int) -> dict[str, Any]:
    return {
        "layers": _single(records, "analysis"),
        "timing": _rounds(records),
        "memory": _single(records, "memory"),
        "quality": _single(records, "quality"),
        "baseline_quality": _baseline_quality(baseline),
        "batch_size": batch_size,
    }


def _single(records: Sequence[Record], pass_name: PassName) -> Any:
    record = next((r for r in records if r.pass_name == pass_name), None)
    if record is None:
        return Missing(f"{pass_name}: not run")
    if record.status != "ok" or record.observations is None:
        return Missing(f"{pass_name}: {record.status}: {record.reason}")
    return _READERS[pass_name](record.observations)


def _rounds(records: Sequence[Record]) -> Any:
    timings = sorted((r for r in records if r.pass_name == "timing"), key=lambda record: record.round)
    done = [r for r in timings if r.status == "ok"]
    if not done:
        return _single(records, "timing")
    return tuple(Timing.from_dict(r.observations or {}, r.round) for r in done)


def _baseline_quality(baseline: Sequence[Record] | None) -> Any:
    if baseline is None:
        return Missing("the sweep has no baseline for this combination")
    found = _single(baseline, "quality")
    return Missing(f"of the baseline, {found.reason}") if isinstance(found, Missing) else found


def _evaluated(selected: Selected, values: Mapping[str, Any]) -> Measurement:
    info = selected.metric.info
    result = _result(selected, values)
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
    )


def _result(selected: Selected, values: Mapping[str, Any]) -> Estimate | Missing:
    absent = next((v for name in selected.metric.reads if isinstance(v := values[name], Missing)), None)
    if absent is not None:
        return absent
    try:
        result = selected.metric(values, **selected.options)
    except Exception as error:  # a user's metric must not take the comparison with it
        return Missing(f"the metric raised {type(error).__name__}: {error}")
    if isinstance(result, Missing):
        return result
    estimate = result if isinstance(result, Estimate) else Estimate(result, "exact")
    value: Any = estimate.value  # a user's function may return anything
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        return Missing(f"the metric gave {value!r}, which is not a finite number")
    return _plain(estimate)


def _plain(estimate: Estimate) -> Estimate:
    """The estimate in Python's own numbers; a metric may have computed in numpy's, which JSON does not take."""
    return dataclasses.replace(
        estimate,
        value=_number(estimate.value),
        interval=None if estimate.interval is None else (float(estimate.interval[0]), float(estimate.interval[1])),
        detail={key: _number(value) for key, value in estimate.detail.items()},
        rounds=tuple(float(value) for value in estimate.rounds),
    )


def _number(value: Any) -> Any:
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


assert {p for p in SOURCES.values() if p} == set(_READERS)
