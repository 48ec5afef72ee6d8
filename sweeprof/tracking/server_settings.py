"""What a user may ask of a tracking server: defaults made absolute, and what would keep it from starting."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from sweeprof.errors import Problem
from sweeprof.tracking.credentials import without_credentials
from sweeprof.tracking.serving import Serving

_SQLITE = "sqlite:///"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
# SQLAlchemy 2.1 takes psycopg for postgresql:// (MLFLOW.md 1); who names a driver knows what it needs.
_DRIVEN_BY_PSYCOPG = ("postgresql", "postgresql+psycopg")
_S3 = "s3://"
_ANSWER_S = 10


def store_of(given: str | None, output: Path) -> str:
    """The database, as an address that means the same in every folder: by default that of the sweeps below ``output``."""
    if given is None:
        return f"{_SQLITE}{output.absolute() / 'mlflow.db'}"
    if not given.startswith(_SQLITE):
        return given
    path, mark, query = given.removeprefix(_SQLITE).partition("?")
    return f"{_SQLITE}{Path(path).absolute()}{mark}{query}"


def artifacts_of(given: str | None, store: str, output: Path) -> str:
    """The artifacts' place: by default beside the database where that is a file, else below ``output``."""
    if given is not None:
        return given if "://" in given else str(Path(given).absolute())
    database = database_file(store)
    return str((database.parent if database else output.absolute()) / "mlflow-artifacts")


def database_file(store: str) -> Path | None:
    """The file of a store that is one."""
    return Path(store.removeprefix(_SQLITE).partition("?")[0]) if store.startswith(_SQLITE) else None


def mistakes_of(serving: Serving, store_key: str = "--store") -> Iterator[Problem]:
    """What is wrong with it wherever it is to run; ``store_key`` is where the store was given."""
    shown = without_credentials(serving.store)
    scheme, separator, _ = serving.store.partition("://")
    if not separator or scheme.partition("+")[0] not in _DATABASES:
        yield Problem(
            store_key, shown, "is no database's address: sqlite:///PATH, postgresql://USER:PASSWORD@HOST/NAME."
        )
    elif find_spec("mlflow") is None:
        yield _missing(store_key, shown, "mlflow", "mlflow")
    elif scheme in _DRIVEN_BY_PSYCOPG and find_spec("psycopg") is None:
        yield _missing(store_key, shown, "psycopg", "postgresql")
    if "://" in serving.artifacts and not serving.artifacts.startswith(_S3):
        yield Problem("--artifacts", serving.artifacts, "is neither a folder nor s3://BUCKET/PREFIX.")
    elif serving.artifacts.startswith(_S3) and find_spec("boto3") is None:
        yield _missing("--artifacts", serving.artifacts, "boto3", "s3")


def obstacles_of(serving: Serving, store_key: str = "--store") -> Iterator[Problem]:
    """What would keep it from starting here and now."""
    yield from _place_obstacles(serving.host, serving.port)
    scheme, _, rest = serving.store.partition("://")
    if scheme in _DRIVEN_BY_PSYCOPG:
        yield from _database_obstacles(f"postgresql://{rest}", store_key)


def _missing(key: str, value: str, package: str, extra: str) -> Problem:
    return Problem(key, value, f"needs {package}, which is not installed: pip install 'sweeprof[{extra}]'.")


def _place_obstacles(host: str, port: int) -> Iterator[Problem]:
    try:
        free_port(host, port)
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            yield Problem("--port", port, f"is taken: another program listens there, on {host}; choose another port.")
        elif number in (errno.EACCES, None):
            yield Problem("--port", port, "is not a port that you may take: 1024 to 65535, or 0 for one that is free.")
        else:
            yield Problem("--host", host, "is no name or address of this machine; 0.0.0.0 stands for all of them.")


def _database_obstacles(address: str, store_key: str) -> Iterator[Problem]:
    """MLflow itself would ask for 100 seconds, and tell it in sixty lines."""
    import psycopg

    try:
        psycopg.connect(address, connect_timeout=_ANSWER_S).close()
    except psycopg.Error as error:
        said = without_credentials(" ".join(str(error).split()))
        yield Problem(store_key, without_credentials(address), f"does not let this machine in: {said}")


def free_port(host: str, port: int = 0) -> int:
    """``port``, or for 0 one that is free on ``host``.

    Raises:
        OSError: it cannot be listened to.
        OverflowError: it is no port.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as the server: what has just ended is not in the way
        probe.bind((host, port))
        return int(probe.getsockname()[1])
