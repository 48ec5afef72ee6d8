"""Connecting to a database, which may be empty."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from mlflow.tracking.registry import UnsupportedModelRegistryStoreURIException

from sweeprof.tracking.connection import connected


def test_an_address_that_nothing_knows_is_refused(tracker_environment: None, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelRegistryStoreURIException, match="nonsense"):
        connected("nonsense://x")


def is_begun(folder: Path) -> bool:
    """True if the first tables of the database are there, whatever the name of its file."""
    for name in ("mlflow.db", "mlflow.db.new"):
        with suppress(FileNotFoundError):
            if (folder / name).stat().st_size > 60_000:
                return True
    return False


def test_a_process_killed_while_it_makes_the_database_leaves_none_that_is_unfinished(
    tracker_environment: None, tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    program = f"from sweeprof.tracking.connection import connected; connected({uri!r})"
    process = subprocess.Popen([sys.executable, "-c", program])
    while process.poll() is None and not is_begun(tmp_path):
        time.sleep(0.001)
    process.kill()
    assert process.wait() < 0, "it was done before it was killed"
    assert isinstance(client := connected(uri), MlflowClient)
    assert client.create_experiment("after")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mlflow.db", "mlflow.db.lock"]
