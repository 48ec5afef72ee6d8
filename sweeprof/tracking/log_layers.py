"""Logs the layers of a model to the MLflow run that is active, from within a training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweeprof.profiling.layers import Layers


def log_layers(layers: Layers, name: str = "layers", run_id: str | None = None) -> None:
    """Log a table of layers as ``NAME.csv`` and ``NAME.html``.

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
