"""Whatever happens to a request or to who sends it: in the end every run is there once, in the right state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from support.processes import of_kind
from support.proxy import Fault, Proxy
from support.sent import assert_whole, mlflow_settings, start_sync, sync
from support.servers import MlflowServer
from sweeprof.results.files import read_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def every(number: int, fault: Fault) -> Callable[[str, str, int], Fault]:
    return lambda method, path, count: fault if count % number == number - 1 else None


@pytest.mark.parametrize(
    "fault",
    [
        500,
        pytest.param(503, marks=pytest.mark.thorough),
        pytest.param("drop", marks=pytest.mark.thorough),
        pytest.param("twice", marks=pytest.mark.thorough),
    ],
)
def test_requests_that_fail(fault: Fault, front: Proxy, server: MlflowServer, folder: Path, tmp_path: Path) -> None:
    front.fault = every(5, fault)
    assert sync(tmp_path, folder, front.url) == (0, "")
    assert_whole(server.url, folder)


def test_each_answer_to_making_a_run_is_lost(front: Proxy, server: MlflowServer, folder: Path, tmp_path: Path) -> None:
    made = Counter[str]()

    def lose(method: str, path: str, number: int) -> Fault:
        made[path] += 1
        return "drop" if path.endswith("runs/create") and made[path] % 2 else None

    front.fault = lose
    assert sync(tmp_path, folder, front.url) == (0, "")
    assert_whole(server.url, folder)


def test_a_request_that_hangs_is_asked_again(front: Proxy, server: MlflowServer, folder: Path, tmp_path: Path) -> None:
    front.fault = lambda method, path, number: "hang" if number == 12 else None
    with mlflow_settings(timeout=5):
        assert sync(tmp_path, folder, front.url) == (0, "")
    assert_whole(server.url, folder)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "401"),
        pytest.param(403, "403", marks=pytest.mark.thorough),
        pytest.param(404, "404", marks=pytest.mark.thorough),
    ],
)
def test_a_server_that_refuses_is_asked_once(
    status: int, said: str, front: Proxy, folder: Path, tmp_path: Path
) -> None:
    front.fault = lambda method, path, number: status
    code, err = sync(tmp_path, folder, front.url)
    assert code == 2
    assert said in err
    assert "<h1>proxy</h1>" in err
    assert len(err.splitlines()) == 1
    assert len(front.asked) == 1


@pytest.mark.thorough
def test_a_silent_server_is_served_later(front: Proxy, server: MlflowServer, folder: Path, tmp_path: Path) -> None:
    front.fault = lambda method, path, number: "hang"
    code, err = sync(tmp_path, folder, front.url)
    assert (code, "the tracker made no progress for 120 s" in err) == (2, True), err
    stored = read_json(folder / "tracking.json")
    assert stored["sent"] is None
    assert "made no progress" in stored["trouble"]
    front.fault = lambda method, path, number: None
    assert sync(tmp_path, folder, front.url) == (0, "")
    assert_whole(server.url, folder)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("runs/create", "drop"),
        pytest.param("runs/log-batch", "drop", marks=pytest.mark.thorough),
        pytest.param("mlflow-artifacts", None, marks=pytest.mark.thorough),
        pytest.param("runs/update", None, marks=pytest.mark.thorough),
    ],
)
def test_a_tracker_that_is_killed_while_it_sends(
    path: str, fault: Fault, front: Proxy, server: MlflowServer, folder: Path, tmp_path: Path
) -> None:
    seen = 0

    def kill(method: str, asked: str, number: int) -> Fault:
        nonlocal seen
        seen += path in asked
        if path in asked and seen == 3:
            for process in of_kind(tmp_path, "tracker"):
                process.kill()
            return fault or 500
        return None

    front.fault = kill
    code, err = sync(tmp_path, folder, front.url)
    assert (code, "killed by SIGKILL" in err) == (2, True), err
    front.fault = lambda method, path, number: None
    assert sync(tmp_path, folder, front.url) == (0, "")
    assert_whole(server.url, folder)


def test_two_that_send_one_sweep_at_once(server: MlflowServer, folder: Path, tmp_path: Path) -> None:
    both = [start_sync(tmp_path, folder, server.url) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=200)
        assert (process.returncode, err) == (0, "")
    assert_whole(server.url, folder)
