"""The process that sends to MLflow: its environment, its time limit, and where it may put artifacts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sweeprof.errors import UserError

ENVIRONMENT: dict[str, str] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Environment of the process that runs the tracker, set before it starts: no output, and a failed request raises at once.

By MLflow's own defaults each call waits for four minutes; and a request that it repeats by itself may make a run twice, as only
the answer was lost. 20 seconds is how long a server may wait for its own sqlite database.
"""

GIVE_UP_S = 45.0
"""Seconds without any success after which a server counts as gone: on a loaded machine it takes up to 42 s to start again
(measured with MLflow 3.17), and the user waits for the sweep to end."""


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

    def refused(artifact_uri: str, *_: Any, **__: Any) -> Any:
        raise UserError(
            f"artifacts belong at {artifact_uri}, by the word of a place that only the sweep's folder names; give its address"
        )

    def local(kind: Callable[..., Any]) -> Callable[..., Any]:
        def made(artifact_uri: str, *words: object, **named: object) -> Any:
            root = output.resolve() if output else None
            path = Path(local_file_uri_to_path(artifact_uri)).resolve()  # type: ignore[no-untyped-call]
            if root is None or not path.is_relative_to(root) or (path != root and _has_links(path)):
                return refused(artifact_uri)
            return kind(artifact_uri, *words, **named)

        return made

    def through_the_server(kind: Callable[..., Any]) -> Callable[..., Any]:
        def made(artifact_uri: str, *words: object, **named: object) -> Any:
            return refused(artifact_uri) if urlsplit(artifact_uri).netloc else kind(artifact_uri, *words, **named)

        return made

    for scheme, kind in kinds.items():
        if scheme in ("", "file"):
            kinds[scheme] = local(kind)
        elif scheme == "mlflow-artifacts":
            kinds[scheme] = through_the_server(kind)  # of the store itself, not one that the artifacts name
        else:
            kinds[scheme] = refused


def _has_links(folder: Path) -> bool:
    """True if something below a folder is a link: what is read or written there would be elsewhere."""
    below = (Path(path, name) for path, folders, files in os.walk(folder) for name in (*folders, *files))
    return any(path.is_symlink() for path in below)
