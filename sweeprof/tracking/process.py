"""The processes of MLflow: the environment of the one that sends, the command of the one that shows."""

from __future__ import annotations

import shlex
import sys

ENVIRONMENT: dict[str, str] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Of the process that runs the tracker, set before it starts: silent, and a server that is down is given up within
seconds; by MLflow's own defaults each call waits for four minutes."""

VIEWER = "http://127.0.0.1:5000"
"""Where the viewer of a local database is, once its command runs."""


def viewer_command(uri: str) -> str:
    """The shell command that starts the viewer of a database at :data:`VIEWER`.

    One worker and no background jobs: by default the server takes 15 processes, 2.3 GB and 44 ms more per request
    (MLFLOW.md 2.3).
    """
    quiet = "MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false"
    server = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--workers", "1"]
    return f"{quiet} {shlex.join([*server, '--port', VIEWER.rpartition(':')[2]])}"
