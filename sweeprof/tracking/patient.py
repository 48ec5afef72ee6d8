"""A client of MLflow each of whose calls is tried again, so that a server that fails now and then is served all the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sweeprof.tracking.connecting import status_of, until_done

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_GONE = 404


def patient(client: MlflowClient, on_progress: Callable[[], object] = lambda: None) -> MlflowClient:
    """``client`` with patience, but for what makes something: whoever does that has to look first whether it is there.

    Args:
        on_progress: is called after each call that succeeded.
    """
    return cast("MlflowClient", _Patient(client, on_progress))


class _Patient:
    def __init__(self, client: MlflowClient, on_progress: Callable[[], object]) -> None:
        self._client, self._on_progress = client, on_progress

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name.startswith("create_"):
            return method
        deletes = name.startswith("delete_")

        def called(*words: Any, **named: Any) -> Any:
            returned = until_done(functools.partial(_called, functools.partial(method, *words, **named), deletes))
            self._on_progress()
            return returned

        return called

    def log_artifacts(self, run_id: str, local_dir: str) -> None:
        """One file at a time, for of many at once one would always fail."""
        for path in sorted(path for path in Path(local_dir).rglob("*") if path.is_file()):
            folder = path.parent.relative_to(local_dir).as_posix()
            self.log_artifact(run_id, str(path), None if folder == "." else folder)


def _called(method: Callable[[], Any], deletes: bool, tried: int) -> Any:
    try:
        return method()
    except Exception as error:
        if deletes and tried and status_of(error) == _GONE:  # only the answer to the first try was lost
            return None
        raise
