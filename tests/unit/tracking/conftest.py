"""MLflow as the driver starts it, with a home of its own, and an empty database, made once as that takes seconds.

MLflow is imported in fixtures and tests only: its telemetry looks at the environment when it is imported.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.store import Store
from sweeprof.tracking.mlflow import ENVIRONMENT


@pytest.fixture(scope="session")
def tracker_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def empty_database(tracker_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("database") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments(max_results=1)
    return path


@pytest.fixture
def store(empty_database: Path, tmp_path: Path) -> Store:
    folder = tmp_path / "outputs"
    folder.mkdir()
    shutil.copyfile(empty_database, folder / "mlflow.db")
    return Store(folder)
