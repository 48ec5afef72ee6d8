"""The mappings that a Profiler gives: read-only, and printed as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from sweeprof.display import Displayed
from sweeprof.metrics.metric import Metric
from sweeprof.results.measurement import Measurement

if TYPE_CHECKING:
    from sweeprof.report.display.view import View

T = TypeVar("T")


class ReadOnly(Displayed, Mapping[str, T], Generic[T]):
    """The current content of a mapping, which a caller cannot change."""

    def __init__(self, known: Mapping[str, T]) -> None:
        self._known = known

    def __getitem__(self, name: str) -> T:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class ComputedMetrics(ReadOnly[Measurement]):
    """Measurements by metric name."""

    def __view__(self) -> View:
        from sweeprof.report.display.view import View
        from sweeprof.report.display.views import counted, measurements_table

        return View(f"{counted(len(self), 'metric')} computed", (measurements_table(self),) if self else ())


class KnownMetrics(ReadOnly[Metric]):
    """Metrics by name."""

    def __view__(self) -> View:
        from sweeprof.report.display.view import View
        from sweeprof.report.display.views import counted, metrics_table

        return View(counted(len(self), "metric"), (metrics_table(metric.info for metric in self.values()),))
