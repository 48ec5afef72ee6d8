"""Layers logged from a training loop, read back from a real MLflow store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch import nn

import sweeprof

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


def test_the_table_is_an_artifact_of_the_run(
    output: Path, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{output / 'mlflow.db'}")
    layers = sweeprof.profile(nn.Linear(8, 32), (1, 8)).layers
    experiment = client.create_experiment("loop", artifact_location=(output / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=experiment) as run:
        sweeprof.log_layers(layers)
    sweeprof.log_layers(layers, name="later", run_id=run.info.run_id)
    found = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert found == {"layers.csv", "layers.html", "later.csv", "later.html"}
    assert mlflow.artifacts.load_text(f"{run.info.artifact_uri}/layers.csv") == layers.to_csv()
