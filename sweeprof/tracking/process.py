"""The processes of MLflow: the environment of the one that sends, the command of the one that shows."""

from __future__ import annotations

import shlex
import sys

ENVIRONMENT: dict[str, str] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Of the process that runs the tracker, set before it starts: silent, and a request that fails is told at once.

By MLflow's own defaults each call waits for four minutes; and a request that it repeats by itself may make a run twice, as only
the answer was lost (MLFLOW.md 3). 20 seconds is how long a server may wait for its own sqlite database.
"""

GIVE_UP_S = 45.0
"""Without any success, after which a server counts as gone: on a loaded machine one needs up to 42 s to start again
(MLFLOW.md 2.3), and someone waits for the sweep to end."""

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
