"""Servers that answer as none should: every request ends, with a reason."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.misbehaving import BEHAVIOURS, Behaviour, misbehaving
from support.plans import fake_plan, sweep_folder
from support.samples import comparison
from sweeprof.run import tracker_process
from sweeprof.run.tracker_process import StoredTracker, TrackerProcess
from sweeprof.tracking import MLFLOW, SweepInfo, connection
from sweeprof.tracking.connection import ServerUnreachable, found_experiment, is_healthy, within
from sweeprof.tracking.mlflow import MlflowTracker, TrackingError

ENDS_S = 15.0
"""Many times the limits that are set here, and less than a server needs that sends a byte at a time."""
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


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch, tracker_environment: None) -> None:
    monkeypatch.setattr(connection, "REST_ANSWER_BYTES", 1 << 20)
    monkeypatch.setattr(connection, "ANSWER_S", 0.3)
    monkeypatch.setattr(connection, "HEALTH_S", 0.3)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")


@pytest.mark.parametrize("behaviour", ["never answers", "closes", "redirects"])
def test_requests_to_mlflow_end(behaviour: Behaviour, tmp_path: Path) -> None:
    of = comparison()
    info = SweepInfo(of.sweep_id, of.name, of.command, of.created, of.axes, len(of.rows))
    with misbehaving(behaviour) as address, pytest.raises(TrackingError, match=REASONS[behaviour]):
        MlflowTracker(address, tmp_path).open(info)


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["trickles headers", "trickles", "never stops"])
def test_the_process_is_killed_if_a_request_does_not_end(
    behaviour: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_process, "OPEN_S", 8.0)
    folder = sweep_folder(tmp_path / "outputs" / "name" / "sweep", fake_plan({"a": {}}))
    with misbehaving(behaviour) as address:
        tracker = StoredTracker({"_target_": MLFLOW, "uri": address}, confined=False)
        with TrackerProcess(tracker, folder) as process:
            process.open(folder.read_plan())
            assert process.opened(60) is None
            assert process.trouble == "the tracker did not answer within 8 s"


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_every_question_by_rest_ends(behaviour: Behaviour) -> None:
    with misbehaving(behaviour) as address:
        began = time.monotonic()
        with pytest.raises(ServerUnreachable, match=REASONS[behaviour]):
            found_experiment(address, "name")
        if behaviour != "closes":
            assert not is_healthy(address)
        assert time.monotonic() - began < ENDS_S


def test_what_a_step_raises_is_raised() -> None:
    def fail() -> Any:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        within(5, fail)
    assert within(5, lambda: 7) == 7
