"""Settings of the process that sends to MLflow: its environment, and its time limit."""

from __future__ import annotations

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
