"""``python -m sweeprof.server`` on each of its stores: a sweep is sent to it and read back through it, and it ends as it should."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.processes import left_after, processes
from support.samples import comparison, records
from support.servers import POSTGRES, Server, free_port, isolated, postgres
from support.started import started
from sweeprof.report.markdown import markdown
from sweeprof.tracking import SweepInfo
from sweeprof.tracking.mlflow import MlflowTracker

pytestmark = pytest.mark.slow

ROWS = 4
BUCKET = "sweeps"
S3_KEYS = {"AWS_ACCESS_KEY_ID": "ann", "AWS_SECRET_ACCESS_KEY": "s3-s3cret", "AWS_DEFAULT_REGION": "eu-central-1"}


@pytest.fixture(autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the client, which is this process."""
    for name, value in isolated(tmp_path_factory.mktemp("client")).items():
        monkeypatch.setenv(name, value)


def send(address: str, folder: Path) -> None:
    """A sweep of four combinations with their records, a report and a comparison."""
    whole = comparison()
    of = dataclasses.replace(whole, rows=whole.rows[:ROWS])
    folder.mkdir()
    for record in records(of):
        record.write(folder / "records")
    (folder / "comparison.md").write_text(markdown(of), encoding="utf-8")
    (folder / "report.html").write_text("<p>the report</p>", encoding="utf-8")
    tracker = MlflowTracker(address, folder / "unused")
    tracker.open(SweepInfo(of.sweep_id, of.name, of.command, of.created, of.axes, len(of.rows)))
    tracker.close(of, records(of), folder, "finished")


def check_read_back(address: str, folder: Path) -> None:
    """Runs and artifacts, as others get them from the server; none of it passes through the client's own disk."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment is not None
    assert experiment.artifact_location.startswith("mlflow-artifacts:/")
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if run.data.tags["sweeprof.kind"] == "sweep"]
    assert len(parents) == 1
    assert len(runs) == ROWS + 1
    assert {run.info.status for run in runs} == {"FINISHED"}
    report = Path(client.download_artifacts(parents[0].info.run_id, "report.html", str(folder)))
    assert report.read_text(encoding="utf-8") == "<p>the report</p>"
    child = next(run for run in runs if run not in parents)
    (record,) = client.list_artifacts(child.info.run_id, "records")
    found = json.loads(Path(client.download_artifacts(child.info.run_id, record.path, str(folder))).read_text())
    assert found["combination_id"] == child.data.tags["sweeprof.combination_id"]


def command_lines(home: Path) -> str:
    """Of the server and all that it started, as ``ps`` shows them to everyone."""
    return "\n".join(" ".join(process.cmdline()) for process in processes(home))


def test_a_database_file_and_a_folder(tmp_path: Path) -> None:
    home = tmp_path / "a home with spaces"
    home.mkdir()
    with started("sweeprof.server", "--port", "0", cwd=home) as server:
        address = server.line("MLflow")
        assert server.line("Sweeps").endswith(f"tracking.uri={address}")
        send(address, tmp_path / "sweep")
        check_read_back(address, tmp_path)
        assert (home / "outputs" / "mlflow.db").is_file()
        assert list((home / "outputs" / "mlflow-artifacts").rglob("report.html"))
        assert len(processes(home)) <= 3, command_lines(home)
        refused = again(home, address.rpartition(":")[2])
        assert refused.returncode == 1
        assert "is taken: another program listens there" in refused.stderr
        assert server.end() == 0
    assert left_after(home, 10) == []


def again(home: Path, port: str) -> subprocess.CompletedProcess[str]:
    """A second server on the port of the first."""
    words = [sys.executable, "-m", "sweeprof.server", "--port", port]
    return subprocess.run(words, cwd=home, env=isolated(home), capture_output=True, text=True, check=False)


@pytest.mark.skipif(POSTGRES is None, reason="needs PostgreSQL: apt-get install postgresql")
def test_postgresql_and_a_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with postgres(tmp_path / "database") as database:
        store = database.create("sweeps")
        words = ("--port", "0", "--artifacts", "files")
        with started("sweeprof.server", *words, cwd=home, MLFLOW_BACKEND_STORE_URI=store) as server:
            address = server.line("MLflow")
            assert server.line("Store") == store.replace(f"{database.USER}:{database.PASSWORD}@", "")
            send(address, tmp_path / "sweep")
            check_read_back(address, tmp_path)
            assert list((home / "files").rglob("report.html"))
            assert not (home / "outputs").exists()
            lines = command_lines(home)
            assert "mlflow server" in lines
            assert database.PASSWORD not in lines
            assert server.end(signal.SIGINT) == 0
            assert database.PASSWORD not in server.err + "".join(server.lines)
        wrong = store.replace(database.PASSWORD, "wr0ng")
        with started("sweeprof.server", *words, cwd=home, MLFLOW_BACKEND_STORE_URI=wrong) as server:
            assert server.process.wait(timeout=60) == 1
            assert "does not let this machine in" in server.err
            assert "password authentication failed" in server.err
            assert "wr0ng" not in server.err
    assert left_after(home, 10) == []


@contextmanager
def s3(folder: Path) -> Iterator[str]:
    """The address of an S3-compatible store with an empty bucket."""
    port = free_port()
    folder.mkdir()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = Server(command, isolated(folder), folder / "log")
    address = f"http://127.0.0.1:{port}"
    try:
        server.start(lambda: listens(port))
        bucket(address).create(CreateBucketConfiguration={"LocationConstraint": S3_KEYS["AWS_DEFAULT_REGION"]})
        yield address
    finally:
        server.end(signal.SIGTERM)


def bucket(address: str) -> Any:
    import boto3  # type: ignore[import-untyped]

    id, secret, region = S3_KEYS.values()
    return boto3.Session(id, secret, region_name=region).resource("s3", endpoint_url=address).Bucket(BUCKET)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_database_file_and_an_s3_compatible_store(tmp_path: Path) -> None:
    """Whose keys the server alone has."""
    home = tmp_path / "home"
    home.mkdir()
    with s3(tmp_path / "s3") as endpoint:
        words = ("--port", "0", "--artifacts", f"s3://{BUCKET}/of/a/team")
        with started("sweeprof.server", *words, cwd=home, MLFLOW_S3_ENDPOINT_URL=endpoint, **S3_KEYS) as server:
            address = server.line("MLflow")
            send(address, tmp_path / "sweep")
            check_read_back(address, tmp_path)
        keys = [item.key for item in bucket(endpoint).objects.filter(Prefix="of/a/team/")]
    assert any(key.endswith("/report.html") for key in keys)
    assert not list(home.rglob("report.html"))


def test_a_server_for_others_answers_to_its_names_and_to_its_own_pages(tmp_path: Path) -> None:
    name = socket.gethostname()
    with started("sweeprof.server", "--port", "0", "--host", "0.0.0.0", cwd=tmp_path) as server:
        address = server.line("MLflow")
        port = int(address.rpartition(":")[2])
        assert address == f"http://{name}:{port}"
        assert asked(port, f"{name}:{port}") == 200
        assert asked(port, f"{name}:{port}", origin=f"http://{name}:{port}") == 200
        assert asked(port, f"evil.example:{port}") == 403
        assert asked(port, f"{name}:{port}", origin="http://evil.example") == 403
        os.kill(server.process.pid, signal.SIGKILL)  # nothing is told; its server ends all the same
        server.process.wait()
        assert left_after(tmp_path, 20) == []


def asked(port: int, host: str, origin: str | None = None) -> int:
    """The status of a search for experiments, as MLflow's pages ask for it."""
    headers = {"Host": host, "Content-Type": "application/json", **({"Origin": origin} if origin else {})}
    url = f"http://127.0.0.1:{port}/ajax-api/2.0/mlflow/experiments/search"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, b'{"max_results": 1}', headers), timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
