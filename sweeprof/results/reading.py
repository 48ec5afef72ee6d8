"""A comparison read back from what :meth:`Comparison.to_dict` gave, of this or an earlier version."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from sweeprof.results.compare import SCHEMA_VERSION, Against, Comparison, Excluded, Row
from sweeprof.results.measurement import Measurement, MetricInfo
from sweeprof.results.record import Failure, Warning
from sweeprof.results.verdicts import Cell

T = TypeVar("T")


def comparison_from(data: Any) -> Comparison:
    """The comparison; fields that this version does not know are ignored.

    Raises:
        ValueError: the data are no comparison, or come from a later version.
    """
    try:
        version = int(data.get("schema_version", 1))
        if version > SCHEMA_VERSION:
            raise ValueError(f"comparison schema {version} is newer than this sweeprof, which reads {SCHEMA_VERSION}")
        return _comparison(data)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"is no comparison of sweeprof ({type(error).__name__}: {error})") from None


def _comparison(data: Mapping[str, Any]) -> Comparison:
    against = data.get("against")
    return _made(
        Comparison,
        data,
        axes=tuple(data["axes"]),
        metrics=tuple(_made(MetricInfo, one) for one in data["metrics"]),
        rows=tuple(map(_row, data["rows"])),
        excluded=tuple(_made(Excluded, one) for one in data.get("excluded", ())),
        against=_against(against) if against else None,
        pareto=tuple(data.get("pareto", ())),
        constraints=tuple(data.get("constraints", ())),
        schema_version=SCHEMA_VERSION,
    )


def _against(data: Mapping[str, Any]) -> Against:
    return _made(
        Against,
        data,
        software={key: _pair(value) for key, value in data["software"].items()},
        settings={key: tuple(map(_pair, values)) for key, values in data["settings"].items()},
        absent=tuple(data["absent"]),
    )


def _row(data: Mapping[str, Any]) -> Row:
    return _made(
        Row,
        data,
        cells={name: _cell(cell) for name, cell in data["cells"].items()},
        warnings=tuple(_made(Warning, one) for one in data.get("warnings", ())),
        differs={key: _pair(value) for key, value in data.get("differs", {}).items()},
        misses=tuple(data.get("misses", ())),
        sessions=tuple(data.get("sessions", ())),
        failures=tuple(_made(Failure, one) for one in data.get("failures", ())),
    )


def _cell(data: Mapping[str, Any]) -> Cell:
    interval = data.get("ratio_interval")
    return _made(
        Cell, data, measurement=_measurement(data["measurement"]), ratio_interval=_pair(interval) if interval else None
    )


def _measurement(data: Mapping[str, Any]) -> Measurement:
    interval = data.get("interval")
    lists = {name: tuple(data.get(name, ())) for name in ("rounds", "round_numbers", "paired", "calibrated")}
    return _made(
        Measurement,
        data,
        interval=_pair(interval) if interval else None,
        warnings=tuple(_made(Warning, one) for one in data.get("warnings", ())),
        failure=_made(Failure, data["failure"]) if data.get("failure") else None,
        **lists,
    )


def _pair(values: Any) -> tuple[Any, Any]:
    first, second = values
    return first, second


def _made(kind: type[T], data: Mapping[str, Any], **given: Any) -> T:
    """A ``kind`` of the fields that it has, those ``given`` instead of the data's."""
    names = {spec.name for spec in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{**{key: value for key, value in data.items() if key in names}, **given})
