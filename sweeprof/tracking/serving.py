"""A tracking server as the command and the environment that start MLflow's own the right way; starts nothing."""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import psutil

from sweeprof.tracking.credentials import without_credentials

LOCAL = ("127.0.0.1", "localhost", "::1")
PORT = 5000
VIEWER = f"http://{LOCAL[0]}:{PORT}"
"""Where ``python -m sweeprof.ui`` shows a database, unless told otherwise."""
EVERYWHERE = ("0.0.0.0", "::")
STORE = "MLFLOW_BACKEND_STORE_URI"
"""By the environment, as it may have a password, and everyone may read the words of a command."""
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
"""Without job runners a server takes 2 processes and 400 MB instead of 15 and 2.3 GB (MLFLOW.md 2.3)."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What a server serves, and to whom."""

    store: str
    """Address of the database."""
    artifacts: str
    """Where the server puts the artifacts that it is sent: a folder's full path, or ``s3://BUCKET/PREFIX``."""
    host: str = LOCAL[0]
    port: int = PORT
    allowed_hosts: tuple[str, ...] = ()
    """Names by which clients may call it; without any, those of this machine."""

    @property
    def address(self) -> str:
        """What clients call it: those of other machines, too, where it listens to them."""
        name = socket.gethostname() if self.host in EVERYWHERE else self.host
        return f"http://{_bracketed(name)}:{self.port}"

    @property
    def own_address(self) -> str:
        """What it is called on its own machine."""
        name = {EVERYWHERE[0]: LOCAL[0], EVERYWHERE[1]: LOCAL[2]}.get(self.host, self.host)
        return f"http://{_bracketed(name)}:{self.port}"

    def command(self) -> list[str]:
        """The words of the command."""
        # MLflow reads nearly every option from the environment, too: what matters is said.
        words = [sys.executable, "-m", "mlflow", "server", "--host", self.host, "--port", str(self.port)]
        # Several workers cost 44 ms on every request (MLFLOW.md 2.3).
        words += ["--workers", "1", "--uvicorn-opts", "--log-level warning"]
        # Else every client would write to a disk of its own.
        words += ["--serve-artifacts", "--default-artifact-root", "mlflow-artifacts:/"]
        words += ["--artifacts-destination", self.artifacts]
        hosts = self._hosts()
        if hosts:
            words += ["--allowed-hosts", ",".join(hosts), "--cors-allowed-origins", ",".join(_origins(hosts))]
        return words

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """``given`` with what the server needs, the password of the store among it."""
        return {**given, **ENVIRONMENT, STORE: self.store}

    def shown(self) -> str:
        """The whole as a line for a shell, without the password."""
        variables = {**ENVIRONMENT, STORE: without_credentials(self.store)}
        return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in variables.items()), shlex.join(self.command())])

    def _hosts(self) -> list[str]:
        """The values that requests may have as their ``Host``; none where MLflow's own list, of local names, will do."""
        if self.host in LOCAL and not self.allowed_hosts:
            return []
        names = dict.fromkeys([*(self.allowed_hosts or _names_of(self.host)), *LOCAL[:2]])
        return ["*"] if "*" in names else [form for name in names for form in self._forms(name)]

    def _forms(self, name: str) -> Iterator[str]:
        """MLflow compares the header as a whole, so that a port is part of it, unless it is 80."""
        yield name
        if ":" not in name.rpartition("]")[2]:
            # Who names hosts may have something in between that maps ports; a bracket would be a pattern's.
            any_port = self.allowed_hosts and not name.startswith("[")
            yield f"{name}:*" if any_port else f"{name}:{self.port}"


def _names_of(host: str) -> Iterator[str]:
    """What this machine is called by those who reach it at ``host``."""
    yield from (socket.gethostname(), socket.getfqdn())
    if host not in EVERYWHERE:
        yield _bracketed(host)
        return
    families = {socket.AF_INET} if host == EVERYWHERE[0] else {socket.AF_INET, socket.AF_INET6}
    for addresses in psutil.net_if_addrs().values():
        yield from (_bracketed(one.address) for one in addresses if one.family in families and "%" not in one.address)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _origins(hosts: Sequence[str]) -> list[str]:
    """MLflow refuses what a page of its own asks, too, unless the page's address is listed."""
    return ["*"] if "*" in hosts else [f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
