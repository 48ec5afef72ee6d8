"""Trackers read finished records and show a sweep elsewhere, as in MLflow.

A tracker runs in a process of its own beside the driver. It opens while the first trials run, which do not wait for it, closes
after everything is measured, and may fail at any time without harming a measurement.

Reasons for its design: docs/decisions/tracking.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sweeprof.profiling.layers import Layers
    from sweeprof.results.compared_rows import Comparison
    from sweeprof.results.record import Record


MLFLOW = "sweeprof.tracking.mlflow.MlflowTracker"
SweepOutcome = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class MlflowConfig:
    """The settings of :data:`MLFLOW` that ``tracking.json`` may hold."""

    uri: str | None = None
    history: bool = False
    parent_run: str | None = None


KNOWN: dict[str, type[MlflowConfig]] = {MLFLOW: MlflowConfig}
"""The trackers that the folder of a sweep may name, by ``_target_``, and what it may set; any other is code of somebody's own."""


@dataclass(frozen=True, slots=True)
class SweepInfo:
    """Properties of a sweep that are known before anything is measured."""

    sweep_id: str
    name: str
    command: str
    created: str
    """ISO 8601, UTC."""
    axes: tuple[str, ...]
    combinations: int


@dataclass(frozen=True, slots=True)
class Links:
    """The addresses at which a user finds the sweep in the tracker."""

    needs_viewer: bool
    """True if a viewer has to be started: the store is a database, not a server."""
    comparison: str
    """The address that opens the comparison."""


class Tracker:
    """The base class of trackers, used by the driver; constructed from ``conf/tracking/NAME.yaml``."""

    on_progress: Callable[[], object] = staticmethod(lambda: None)
    """The driver sets this function. A tracker calls it after everything that it sends; one that makes no progress is killed."""

    def open(self, sweep: SweepInfo) -> Links:
        """Make what shows that the sweep has begun; safe to call again for the same sweep. Nothing waits for it."""
        raise NotImplementedError

    def show(self, comparison: Comparison, records: Sequence[Record], folder: Path, ids: Collection[str]) -> None:
        """Send the combinations ``ids``, and show the state of the whole sweep; called again and again while the sweep runs.

        Args:
            records: of these combinations, as of :meth:`close`.
            folder: has the reports of this state.
        """

    def close(
        self, comparison: Comparison, records: Sequence[Record], folder: Path, ending: SweepOutcome
    ) -> Links | None:
        """Send what was measured; safe to call again, and called also where :meth:`open` failed or another process did it.

        Args:
            records: of every trial, without what it saw, its environment and its traceback; those are in the files of ``folder``.
            folder: holds ``records/``, ``comparison.*`` and ``report.html``.
        """
        raise NotImplementedError


def log_layers(layers: Layers, name: str = "layers", run_id: str | None = None) -> None:
    """Log a table of layers to a run of MLflow, from within a training loop, as ``NAME.csv`` and ``NAME.html``.

    Args:
        layers: the table, e.g. of :class:`sweeprof.TrainingProfiler`.
        name: of the artifacts.
        run_id: of the run; None: the active run, or a new one.

    Raises:
        mlflow.exceptions.MlflowException: the server does not take it.
    """
    import mlflow

    mlflow.log_text(layers.to_csv(), f"{name}.csv", run_id=run_id)
    mlflow.log_text(layers.to_html(title=name), f"{name}.html", run_id=run_id)
