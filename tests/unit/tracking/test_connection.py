"""Connecting to MLflow: an empty database, a server that refuses, and servers that answer as none should."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from support.misbehaving import BEHAVIOURS, Behaviour, misbehaving
from support.plans import fake_plan, sweep_folder
from support.samples import comparison
from sweeprof.run import tracker_process
from sweeprof.run.tracker_process import StoredTracker, TrackerProcess, trouble_of
from sweeprof.tracking import MLFLOW, connection
from sweeprof.tracking.connection import ServerUnreachable, connected, found_experiment, is_healthy
from sweeprof.tracking.mlflow import MlflowTracker, TrackingError
from sweeprof.tracking.runs import sweep_info

ENDS_S = 15.0
"""Many times the limits that are set here, and less than a server needs that sends a byte at a time."""
NAMES = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
REASONS = {
    "trickles headers": "no complete answer within 0.3 s",
    "trickles": "no complete answer within 0.3 s",
    "never stops": "is larger than 1 MiB",
    "never answers": "(no complete answer within|timed out)",
    "closes": "(IncompleteRead|Connection broken|[Cc]onnection reset|Expecting property)",
    "redirects": "(redirect|Redirect|307)",
}


@pytest.fixture(autouse=True)
def _no_request_is_left() -> Iterator[None]:
    """A request that was given up keeps its thread and its socket until the server closes it."""
    yield
    for thread in threading.enumerate():
        if thread.name == "sweeprof-request":
            thread.join(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch, tracker_environment: None) -> None:
    monkeypatch.setattr(connection, "REST_ANSWER_BYTES", 1 << 20)
    monkeypatch.setattr(connection, "ANSWER_S", 0.3)
    monkeypatch.setattr(connection, "HEALTH_S", 0.3)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")


@pytest.mark.thorough
@pytest.mark.usefixtures("short_limits")
def test_endless_requests_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_process, "OPEN_S", 8.0)
    folder = sweep_folder(tmp_path / "outputs" / "name" / "sweep", fake_plan({"a": {}}))
    with misbehaving("trickles") as address:
        tracker = StoredTracker({"_target_": MLFLOW, "uri": address}, confined=False)
        with TrackerProcess(tracker, folder) as process:
            process.open(folder.read_plan())
            assert process.opened(60) is None
            assert process.trouble == "the tracker did not answer within 8 s"


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_every_question_by_rest_ends(behaviour: Behaviour) -> None:
    with misbehaving(behaviour) as address:
        began = time.monotonic()
        with pytest.raises(ServerUnreachable, match=REASONS[behaviour]):
            found_experiment(address, "name")
        if behaviour != "closes":
            assert not is_healthy(address)
        assert time.monotonic() - began < ENDS_S


def test_a_server_that_is_down_is_one_clear_error_at_once(tracker_environment: None, tmp_path: Path) -> None:
    tracker = MlflowTracker("http://me:secret@127.0.0.1:9", tmp_path)
    began = time.monotonic()
    with pytest.raises(TrackingError, match=r"^MLflow at http://127\.0\.0\.1:9: .*Connection refused") as raised:
        tracker.open(sweep_info(comparison()))
    assert time.monotonic() - began < ENDS_S
    assert "secret" not in str(raised.value)
    assert not any(tmp_path.iterdir())


def test_trouble_of_a_refused_tracker_names_the_variables_to_set(tracker_environment: None) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.utils.rest_utils import verify_rest_response

    answer = requests.Response()
    answer.status_code, answer._content = 401, b"You are not authenticated."
    with pytest.raises(MlflowException) as raised:
        verify_rest_response(answer, "/api/2.0/mlflow/experiments/search")
    assert all(name in trouble_of(raised.value) for name in NAMES)


def test_other_trouble_says_nothing_of_a_login() -> None:
    assert trouble_of(OSError("no route to http://me:secret@host/")) == "OSError: no route to http://host/"


def is_begun(folder: Path) -> bool:
    """True if the first tables of the database are there, whatever the name of its file."""
    for name in ("mlflow.db", "mlflow.db.new"):
        with suppress(FileNotFoundError):
            if (folder / name).stat().st_size > 60_000:
                return True
    return False


@pytest.mark.thorough
def test_a_killed_process_leaves_no_unfinished_database(tracker_environment: None, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    program = f"from sweeprof.tracking.connection import connected; connected({uri!r})"
    process = subprocess.Popen([sys.executable, "-c", program])
    while process.poll() is None and not is_begun(tmp_path):
        time.sleep(0.001)
    process.kill()
    assert process.wait() < 0, "it was done before it was killed"
    assert connected(uri).create_experiment("after")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mlflow.db", "mlflow.db.lock"]
