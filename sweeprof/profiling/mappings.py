"""The mappings that a Profiler gives: read-only, and printed as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from sweeprof.display import Displayed
from sweeprof.metrics.metric import Metric

if TYPE_CHECKING:
    from sweeprof.report.view import View

T = TypeVar("T")


class ReadOnly(Displayed, Mapping[str, T]):
    """The current content of a mapping, which a caller cannot change."""

    def __init__(self, known: Mapping[str, T]) -> None:
        self._known = known

    def __getitem__(self, name: str) -> T:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __view__(self) -> View:
        from sweeprof.report.display import view_of

        return view_of(self._known)


class KnownMetrics(ReadOnly[Metric]):
    """Metrics by name."""

    def __view__(self) -> View:
        from sweeprof.report.view import View, counted, rows_table

        return View(counted(len(self), "metric"), (rows_table([metric.info for metric in self.values()]),))
