"""Whatever happens to a request, a server, a database or a driver: in the end every run is there once, in the right state."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from support.command import call_command, environment, folder_of, run_command, running_command, wait_for
from support.processes import left_after, of_kind, processes
from support.proxy import Fault, Proxy, proxy
from support.sent import (
    HISTORY,
    LOCKS,
    METRICS,
    SENT,
    SIZES,
    assert_whole,
    mlflow_settings,
    runs,
    start,
    start_sync,
    sync,
)
from support.servers import POSTGRES, MlflowServer, isolated, postgres
from sweeprof.results.files import read_json, write_json
from sweeprof.tracking import MLFLOW

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("no_process_is_left")]


@pytest.fixture(scope="module", autouse=True)
def _locks() -> None:
    """Nothing is measured here that others on this machine could disturb."""
    Path(LOCKS).mkdir(exist_ok=True)


@pytest.fixture(scope="module", autouse=True)
def _client() -> Iterator[None]:
    """MLflow reads its settings when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in isolated(Path("/nonexistent")).items():
            if name.startswith("MLFLOW_"):
                patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that was sent nowhere."""
    sizes = f"batch_size={','.join(map(str, SIZES))}"
    ran = call_command(tmp_path_factory.mktemp("measured"), *SENT, METRICS, "tracking=none", "isolation=inline", sizes)
    assert ran.code == 0, ran.err
    return ran.folder("adhoc")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with MlflowServer(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def front(server: MlflowServer) -> Iterator[Proxy]:
    with proxy(server.url) as found:
        yield found


@pytest.fixture
def sweep(measured: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies of the measured sweep, each with an id of its own."""

    def copy(id: str) -> Path:
        folder = tmp_path / "outputs" / "adhoc" / id
        shutil.copytree(measured, folder)
        with_history = {"_target_": MLFLOW, "uri": None, "history": True}
        write_json(folder / "tracking.json", {"config": with_history, "complete": True})
        write_json(folder / "plan.json", {**read_json(folder / "plan.json"), "sweep_id": id})
        return folder

    return copy


@pytest.fixture
def folder(sweep: Callable[[str], Path]) -> Path:
    """One of them."""
    return sweep(uuid.uuid4().hex[:8])


# Requests, and who sends them


def every(number: int, fault: Fault) -> Callable[[str, str, int], Fault]:
    return lambda method, path, count: fault if count % number == number - 1 else None


LOST: Iterator[Fault] = itertools.cycle(("drop", None))
FAULTS: dict[str, Callable[[str, str, int], Fault]] = {
    "one in five fails": every(5, 500),
    "one in five arrives twice": every(5, "twice"),
    "each answer to making a run is lost": lambda method, path, number: (
        next(LOST) if path.endswith("runs/create") else None
    ),
    "one hangs": lambda method, path, number: "hang" if number == 12 else None,
}


FIRST, *FURTHER = FAULTS


@pytest.mark.parametrize("fault", [FIRST, *(pytest.param(name, marks=pytest.mark.thorough) for name in FURTHER)])
def test_requests_that_fail(fault: str, front: Proxy, server: MlflowServer, folder: Path, tmp_path: Path) -> None:
    front.fault = FAULTS[fault]
    assert sync(tmp_path, folder, front.url) == (0, "")
    assert_whole(server.url, folder)


def test_a_server_that_refuses_is_asked_once(front: Proxy, folder: Path, tmp_path: Path) -> None:
    front.fault = lambda method, path, number: 401
    code, err = sync(tmp_path, folder, front.url)
    assert code == 2
    assert "401" in err
    assert "<h1>proxy</h1>" in err
    assert len(err.splitlines()) == 1
    assert len(front.asked) == 1


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("runs/create", "drop"),
        pytest.param("mlflow-artifacts", None, marks=pytest.mark.thorough),
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


@pytest.mark.thorough
def test_two_that_send_one_sweep_at_once(server: MlflowServer, folder: Path, tmp_path: Path) -> None:
    both = [start_sync(tmp_path, folder, server.url) for _ in range(2)]
    said = [process.communicate(timeout=200)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert all(not err or err.startswith("waiting for ") for err in said)  # on a busy machine it takes that long
    assert_whole(server.url, folder)


# Servers, databases and drivers


WAITING = """
import os, time
from sweeprof.backends.fake import FakeModel
def model(**arguments):
    open("waits", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.05)
    return FakeModel(**arguments)
"""
SWEEP = (*SENT, METRICS, HISTORY, "batch_size=1,2")
WAITS = (*SWEEP, "model.fake._target_=waiting.model", "limits.timeout_s=null")
needs_postgres = pytest.mark.skipif(POSTGRES is None, reason="needs PostgreSQL: apt-get install postgresql")


def at_once(count: int, uri: str, sweep: Callable[[str], Path], home: Path) -> list[Path]:
    folders = [sweep(f"sweep-{number}") for number in range(count)]
    processes = [start_sync(home, folder, uri) for folder in folders]
    for process in processes:
        _, err = process.communicate(timeout=250)
        assert (process.returncode, err) == (0, "")
    return folders


@pytest.mark.thorough
def test_eight_sweeps_at_once_to_one_new_file(sweep: Callable[[str], Path], tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'new.db'}"
    for folder in at_once(8, uri, sweep, tmp_path):
        assert_whole(uri, folder)


@needs_postgres
@pytest.mark.thorough
def test_sweeps_at_once_to_one_new_postgres(sweep: Callable[[str], Path], tmp_path: Path) -> None:
    with postgres(tmp_path / "pg") as database:
        uri = database.create("mlflow")
        folders = at_once(2, uri, sweep, tmp_path)
        for folder in folders:
            assert_whole(uri, folder)
        database.down()
        with mlflow_settings(max_retries=2):
            code, err = sync(tmp_path, folders[0], uri)
        assert (code, "not sent: " in err, "refused" in err) == (2, True, True), err
        assert database.PASSWORD not in err + (folders[0] / "logs" / "tracker.log").read_text()
        wrong = uri.replace(database.PASSWORD, "wr0ng")
        database.up()
        code, err = sync(tmp_path, folders[0], wrong)
        assert (code, "authentication failed" in err) == (2, True), err


@pytest.mark.thorough
def test_a_server_restarted_while_it_is_sent_to(
    front: Proxy, server: MlflowServer, folder: Path, tmp_path: Path
) -> None:
    starting = threading.Thread(target=server.up)

    def restart(method: str, path: str, number: int) -> Fault:
        if number == 20:
            server.end(signal.SIGKILL)
            starting.start()  # whoever asks meanwhile is refused
        return None

    front.fault = restart
    assert sync(tmp_path, folder, front.url) == (0, "")
    starting.join()
    assert 502 in front.answered
    assert_whole(server.url, folder)


@pytest.mark.thorough
def test_after_a_killed_driver_the_run_is_closed_by_resuming(server: MlflowServer, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)

    def is_there() -> bool:
        plans = list(tmp_path.glob("outputs/*/*/plan.json"))
        return bool(plans) and bool(runs(server.url, read_json(plans[0])["sweep_id"]))

    with running_command(tmp_path, *WAITS, f"tracking.uri={server.url}") as process:
        wait_for(is_there, process)
    (tmp_path / "go").touch()
    assert left_after(tmp_path, 10) == []
    folder = folder_of(tmp_path)
    (parent,) = runs(server.url, read_json(folder / "plan.json")["sweep_id"])
    assert parent.info.status == "RUNNING"
    assert read_json(folder / "tracking.json")["sent"] is None
    ran = run_command(tmp_path, "resume=last")
    assert ran.code == 0, ran.err
    assert_whole(server.url, folder)


@pytest.mark.thorough
def test_what_was_not_sent_is_sent_by_one_command_and_only_once(
    front: Proxy, server: MlflowServer, tmp_path: Path
) -> None:
    front.fault = lambda method, path, number: 503
    with mlflow_settings(max_retries=1):
        ran = run_command(tmp_path, *SWEEP, f"tracking.uri={front.url}")
    assert ran.code == 0, ran.err
    folder = ran.folder("adhoc")
    (said,) = (line for line in ran.out.splitlines() if line.startswith("Not sent"))
    assert "0 of 2 combinations are there" in said
    assert said.endswith(f"send it with: sweeprof sync {folder}")
    front.fault = lambda method, path, number: None
    found = []
    for word in ("unsent", "last"):
        process = start(tmp_path, [word])
        out, err = process.communicate(timeout=200)
        assert (process.returncode, err) == (0, "")
        assert word == "unsent" or f"Compare    {front.url}" in out
        found.append({run.info.run_id for run in runs(server.url, read_json(folder / "plan.json")["sweep_id"])})
    assert found[0] == found[1]
    assert_whole(server.url, folder)


@pytest.mark.thorough
def test_no_password_is_anywhere(front: Proxy, server: MlflowServer, tmp_path: Path) -> None:
    user, secrets = "sweeper", ("s3cr/et-word", "env-t0ken", "aws-k3y", "other-pa55")
    front.login = (user, secrets[0])
    # What goes wrong with views is logged with a traceback, which quotes the address.
    front.fault = lambda method, path, number: 400 if "experiments/set-experiment-tag" in path else None
    uri = front.url.replace("://", f"://{user}:{secrets[0].replace('/', '%2F')}@")
    hidden = {"MLFLOW_TRACKING_TOKEN": secrets[1], "AWS_SECRET_ACCESS_KEY": secrets[2]}
    hidden |= {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": secrets[3]}
    command = [sys.executable, "-m", "sweeprof", *SWEEP, f"tracking.uri={uri}"]
    lines: list[str] = []
    # A process that is about to become another one has its parent's command line until then, for a moment.
    copies: Counter[int] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in hidden.items():
            patch.setenv(name, value)
        environ = {**environment(tmp_path), **hidden}
        with subprocess.Popen(
            command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            while process.poll() is None:
                for pid, line in command_lines(tmp_path, process.pid):
                    if line == " ".join(command):
                        copies[pid] += 1
                    else:
                        lines.append(line)
                time.sleep(0.05)
            out, err = process.communicate()
    assert process.returncode == 0, err
    assert "Not sent" not in out
    folder = folder_of(tmp_path)
    found = runs(server.url, read_json(folder / "plan.json")["sweep_id"])
    assert [run.info.status for run in found] == ["FINISHED"] * 3
    stored = b"".join(path.read_bytes() for path in (tmp_path / "outputs").rglob("*") if path.is_file())
    behind = b"".join(path.read_bytes() for path in server.log.parent.rglob("*") if path.is_file())
    seen = stored + behind + json.dumps([run.to_dictionary() for run in found]).encode()
    text = seen.decode(errors="replace") + out + err + "\n".join(lines)
    assert "took no saved view" in text
    assert any("sweeprof.run.tracker_process" in line for line in lines)
    assert all(samples < 20 for samples in copies.values()), copies
    for secret in (*secrets, secrets[0].replace("/", "%2F")):
        assert secret not in text, text[text.index(secret) - 200 :][:400]


def command_lines(home: Path, own: int) -> list[tuple[int, str]]:
    """Number and command line of every process that the command has started."""
    found = []
    for process in processes(home):
        with suppress(psutil.Error):
            found.append((process.pid, " ".join(process.cmdline())))
    return [(pid, line) for pid, line in found if pid != own]
