"""The server of ``sweeprof ui`` after a real sweep; test_quickstart.py follows the links that it prints."""

from __future__ import annotations

import base64
import re
import shutil
import signal
import urllib.request
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

import psutil
import pytest

from support.command import run_command
from support.processes import Started, left_after, started

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose sweep is in the database below it."""
    cwd = tmp_path_factory.mktemp("a sweep of today")
    ran = run_command(cwd, "model=fake", "backend=fake", "dataset=synthetic", "metrics.select=[compute/macs]")
    assert ran.code == 0, ran.err
    return cwd


@pytest.mark.thorough
def test_the_server_ends_with_a_command_that_is_killed(home: Path) -> None:
    with started("sweeprof", "ui", "--port", "0", cwd=home) as ui:
        ui.line("Ctrl-C ends the server.")
        ui.end(signal.SIGKILL)
        assert left_after(home, 20) == []


def answer(url: str, token: str | None = None, body: bytes | None = None) -> tuple[int, bytes]:
    """The status and the content of an answer."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    if token is not None:
        request.add_header("Authorization", f"Basic {base64.b64encode(f'{token}:'.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=30) as found:
            return found.status, found.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


def address_and_token(ui: Started) -> tuple[str, str]:
    """Of a server, once it listens."""
    table = ui.line("Table")
    ui.line("Ctrl-C ends the server.")
    return table.partition("/?token=")[0], table.partition("?token=")[2].partition("#")[0]


def test_who_does_not_have_the_token_gets_nothing(home: Path) -> None:
    with started("sweeprof", "ui", "--port", "0", cwd=home) as ui:
        address, token = address_and_token(ui)
        script = re.search(rb'static-files/[^"]+\.js', answer(f"{address}/", token)[1])
        assert script is not None
        search = "mlflow/experiments/search"
        gets = ["", script[0].decode(), "version", "docs", "openapi.json", "get-artifact?path=x&run_uuid=y", "health/"]
        gets += [
            f"ajax-api/2.0/{search}?max_results=5",
            "api/2.0/mlflow-artifacts/artifacts",
            "ajax-api/3.0/mlflow/server-info",
        ]
        for path in gets:
            assert answer(f"{address}/{path}")[0] == 403, path
            assert answer(f"{address}/{path}", token[:-1])[0] == 403, path
        for path in (f"api/2.0/{search}", f"ajax-api/2.0/{search}", "graphql", "v1/traces", "gateway/x"):
            assert answer(f"{address}/{path}", body=b"{}")[0] == 403, path
        assert answer(f"{address}/health") == (200, b"OK")
        assert answer(f"{address}/api/2.0/{search}", token, b'{"max_results": 5}')[0] == 200
        for process in psutil.process_iter(["cmdline"]):
            assert token not in " ".join(process.info["cmdline"] or []), process
        kept = list((home / ".cache" / "sweeprof" / "ui").glob(f"*-{urlsplit(address).port}*"))
        assert [path.stat().st_mode & 0o777 for path in kept] == [0o600]
        with started("sweeprof", "ui", "--port", str(urlsplit(address).port), cwd=home) as second:
            assert second.process.wait(timeout=60) == 0
            assert second.line("Table").startswith(f"{address}/?token={token}#")
        assert ui.end(signal.SIGINT) == 0
    assert not any(path.exists() for path in kept)


@pytest.mark.thorough
def test_a_database_that_came_with_the_folder_names_no_files_elsewhere(home: Path, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    home = Path(shutil.copytree(home, tmp_path / "home"))
    private = tmp_path / "private"
    private.mkdir()
    (private / "key").write_text("TOP-SECRET")
    client = MlflowClient(f"sqlite:///{home}/outputs/mlflow.db")
    elsewhere = client.create_run(client.create_experiment("elsewhere", artifact_location=private.as_uri()))
    inside = home / "outputs" / "mlflow-artifacts"
    linked = client.create_run(client.create_experiment("linked", artifact_location=(inside / "linked").as_uri()))
    (inside / "linked" / linked.info.run_id).mkdir(parents=True)
    (inside / "linked" / linked.info.run_id / "artifacts").symlink_to(private)
    below = client.create_run(client.create_experiment("below", artifact_location=(inside / "below").as_uri()))
    place = inside / "below" / below.info.run_id / "artifacts"
    place.mkdir(parents=True)
    (place / "key").symlink_to(private / "key")
    shutil.copytree(private, private / elsewhere.info.run_id / "artifacts")
    client.create_registered_model("m")
    store = client._get_registry_client().store  # type: ignore[no-untyped-call]
    store.create_model_version("m", private.as_uri())
    (inside / "key").symlink_to(private / "key")
    with started("sweeprof", "ui", "--port", "0", cwd=home) as ui:
        address, token = address_and_token(ui)
        paths = [f"get-artifact?path=key&run_uuid={run.info.run_id}" for run in (elsewhere, linked, below)]
        paths += ["model-versions/get-artifact?path=key&name=m&version=1", "api/2.0/mlflow-artifacts/artifacts/key"]
        for path in paths:
            status, content = answer(f"{address}/{path}", token)
            assert status >= 400, path
            assert b"TOP-SECRET" not in content, path
