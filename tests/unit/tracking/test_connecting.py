"""What is tried again, and for how long, by a clock of the test's own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from mlflow.tracking.registry import UnsupportedModelRegistryStoreURIException

from sweeprof.tracking import connection
from sweeprof.tracking.connection import GIVE_UP_S, connected, is_foreign, passes, until_done


class Clock:
    """Time passes where it is slept, or where a step takes some."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(connection, "time", found)
    return found


def failing(times: int, error: BaseException, clock: Clock, takes_s: float = 0.0) -> Callable[[int], int]:
    """A step that fails at first, and returns how often it was told that it did."""

    def step(failed: int) -> int:
        clock.now += takes_s
        if failed < times:
            raise error
        return failed

    return step


def test_what_passes_is_tried_until_it_is_done(tracker_environment: None, clock: Clock) -> None:
    assert until_done(failing(5, ConnectionError("refused"), clock)) == 5


@pytest.mark.parametrize(("takes_s", "within_s"), [(0.0, GIVE_UP_S), (20.0, GIVE_UP_S + 20)])
def test_what_does_not_pass_is_given_up(
    takes_s: float, within_s: float, tracker_environment: None, clock: Clock
) -> None:
    began = clock.now
    with pytest.raises(TimeoutError, match="hung"):
        until_done(failing(1000, TimeoutError("hung"), clock, takes_s))
    assert GIVE_UP_S - 10 <= clock.now - began <= within_s


def test_a_step_that_takes_long_is_tried_twice(tracker_environment: None, clock: Clock) -> None:
    assert until_done(failing(1, ConnectionError("reset"), clock, takes_s=100)) == 1


def test_a_refusal_is_final(tracker_environment: None, clock: Clock) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

    error = MlflowException("no such value", INVALID_PARAMETER_VALUE)
    with pytest.raises(MlflowException):
        until_done(failing(1, error, clock))
    assert clock.now == Clock.now


def test_which_errors_pass(tracker_environment: None) -> None:
    import requests
    from mlflow.exceptions import MlflowException, RestException
    from mlflow.protos.databricks_pb2 import BAD_REQUEST, PERMISSION_DENIED, TEMPORARILY_UNAVAILABLE
    from sqlalchemy.exc import IntegrityError, OperationalError

    def answered(status: int) -> requests.HTTPError:
        response = requests.Response()
        response.status_code = status
        return requests.HTTPError("artifact", response=response)

    later = [
        MlflowException("API request failed with exception …: Connection refused"),
        MlflowException("database is locked", TEMPORARILY_UNAVAILABLE),
        RestException({"error_code": "REQUEST_LIMIT_EXCEEDED", "message": "too many"}),  # type: ignore[no-untyped-call]
        OperationalError("SELECT", {}, Exception("the database system is starting up")),
        MlflowException("(sqlite3.IntegrityError) UNIQUE constraint failed: datasets.experiment_id", BAD_REQUEST),
        MlflowException('duplicate key value violates unique constraint "dataset_pk"', BAD_REQUEST),
        ConnectionResetError("reset"),
        TimeoutError("another process"),
        answered(503),
        answered(429),
    ]
    never = [
        MlflowException("Invalid Host header", PERMISSION_DENIED),
        MlflowException("Detected out-of-date database schema … run 'mlflow db upgrade <database_uri>'"),
        OperationalError("", {}, Exception('password authentication failed for user "me"')),
        IntegrityError("INSERT", {}, Exception("twice")),
        FileNotFoundError("records"),
        OSError(28, "No space left on device"),
        answered(403),
        KeyError("a mistake of ours"),
    ]
    assert [passes(error) for error in later] == [True] * len(later)
    assert [passes(error) for error in never] == [False] * len(never)
    assert [is_foreign(error) for error in (*later, *never)] == [True] * (len(later) + len(never) - 1) + [False]


def test_an_address_that_nothing_knows_is_refused(tracker_environment: None, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelRegistryStoreURIException, match="nonsense") as raised:
        connected("nonsense://x")
    assert not passes(raised.value)


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
