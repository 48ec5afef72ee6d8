"""A server that wants a login: what the sweep says of it names the variables to set."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import requests
from mlflow.exceptions import MlflowException
from mlflow.utils.rest_utils import verify_rest_response

from sweeprof.run.tracker_process import trouble_of
from sweeprof.tracking.connection import ServerUnreachable, found_experiment

NAMES = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


class _Refusing(BaseHTTPRequestHandler):
    status = 401

    def do_POST(self) -> None:
        self.send_error(self.status)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    "content", [b"You are not authenticated.", b'{"error_code": "UNAUTHENTICATED", "message": "who?"}']
)
def test_the_tracker_is_refused(content: bytes) -> None:
    answer = requests.Response()
    answer.status_code, answer._content = 401, content
    with pytest.raises(MlflowException) as raised:
        verify_rest_response(answer, "/api/2.0/mlflow/experiments/search")
    assert all(name in trouble_of(raised.value) for name in NAMES)


def test_other_trouble_says_nothing_of_a_login() -> None:
    assert trouble_of(OSError("no route to http://me:secret@host/")) == "OSError: no route to http://host/"


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), _Refusing) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def test_a_question_to_the_server_is_refused(server: HTTPServer) -> None:
    with pytest.raises(ServerUnreachable) as raised:
        found_experiment(f"http://127.0.0.1:{server.server_port}", "nightly")
    assert "gave no answer: 401 Unauthorized" in str(raised.value)
    assert all(name in str(raised.value) for name in NAMES)
