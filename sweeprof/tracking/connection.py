"""The connection to an MLflow server: logins, the environment of the process that sends, and requests without MLflow's client."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit

from filelock import FileLock

from sweeprof.credentials import redacted_address, redacted_message
from sweeprof.errors import SweeprofError, UserError

if TYPE_CHECKING:
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient


LOGINS = (
    *("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_AUTH"),
    *("MLFLOW_TRACKING_AWS_SIGV4", "MLFLOW_TRACKING_CLIENT_CERT_PATH"),
)
"""Environment variables with which MLflow's client logs in to any server."""
LOGIN_FILE = "~/.mlflow/credentials"
"""A file with logins that it also reads."""
CLOUD = ("AWS_", "AZURE_", "GOOGLE_", "DATABRICKS_", "PG", "MYSQL_")
"""Beginnings of the names of variables by which other libraries log in."""


def logins() -> list[str]:
    """Return the names of this user's variables and files with which MLflow's client would log in, at any address."""
    found = [name for name in LOGINS if os.environ.get(name)]
    with contextlib.suppress(OSError, RuntimeError):  # a user without a home
        if Path(LOGIN_FILE).expanduser().exists():
            found.append(LOGIN_FILE)
    return found


def without_logins(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables without those that hold a user's credentials, and with an empty ``.netrc`` for ``requests``."""
    kept = {key: value for key, value in variables.items() if key not in LOGINS and not key.startswith(CLOUD)}
    return {**kept, "NETRC": os.devnull}


def same_address(one: str, other: str) -> bool:
    """Return whether two addresses are equal apart from their credentials."""
    return redacted_address(one, "").rstrip("/") == redacted_address(other, "").rstrip("/")


def knows_login(address: str) -> bool:
    """Return whether the environment has a user for the server at ``address``, as MLflow's client reads it; never a database's."""
    is_server = address.startswith(("http://", "https://")) and "***" not in address
    return is_server and any(os.environ.get(name) for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_TOKEN"))


LOGIN = "it wants to know who asks: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
"""What to do about the HTTP status 401."""


# The process that sends to MLflow: its environment, its time limit, and where it may put artifacts.


ENVIRONMENT: dict[str, str] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "6",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Environment of the process that sends, unless the user has set a variable.

MLflow's client repeats a request that fails for up to 62 s: a server takes up to 42 s to restart on a loaded machine (measured with
MLflow 3.17). By its own defaults it repeats for four minutes. A server may wait 20 s for its own sqlite database.
"""


def confine_artifacts(output: Path | None) -> None:
    """Let MLflow, in this process, read and write artifacts only below a folder, or through its tracking server.

    For stores that only a sweep's folder names: a server, and a database, say where the artifacts of runs, models and traces are,
    which may be any folder of this machine or any server, so that the author of the store would choose what is read or written.

    Args:
        output: of a database, the folder to which artifacts are confined; None: only the tracking server has artifacts.
    """
    from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry
    from mlflow.utils.file_utils import local_file_uri_to_path

    kinds: dict[str, Callable[..., Any]] = _artifact_repository_registry._registry

    def is_allowed(scheme: str, artifact_uri: str) -> bool:
        if scheme == "mlflow-artifacts":
            return not urlsplit(artifact_uri).netloc  # of the store itself, not one that the artifacts name
        if scheme not in ("", "file") or output is None:
            return False
        root = output.resolve()
        path = Path(local_file_uri_to_path(artifact_uri)).resolve()  # type: ignore[no-untyped-call]
        if path == root:
            return True
        # What is read or written through a link would be elsewhere.
        return path.is_relative_to(root) and not any(map(Path.is_symlink, path.rglob("*")))

    def confined(scheme: str, kind: Callable[..., Any]) -> Callable[..., Any]:
        def made(artifact_uri: str, *words: object, **named: object) -> Any:
            if not is_allowed(scheme, artifact_uri):
                reason = "by the word of a place that only the sweep's folder names; give its address"
                raise UserError(f"artifacts belong at {artifact_uri}, {reason}")
            return kind(artifact_uri, *words, **named)

        return made

    for scheme, kind in kinds.items():
        kinds[scheme] = confined(scheme, kind)


# Requests to a tracking server by its REST interface.


T = TypeVar("T")

LOCAL = ("127.0.0.1", "localhost", "::1")
PORT = 5000
VIEWER = f"http://{LOCAL[0]}:{PORT}"
"""Where ``sweeprof ui`` shows a database, unless another port is given."""
ANSWER_S = 20.0
HEALTH_S = 2.0
REST_ANSWER_BYTES = 16 << 20
"""Many times the size of any answer to a question of this file."""


def within(limit_s: float, step: Callable[[], T]) -> T:
    """Return what ``step`` returns.

    Raises:
        TimeoutError: it did not return within ``limit_s``; it is then left to a thread that does not keep the process alive.
    """
    done: Future[T] = Future()
    threading.Thread(target=_run, args=(step, done), name="sweeprof-request", daemon=True).start()
    try:
        return done.result(limit_s)
    except TimeoutError:
        if done.done():  # raised by the step itself
            raise
        raise TimeoutError(f"no complete answer within {limit_s:g} s") from None
    finally:
        del done  # an error's traceback would keep it, and with it the error: sockets would stay open until the next collection


def _run(step: Callable[[], T], done: Future[T]) -> None:
    try:
        done.set_result(step())
    except BaseException as error:
        done.set_exception(error)


class ServerUnreachable(SweeprofError):
    """A tracking server was not reached, or refused."""


def is_healthy(address: str) -> bool:
    """Return whether a server answers at ``address``. No password is sent, because anyone may be listening there."""
    try:
        _answer(urllib.request.Request(f"{_split(address)[0]}/health"), HEALTH_S)
        return True
    except (OSError, ValueError, HTTPException):
        return False


def found_experiment(address: str, name: str, login: bool = True) -> tuple[str | None, list[str]]:
    """Return the id of the experiment of that name and the keys of its tags; None if there is no such experiment.

    Args:
        login: whether the server may be told the user and password of the environment.

    Raises:
        ServerUnreachable: the server was not reached, or refused.
    """
    # A sweep's name has no quotes in it (sweeprof/config/constraints.py).
    found = _post(address, "experiments/search", {"filter": f"name = '{name}'", "max_results": 1}, login)
    for experiment in found.get("experiments", []):
        return str(experiment["experiment_id"]), [str(tag["key"]) for tag in experiment.get("tags", [])]
    return None, []


def experiment_with(address: str, condition: str, login: bool = True) -> tuple[str | None, list[str]]:
    """Return, as :func:`found_experiment`, the experiment with a run for which ``condition``, in MLflow's language, holds."""
    found = _post(address, "experiments/search", {"max_results": 1000}, login).get("experiments", [])
    tags = {str(one["experiment_id"]): [str(tag["key"]) for tag in one.get("tags", [])] for one in found}
    asked = {"experiment_ids": list(tags), "filter": condition, "max_results": 1}
    for run in _post(address, "runs/search", asked, login).get("runs", []):
        experiment = str(run["info"]["experiment_id"])
        return experiment, tags[experiment]
    return None, []


def run_id(address: str, experiment: str, condition: str, login: bool = True) -> str | None:
    """Return the id of the oldest run for which ``condition``, in MLflow's language, holds; None if there is none.

    Args:
        login: whether the server may be told the user and password of the environment.

    Raises:
        ServerUnreachable: the server was not reached, or refused.
    """
    order = ["attributes.start_time"]
    asked = {"experiment_ids": [experiment], "filter": condition, "order_by": order, "max_results": 1}
    runs = _post(address, "runs/search", asked, login).get("runs", [])
    return str(runs[0]["info"]["run_id"]) if runs else None


def _post(address: str, path: str, question: Mapping[str, Any], login: bool) -> dict[str, Any]:
    plain, authorization = _split(address)
    if authorization is None and login:
        user, token = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_TOKEN")
        if user:
            authorization = _basic(user, os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
        elif token:
            authorization = f"Bearer {token}"
    url = f"{plain.rstrip('/')}/api/2.0/mlflow/{path}"
    request = urllib.request.Request(url, json.dumps(question).encode(), {"Content-Type": "application/json"})
    if authorization:  # which another server, that this one may name instead, has no right to
        request.add_unredirected_header("Authorization", authorization)
    try:
        found: dict[str, Any] = json.loads(_answer(request, ANSWER_S))
        return found
    except (OSError, ValueError, HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        if isinstance(error, HTTPError):
            reason = f"{error.code} {error.reason}"
            if error.code == HTTPStatus.UNAUTHORIZED:
                reason += f"; {LOGIN}"
        raise ServerUnreachable(
            f"MLflow at {redacted_address(address, '')} gave no answer: {redacted_message(reason)}"
        ) from None


def _split(address: str) -> tuple[str, str | None]:
    """Return the address without user and password, and the header that they stand for, as MLflow's client has it."""
    parts = urlsplit(address)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    if not parts.username:
        return plain, None
    return plain, _basic(urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _answer(request: urllib.request.Request, timeout_s: float) -> bytes:
    """Return the whole answer; raises ``TimeoutError`` if it is late, and ``ValueError`` if it is too large."""
    # A proxy, meant for the world outside, knows nothing of this machine's own servers.
    host = urlsplit(request.full_url).hostname
    proxies = urllib.request.ProxyHandler({} if host in LOCAL else None)

    def step() -> bytes:
        try:
            with urllib.request.build_opener(proxies).open(request, timeout=timeout_s) as answer:
                return bytes(answer.read(REST_ANSWER_BYTES + 1))
        except HTTPError as error:
            error.close()
            raise

    content = within(timeout_s, step)
    if len(content) > REST_ANSWER_BYTES:
        raise ValueError(f"its answer is larger than {REST_ANSWER_BYTES >> 20} MiB")
    return content


# A client of MLflow.


_SQLITE = "sqlite:///"
_MIGRATING_S = 60
"""For another process that makes the schema."""
_ANSWERING_S = 10
"""For a server or a database to answer at all."""
_PORTS = {"http": 80, "https": 443}
_LOCK = 0x5357454550  # "SWEEP"
"""Of a PostgreSQL database: the advisory lock under which its schema is made."""
_LOG = logging.getLogger(__name__)


def check_listening(uri: str) -> None:
    """Raise ``OSError`` at once where no server listens: MLflow would repeat its first request for a minute.

    Where requests go through a proxy, it is the proxy that knows.
    """
    parts = urlsplit(uri)
    host = parts.hostname or ""
    has_proxy = not {parts.scheme, "all"}.isdisjoint(urllib.request.getproxies())
    if parts.scheme not in _PORTS or (has_proxy and not urllib.request.proxy_bypass(host)):
        return
    socket.create_connection((host, parts.port or _PORTS[parts.scheme]), _ANSWERING_S).close()


def connected(uri: str) -> MlflowClient:
    """Return a client of the server or database at ``uri``; raises whatever its libraries do.

    MLflow makes the schema of an empty database when its client is constructed, and of eight processes that do so at once
    seven fail (measured with MLflow 3.17 on sqlite).
    """
    from mlflow.tracking import MlflowClient

    with _alone(uri):
        if uri.startswith(_SQLITE):
            _make_database(_database_file(uri))
        return MlflowClient(tracking_uri=uri)


def _database_file(uri: str) -> Path:
    """Return the file of a SQLite address."""
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
    """Keep other processes from making the schema of a database at the same time."""
    if uri.startswith(_SQLITE):
        path = _database_file(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=_MIGRATING_S):
            yield
    elif uri.startswith("postgresql"):
        import sqlalchemy

        # This also asks whether the server is there at all: MLflow itself would try for 100 seconds.
        arguments = {}
        if "psycopg" in sqlalchemy.make_url(uri).get_dialect().driver:
            arguments["connect_timeout"] = _ANSWERING_S
        engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool, connect_args=arguments)
        # Of the transaction, not the session: a pooler may give each transaction another session.
        with engine.begin() as connection:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_MIGRATING_S}s'")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            yield
    else:
        yield


def is_unavailable(error: MlflowException) -> bool:
    """Return whether a server or database is overloaded or not reached, as opposed to refusing a request."""
    status = int(error.get_http_status_code())  # type: ignore[no-untyped-call]
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS


@contextlib.contextmanager
def dispensable(what: str) -> Iterator[None]:
    """Only warn if MLflow refuses ``what``, without which the values are complete; an unavailable server is raised."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if is_unavailable(error):
            raise
        _LOG.warning("MLflow took no %s", what, exc_info=True)


@contextlib.contextmanager
def deleting() -> Iterator[None]:
    """Accept that what is deleted is not there: the client repeats a request if only its response was lost."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
