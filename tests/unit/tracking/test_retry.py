"""Which calls are tried again, with a client that fails as it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweeprof.tracking import connection
from sweeprof.tracking.connection import retrying


class Failing:
    """Raises the given errors one after the other, then does what it is asked."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.done: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any) -> str:
            if self.errors:
                raise self.errors.pop(0)
            self.done.append((name, *words))
            return name

        return call


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tracker_environment: None) -> None:
    monkeypatch.setattr(connection, "_FIRST_WAIT_S", 0.001)


def made(client: Failing) -> Any:
    return retrying(client)  # type: ignore[arg-type]


def test_a_call_is_tried_again() -> None:
    client = Failing(ConnectionError("reset"), TimeoutError("hung"))
    assert made(client).set_tag("run", "key", "text") == "set_tag"
    assert client.done == [("set_tag", "run", "key", "text")]


def test_nothing_is_made_twice() -> None:
    with pytest.raises(ConnectionError):
        made(Failing(ConnectionError("reset"))).create_run("experiment")


def test_what_an_earlier_try_deleted_is_gone() -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

    gone = MlflowException("no such tag", RESOURCE_DOES_NOT_EXIST)
    assert made(Failing(ConnectionError("reset"), gone)).delete_tag("run", "key") is None
    with pytest.raises(MlflowException, match="no such tag"):
        made(Failing(gone)).delete_tag("run", "key")


def test_artifacts_are_sent_one_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    for name in ("config.json", "records/timing-r0.json"):
        (tmp_path / name).touch()
    client = Failing(ConnectionError("reset"))
    made(client).log_artifacts("run", str(tmp_path))
    assert client.done == [
        ("log_artifact", "run", str(tmp_path / "config.json"), None),
        ("log_artifact", "run", str(tmp_path / "records/timing-r0.json"), "records"),
    ]
