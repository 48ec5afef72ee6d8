"""Reports made again, and records sent again, from what is on disk."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pandas as pd
import pytest

from support.command import Command, environment
from sweeprof.tracking.process import ENVIRONMENT

GOLDEN = Path(__file__).parents[1] / "golden" / "sweep-v1"
FAKE = ("model=fake", "backend=fake", "dataset=synthetic", "compare.baseline={batch_size: 1}")
METRICS = ("metrics.select=[compute/macs,latency/forward]", "protocol.min_s=0", "protocol.warmup_s=0")


def python(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(cwd), capture_output=True, text=True, timeout=120, check=False
    )


def test_reports_of_the_first_version_are_made_again(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "sweep")
    (tmp_path / "sweep" / "comparison.csv").unlink()
    done = python(tmp_path, "sweeprof.report", "sweep")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 combinations measured" in done.stdout
    found, golden = (pd.read_csv(folder / "comparison.csv") for folder in (tmp_path / "sweep", GOLDEN))
    pd.testing.assert_frame_equal(found[list(golden.columns)], golden)
    for name in ("comparison.json", "comparison.md", "report.html"):
        assert (tmp_path / "sweep" / name).stat().st_size > 0


@pytest.mark.parametrize("module", ["sweeprof.report", "sweeprof.sync"])
def test_mistakes(tmp_path: Path, module: str) -> None:
    (tmp_path / "empty").mkdir()
    for argument, said in (("empty", "is no folder of a sweep"), ("last", "finds no sweep below")):
        done = python(tmp_path, module, argument)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert "DIR" in python(tmp_path, module, "--help").stdout


@contextmanager
def server(folder: Path, port: int) -> Iterator[None]:
    """A real tracking server, until the block ends."""
    options = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    stores = [
        "--backend-store-uri",
        f"sqlite:///{folder / 'server.db'}",
        "--artifacts-destination",
        str(folder / "art"),
    ]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *options, *stores],
            env={**environment(folder), **quiet},
            stdout=log,
            stderr=log,
        )
        try:
            deadline = time.monotonic() + 90
            while time.monotonic() < deadline and process.poll() is None:
                with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_what_a_dead_server_missed_is_sent_later_and_only_once(
    sweeprof: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    ran = sweeprof(*FAKE, *METRICS, "batch_size=1,2", f"tracking.uri={uri}")
    assert ran.code == 0, ran.err
    folder = ran.folder("adhoc")
    dead = python(tmp_path, "sweeprof.sync", str(folder))
    assert dead.returncode == 2
    assert "not sent: " in dead.stderr
    assert "Traceback" not in dead.stderr
    (tmp_path / "server").mkdir()
    with server(tmp_path / "server", port):
        found = []
        for again in (str(folder), "last"):
            sent = python(tmp_path, "sweeprof.sync", again)
            assert sent.returncode == 0, sent.stderr
            assert f"Compare    {uri}" in sent.stdout
            found.append(runs(uri, monkeypatch))
    assert found[0] == found[1]
    assert sorted(kind for kind, _, _ in found[0]) == ["combination", "combination", "history", "history", "sweep"]
    assert {status for _, _, status in found[0]} == {"FINISHED"}
    mistaken = python(tmp_path, "sweeprof.sync", str(folder), "uir=x")
    assert (mistaken.returncode, "Did you mean 'uri'?" in mistaken.stderr) == (1, True)


def runs(uri: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments)
    return sorted((run.data.tags["sweeprof.kind"], run.info.run_id, run.info.status) for run in found)
