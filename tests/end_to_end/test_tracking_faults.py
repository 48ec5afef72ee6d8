"""Whatever happens to a server and to those who talk to it: in the end every run is there once, in the right state.

The servers are real. One small sweep is measured; copies of it, each a sweep of its own, are sent by the command that sends.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.command import environment, run_command, start_command
from support.processes import left_after, of_kind
from support.proxy import Fault, Proxy, proxy
from support.servers import POSTGRES, MlflowServer, isolated, mlflow_server, postgres
from sweeprof.results.files import read_json, write_json
from sweeprof.tracking.history import step_of

if TYPE_CHECKING:
    from mlflow.entities import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LOCKS = "/tmp/sweeprof-faults"
FAKE = ("model=fake", "backend=fake", "dataset=synthetic", "compare.baseline={batch_size: 1}", f"limits.locks={LOCKS}")
METRICS = "metrics.select=[compute/macs,latency/forward]"
SIZES = (1, 2, 3, 4, 5, 6)
WAITING = """
import os, time
from sweeprof.backends.fake import FakeModel
def model(**arguments):
    open("waits", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.05)
    return FakeModel(**arguments)
"""
needs_postgres = pytest.mark.skipif(POSTGRES is None, reason="needs PostgreSQL: apt-get install postgresql")


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


@pytest.fixture(autouse=True)
def _no_process_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert left_after(tmp_path, 10) == []


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that was sent nowhere."""
    ran = run_command(
        tmp_path_factory.mktemp("measured"), *FAKE, METRICS, "tracking=none", f"batch_size={','.join(map(str, SIZES))}"
    )
    assert ran.code == 0, ran.err
    return ran.folder("adhoc")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with mlflow_server(tmp_path_factory.mktemp("server")) as found:
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
        write_json(folder / "plan.json", {**read_json(folder / "plan.json"), "sweep_id": id})
        return folder

    return copy


def start_sync(home: Path, folder: Path, uri: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sweeprof.sync", str(folder), f"uri={uri}"],
        cwd=home,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def sync(home: Path, folder: Path, uri: str) -> tuple[int, str]:
    """The exit code, and what was said on stderr."""
    process = start_sync(home, folder, uri)
    try:
        _, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert "Traceback" not in err
    return process.returncode, err


def runs(uri: str, sweep_id: str) -> list[Run]:
    """All runs of a sweep in any state, those that were deleted left out."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    return list(client.search_runs(experiments, f"tags.`sweeprof.sweep_id` = '{sweep_id}'", max_results=1000))


def histories(uri: str, combination_id: str) -> list[Run]:
    """The history of a combination: one run, whatever sweeps there were."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("adhoc history")
    assert experiment is not None
    wanted = f"tags.`sweeprof.kind` = 'history' and tags.`sweeprof.combination_id` = '{combination_id}'"
    return list(client.search_runs([experiment.experiment_id], wanted))


def assert_whole(uri: str, folder: Path, sizes: tuple[int, ...] = SIZES) -> None:
    """Every run is there exactly once, finished, with its parameters, metrics, artifacts, parent and history."""
    from mlflow.tracking import MlflowClient

    found = runs(uri, read_json(folder / "plan.json")["sweep_id"])
    (parent,) = (run for run in found if run.data.tags["sweeprof.kind"] == "sweep")
    children = [run for run in found if run.data.tags["sweeprof.kind"] == "combination"]
    assert Counter(run.data.params["batch_size"] for run in children) == Counter(map(str, sizes))
    assert {run.info.status for run in found} == {"FINISHED"}
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert all(run.data.metrics["latency/forward_ms"] > 0 for run in children)
    client = MlflowClient(tracking_uri=uri)
    assert "report.html" in {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert "config.json" in {file.path for file in client.list_artifacts(children[-1].info.run_id)}
    created, sweep_id = (read_json(folder / "plan.json")[key] for key in ("created", "sweep_id"))
    for child in children:
        (history,) = histories(uri, child.data.tags["sweeprof.combination_id"])
        assert history.info.status == "FINISHED"
        points = client.get_metric_history(history.info.run_id, "latency/forward_ms")
        own = [point.value for point in points if point.step == step_of(created, sweep_id)]
        assert own == [child.data.metrics["latency/forward_ms"]]
    stored = read_json(folder / "tracking.json")
    assert stored["sent"]
    assert stored["trouble"] is None


def every(number: int, fault: Fault) -> Callable[[str, str, int], Fault]:
    return lambda method, path, count: fault if count % number == number - 1 else None


@pytest.mark.parametrize("fault", [500, 503, "drop", "twice"])
def test_requests_that_fail_now_and_then(
    fault: Fault, front: Proxy, server: MlflowServer, sweep: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = sweep(f"now-and-then-{fault}")
    front.fault = every(5, fault)
    assert sync(tmp_path, folder, front.url) == (0, "")
    assert_whole(server.url, folder)


def test_every_answer_to_the_making_of_a_run_is_lost_once(
    front: Proxy, server: MlflowServer, sweep: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, made = sweep("lost"), Counter[str]()

    def lose(method: str, path: str, number: int) -> Fault:
        made[path] += 1
        return "drop" if path.endswith("runs/create") and made[path] % 2 else None

    front.fault = lose
    assert sync(tmp_path, folder, front.url) == (0, "")
    assert_whole(server.url, folder)


def test_a_request_that_hangs_is_asked_again(
    front: Proxy, server: MlflowServer, sweep: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = sweep("hung-once")
    front.fault = lambda method, path, number: "hang" if number == 12 else None
    assert sync(tmp_path, folder, front.url) == (0, "")
    assert_whole(server.url, folder)


@pytest.mark.parametrize(("status", "said"), [(403, "403"), (401, "401"), (404, "404")])
def test_a_server_that_refuses_is_not_asked_again(
    status: int, said: str, front: Proxy, sweep: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = sweep(f"refused-{status}")
    front.fault = lambda method, path, number: status
    code, err = sync(tmp_path, folder, front.url)
    assert code == 2
    assert said in err
    assert "<h1>proxy</h1>" in err
    assert len(err.splitlines()) == 1
    assert len(front.asked) == 1


def test_a_server_that_never_answers_is_given_up_and_served_later(
    front: Proxy, server: MlflowServer, sweep: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = sweep("hung")
    front.fault = lambda method, path, number: "hang"
    code, err = sync(tmp_path, folder, front.url)
    assert (code, "0 of 6 combinations are there" in err) == (2, True), err
    assert len(front.asked) <= 4
    stored = read_json(folder / "tracking.json")
    assert stored["sent"] is None
    assert "timed out" in stored["trouble"]
    front.fault = lambda method, path, number: None
    assert sync(tmp_path, folder, front.url) == (0, "")
    assert_whole(server.url, folder)


@pytest.mark.parametrize(
    ("path", "fault"),
    [("runs/create", "drop"), ("runs/log-batch", "drop"), ("mlflow-artifacts", None), ("runs/update", None)],
)
def test_a_tracker_that_is_killed_while_it_sends(
    path: str, fault: Fault, front: Proxy, server: MlflowServer, sweep: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, seen = sweep(f"killed-{path.replace('/', '-')}"), 0

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


def test_two_that_send_one_sweep_at_once(server: MlflowServer, sweep: Callable[[str], Path], tmp_path: Path) -> None:
    folder = sweep("two")
    both = [start_sync(tmp_path, folder, server.url) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=200)
        assert (process.returncode, err) == (0, "")
    assert_whole(server.url, folder)


def eight_at_once(uri: str, sweep: Callable[[str], Path], home: Path, label: str) -> list[Path]:
    folders = [sweep(f"{label}-{number}") for number in range(8)]
    processes = [start_sync(home, folder, uri) for folder in folders]
    for process in processes:
        _, err = process.communicate(timeout=250)
        assert (process.returncode, err) == (0, "")
    return folders


def test_eight_sweeps_at_once_to_one_server(server: MlflowServer, sweep: Callable[[str], Path], tmp_path: Path) -> None:
    for folder in eight_at_once(server.url, sweep, tmp_path, "server"):
        assert_whole(server.url, folder)


def test_eight_sweeps_at_once_to_one_new_sqlite_file(sweep: Callable[[str], Path], tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'new.db'}"
    for folder in eight_at_once(uri, sweep, tmp_path, "sqlite"):
        assert_whole(uri, folder)


@needs_postgres
def test_eight_sweeps_at_once_to_one_new_postgres(sweep: Callable[[str], Path], tmp_path: Path) -> None:
    with postgres(tmp_path / "pg") as database:
        uri = database.create("mlflow")
        folders = eight_at_once(uri, sweep, tmp_path, "postgres")
        for folder in folders:
            assert_whole(uri, folder)
        database.down()
        code, err = sync(tmp_path, folders[0], uri)
        assert (code, "refused" in err) == (2, True), err
        assert database.PASSWORD not in err + (folders[0] / "logs" / "tracker.log").read_text()
        wrong = uri.replace(database.PASSWORD, "wr0ng")
        database.up()
        code, err = sync(tmp_path, folders[0], wrong)
        assert (code, "authentication failed" in err) == (2, True), err


@needs_postgres
def test_postgres_is_restarted_under_the_server(sweep: Callable[[str], Path], tmp_path: Path) -> None:
    with (
        postgres(tmp_path / "pg") as database,
        mlflow_server(tmp_path / "server", database.create("mlflow")) as behind,
        proxy(behind.url) as front,
    ):
        folder = sweep("restarted")
        with restarted_at(20, front, database.down, database.up):
            assert sync(tmp_path, folder, front.url) == (0, "")
        assert_whole(behind.url, folder)


@contextmanager
def restarted_at(request: int, front: Proxy, down: Callable[[], None], up: Callable[[], None]) -> Iterator[None]:
    """End what is behind the proxy at that request, and start it at once; whoever asks meanwhile is refused."""
    starting = threading.Thread(target=up)

    def restart(method: str, path: str, number: int) -> Fault:
        if number == request:
            down()
            starting.start()
        return None

    front.fault = restart
    try:
        yield
        assert starting.ident is not None, f"there were only {len(front.asked)} requests"
    finally:
        if starting.ident is not None:
            starting.join()


def test_the_server_is_restarted_while_it_is_sent_to(sweep: Callable[[str], Path], tmp_path: Path) -> None:
    with mlflow_server(tmp_path / "server") as behind, proxy(behind.url) as front:
        folder = sweep("restarted-server")
        with restarted_at(20, front, lambda: behind.end(signal.SIGKILL), behind.up):
            assert sync(tmp_path, folder, front.url) == (0, "")
        assert 502 in front.answered
        assert_whole(behind.url, folder)


def test_a_server_is_killed_and_started_again_during_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    own = ("model.fake._target_=waiting.model", "limits.timeout_s=null")
    with mlflow_server(tmp_path / "server") as fragile:
        process = start_command(tmp_path, *FAKE, *own, METRICS, "batch_size=1,2,3", f"tracking.uri={fragile.url}")
        try:
            wait_for((tmp_path / "waits").exists, process)
            fragile.end(signal.SIGKILL)
            fragile.up()
            (tmp_path / "go").touch()
            out, err = process.communicate(timeout=200)
        finally:
            process.kill()
        assert process.returncode == 0, err
        assert "Not sent" not in out
        (folder,) = (tmp_path / "outputs" / "adhoc").iterdir()
        assert_whole(fragile.url, folder, (1, 2, 3))


def test_a_server_that_is_there_only_at_the_end_gets_everything(
    front: Proxy, server: MlflowServer, tmp_path: Path
) -> None:
    front.fault = lambda method, path, number: 503
    process = start_command(tmp_path, *FAKE, METRICS, "batch_size=1,2,3", f"tracking.uri={front.url}")
    try:
        wait_for(lambda: any(tmp_path.glob("outputs/*/*/records/*/*.json")), process)
        front.fault = lambda method, path, number: None
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "measuring goes on" in err
    assert f"Compare    {front.url}/#/experiments/" in out
    assert "Not sent" not in out
    (folder,) = (tmp_path / "outputs" / "adhoc").iterdir()
    assert_whole(server.url, folder, (1, 2, 3))


def test_after_a_killed_head_the_sweep_is_closed_when_it_is_gone_on_with(server: MlflowServer, tmp_path: Path) -> None:
    process = start_command(tmp_path, *FAKE, METRICS, "batch_size=1,2,3", f"tracking.uri={server.url}")
    try:
        wait_for(lambda: any(tmp_path.glob("outputs/*/*/records/*/*.json")), process)
    finally:
        process.kill()
        process.communicate()
    assert left_after(tmp_path, 10) == []
    (folder,) = (tmp_path / "outputs" / "adhoc").iterdir()
    (parent,) = runs(server.url, read_json(folder / "plan.json")["sweep_id"])
    assert parent.info.status == "RUNNING"
    assert read_json(folder / "tracking.json")["sent"] is None
    ran = run_command(tmp_path, "resume=last")
    assert ran.code == 0, ran.err
    assert_whole(server.url, folder, (1, 2, 3))


def test_what_was_not_sent_is_sent_by_one_command(server: MlflowServer, tmp_path: Path) -> None:
    with mlflow_server(tmp_path / "server") as away:
        address = away.url
        away.end(signal.SIGKILL)
        ran = run_command(tmp_path, *FAKE, METRICS, "batch_size=1,2,3", f"tracking.uri={address}")
        assert ran.code == 0, ran.err
        folder = ran.folder("adhoc")
        (said,) = (line for line in ran.out.splitlines() if line.startswith("Not sent"))
        assert "0 of 3 combinations are there" in said
        assert said.endswith(f"send it with: python -m sweeprof.sync {folder}")
        away.up()
        done = subprocess.run(
            [sys.executable, "-m", "sweeprof.sync", "unsent"],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert_whole(address, folder, (1, 2, 3))


def test_no_password_is_anywhere(front: Proxy, server: MlflowServer, tmp_path: Path) -> None:
    user, secrets = "sweeper", ("s3cr/et-word", "env-t0ken", "aws-k3y", "other-pa55")
    front.login = (user, secrets[0])
    # What goes wrong with views is logged with a traceback, which quotes the address.
    front.fault = lambda method, path, number: 400 if "experiments/set-experiment-tag" in path else None
    uri = front.url.replace("://", f"://{user}:{secrets[0].replace('/', '%2F')}@")
    hidden = {"MLFLOW_TRACKING_TOKEN": secrets[1], "AWS_SECRET_ACCESS_KEY": secrets[2]}
    hidden |= {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": secrets[3]}
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in hidden.items():
            patch.setenv(name, value)
        command = [sys.executable, "-m", "sweeprof", *FAKE, METRICS, "batch_size=1,2", f"tracking.uri={uri}"]
        environ = {**environment(tmp_path), **hidden}
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            while process.poll() is None:
                lines += command_lines(tmp_path, process.pid)
                time.sleep(0.05)
            out, err = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert "Not sent" not in out
    (folder,) = (tmp_path / "outputs" / "adhoc").iterdir()
    found = runs(server.url, read_json(folder / "plan.json")["sweep_id"])
    assert [run.info.status for run in found] == ["FINISHED"] * 3
    stored = b"".join(path.read_bytes() for path in (tmp_path / "outputs").rglob("*") if path.is_file())
    behind = b"".join(path.read_bytes() for path in server.log.parent.rglob("*") if path.is_file())
    seen = stored + behind + json.dumps([run.to_dictionary() for run in found]).encode()
    text = seen.decode(errors="replace") + out + err + "\n".join(lines)
    assert "took no saved view" in text
    assert any("sweeprof.sweep.tracker" in line for line in lines)
    for secret in (*secrets, secrets[0].replace("/", "%2F")):
        assert secret not in text, text[text.index(secret) - 200 :][:400]


def command_lines(home: Path, own: int) -> list[str]:
    """Of every process that the command has started."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != own and process.environ().get("HOME") == str(home):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"did not happen; the command said {process.communicate()}")
