"""A client of MLflow each of whose calls is tried again, so that a server that fails now and then is served all the same."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from filelock import FileLock

from sweeprof.tracking.process import GIVE_UP_S
from sweeprof.tracking.rest import limit_requests

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


T = TypeVar("T")

_SQLITE = "sqlite:///"
_MIGRATING_S = 60
"""For another process that makes the schema."""
_ANSWERING_S = 10
"""For a database to answer at all."""
_LOCK = 0x5357454550  # "SWEEP"
"""Of a PostgreSQL database: the advisory lock under which its schema is made."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 5.0
_LATER = (408, 429)
"""Statuses below 500 by which a server says: later."""
_NEVER = ("authentication failed", "mlflow db upgrade")
"""Of errors that MLflow and drivers report like a server that is down for a moment."""
_RACED = ("UNIQUE constraint failed: datasets.", 'violates unique constraint "dataset')
"""Of what MLflow refuses where two sweeps bring the same dataset at one moment; a moment later it is there for both."""
_GIVEN_UP = "tried for long enough"
_LOG = logging.getLogger(__name__)
_DRIVERS = ("sqlalchemy", "psycopg", "psycopg2", "botocore", "boto3")


def connected(uri: str) -> MlflowClient:
    """A client of the server or database at ``uri``; raises whatever its libraries do.

    MLflow makes the schema of an empty database when its client is constructed, and of eight processes that do so at once
    seven fail (measured with MLflow 3.17 on sqlite).
    """
    from mlflow.tracking import MlflowClient

    if uri.startswith(("http://", "https://")):
        limit_requests()
    with _alone(uri):
        if uri.startswith(_SQLITE):
            _make_database(_database_file(uri))
        return MlflowClient(tracking_uri=uri)


def _database_file(uri: str) -> Path:
    """The file of a SQLite address."""
    return Path(uri.removeprefix(_SQLITE).partition("?")[0]).absolute()


def _make_database(path: Path) -> None:
    """Make the database at ``path`` with its schema, unless there is one.

    MLflow makes the schema in some fifty steps, and cannot continue after a process that was killed between two of them: every
    later process would be refused. So the schema is made in a file beside it, which takes the name when it is complete.
    """
    from mlflow.tracking import MlflowClient

    if path.exists() and path.stat().st_size > 0:
        return
    unfinished = path.with_name(f"{path.name}.new")
    for left in (unfinished, Path(f"{unfinished}-journal")):
        left.unlink(missing_ok=True)  # of a process that was killed
    MlflowClient(tracking_uri=f"{_SQLITE}{unfinished}")
    unfinished.replace(path)


@contextlib.contextmanager
def _alone(uri: str) -> Iterator[None]:
    if uri.startswith(_SQLITE):
        path = _database_file(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=_MIGRATING_S):
            yield
    elif uri.startswith("postgresql"):
        with _alone_in_postgres(uri):
            yield
    else:
        yield


@contextlib.contextmanager
def _alone_in_postgres(uri: str) -> Iterator[None]:
    import sqlalchemy

    # This also asks whether the server is there at all: MLflow itself would try for 100 seconds.
    known = {"connect_timeout": _ANSWERING_S} if "psycopg" in sqlalchemy.make_url(uri).get_dialect().driver else {}
    engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool, connect_args=known)
    # Of the transaction, not the session: a pooler may give each transaction another session.
    with engine.begin() as connection:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_MIGRATING_S}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        yield


def passes(error: BaseException) -> bool:
    """True if a retry may succeed: the server restarts, hangs or is overloaded, as opposed to refusing the request."""
    if any(words in str(error) for words in _NEVER):
        return False
    if any(words in str(error) for words in _RACED):
        return True
    status = status_of(error)
    if status is not None:
        return status >= 500 or status in _LATER
    return isinstance(error, (ConnectionError, TimeoutError)) or type(error).__name__ == "OperationalError"


def status_of(error: BaseException) -> int | None:
    """The HTTP status of what a server refused, 500 for one that was not reached; None where no server was asked."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return int(error.get_http_status_code())  # type: ignore[no-untyped-call]
    return getattr(getattr(error, "response", None), "status_code", None)  # of an artifact that was not taken


def is_foreign(error: BaseException) -> bool:
    """True if the error comes from MLflow, a driver below it, the network or a disk, not from a bug in this package."""
    from mlflow.exceptions import MlflowException

    return isinstance(error, (MlflowException, OSError)) or type(error).__module__.partition(".")[0] in _DRIVERS


def until_done(step: Callable[[int], T]) -> T:
    """Return the result of ``step``, called with its number of failures; raise its last error after too long without success.

    A step looks afresh at what is there when it is tried again: that no answer came does not mean that nothing was done.
    """
    began, wait_s, failed = time.monotonic(), _FIRST_WAIT_S, 0
    while True:
        try:
            return step(failed)
        except Exception as error:
            # Once more in any case, however long a large step took.
            over = failed > 0 and time.monotonic() + wait_s > began + GIVE_UP_S
            if over or _GIVEN_UP in getattr(error, "__notes__", ()) or not passes(error):
                error.add_note(_GIVEN_UP)  # for a larger step around this one
                raise
        time.sleep(wait_s)
        wait_s, failed = min(2 * wait_s, _LONGEST_WAIT_S), failed + 1


@contextlib.contextmanager
def dispensable(what: str) -> Iterator[None]:
    """Only warn where MLflow refuses ``what``: the numbers are worth more. What may pass is raised, to be sent later."""
    try:
        yield
    except Exception as error:
        if passes(error):
            raise
        _LOG.warning("MLflow took no %s", what, exc_info=True)


_GONE = 404


def retrying(client: MlflowClient, on_progress: Callable[[], object] = lambda: None) -> MlflowClient:
    """``client`` with patience, but for what makes something: whoever does that has to look first whether it is there.

    Args:
        on_progress: is called after each call that succeeded.
    """
    return cast("MlflowClient", _RetryingClient(client, on_progress))


def log_artifacts(client: MlflowClient, run: Run, folder: Path) -> None:
    """Send the files below ``folder`` as artifacts of a run, by a client of :func:`retrying`."""
    is_local = str(run.info.artifact_uri).startswith("file:")
    cast("_RetryingClient", client).log_artifacts(run.info.run_id, str(folder), is_local)


class _RetryingClient:
    def __init__(self, client: MlflowClient, on_progress: Callable[[], object]) -> None:
        self._client, self._on_progress = client, on_progress

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name.startswith("create_"):
            return method
        deletes = name.startswith("delete_")

        def called(*words: object, **named: object) -> Any:
            returned = until_done(functools.partial(_called, functools.partial(method, *words, **named), deletes))
            self._on_progress()
            return returned

        return called

    def log_artifacts(self, run_id: str, local_dir: str, is_local: bool = False) -> None:
        """One file at a time, for of many at once one would always fail; all at once into a folder of this machine."""
        if is_local:
            until_done(lambda _: self._client.log_artifacts(run_id, local_dir))
            self._on_progress()
            return
        for path in sorted(path for path in Path(local_dir).rglob("*") if path.is_file()):
            folder = path.parent.relative_to(local_dir).as_posix()
            self.log_artifact(run_id, str(path), None if folder == "." else folder)


def _called(method: Callable[[], object], deletes: bool, tried: int) -> Any:
    try:
        return method()
    except Exception as error:
        if deletes and tried and status_of(error) == _GONE:  # only the answer to the first try was lost
            return None
        raise
