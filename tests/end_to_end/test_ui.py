"""``sweeprof ui`` after a real sweep: what it prints is followed in Chromium."""

from __future__ import annotations

import base64
import re
import shutil
import signal
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import urlsplit

import psutil
import pytest

from support.browser import needs_browser
from support.command import Ran, run_command
from support.mlflow_pages import WAIT_MS, mlflow_page, opened, opened_view
from support.processes import left_after, started
from support.servers import MlflowServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, needs_browser]

SWEEP = (
    *(
        "model=fake",
        "backend=fake",
        "dataset=synthetic",
        "batch_size=1,8,64",
        "metrics.select=[compute/macs,latency/forward]",
    ),
    *("protocol.min_s=0", "protocol.warmup_s=0", "name=small"),
)
PAGES = ["Table", "Charts", "Sweep", "Report"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose sweep is in the database below it."""
    return swept(tmp_path_factory.mktemp("a sweep of today")).cwd


def swept(cwd: Path, *words: str) -> Ran:
    ran = run_command(cwd, *SWEEP, f"limits.locks={cwd / 'locks'}", *words)
    assert ran.code == 0, ran.err
    return ran


@pytest.mark.thorough
def test_each_printed_link_opens_what_it_is_called_after(home: Path) -> None:
    with started("sweeprof", "ui", "--port", "0", cwd=home) as ui:
        ui.line("Ctrl-C ends the server.")
        links = {name: ui.line(f"{name:<11}") for name in PAGES}
        assert list(dict(printed(line) for line in ui.lines[:-1])) == PAGES
        assert re.fullmatch(
            r"Starting MLflow's interface for .*/outputs/small/[^/]+; this takes 10 to 45 s\.\n", ui.err
        )
        with mlflow_page() as page:
            opened_view(page, links["Table"], 3)
            assert training(page)
            opened(page, links["Sweep"])
            page.get_by_text("3 of 3 combinations measured").first.wait_for(timeout=WAIT_MS)
            assert training(page)
            opened(page, links["Report"])
            page.frame_locator("iframe").get_by_text("small").first.wait_for(timeout=WAIT_MS)
            assert training(page)
        check_a_second_one_uses_the_first(home, links["Table"])
        assert ui.end(signal.SIGINT) == 0
    assert left_after(home, 10) == []


def training(page: Page) -> bool:
    """Whether it is one of the pages for models that are trained; the others have traces, judges and prompts beside it."""
    return page.get_by_role("link", name="Prompts").count() == 0


def check_a_second_one_uses_the_first(home: Path, address: str) -> None:
    with started("sweeprof", "ui", "--port", str(urlsplit(address).port), cwd=home) as second:
        assert second.process.wait(timeout=60) == 0
        assert second.line("Table") == address


def printed(line: str) -> tuple[str, str]:
    found = re.fullmatch(r"(\S.*?) {2,}(\S+)", line)
    assert found, line
    return found[1], found[2]


def test_the_server_ends_with_a_command_that_is_killed(home: Path) -> None:
    with started("sweeprof", "ui", "--port", "0", cwd=home) as ui:
        ui.line("Ctrl-C ends the server.")
        ui.end(signal.SIGKILL)
        assert left_after(home, 20) == []


@pytest.mark.thorough
def test_of_a_sweep_on_a_server_the_links_are_printed_and_that_is_all(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with MlflowServer(tmp_path / "server") as server:
        swept(home, f"tracking.uri={server.url}")
        with started("sweeprof", "ui", cwd=home) as ui:
            assert ui.process.wait(timeout=60) == 0
            assert ui.line("Table").startswith(f"{server.url}/#/experiments/1/runs?viewStateShareKey=sweeprof-")


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


def test_who_does_not_have_the_token_gets_nothing(home: Path) -> None:
    with started("sweeprof", "ui", "--port", "0", cwd=home) as ui:
        table = ui.line("Table")
        ui.line("Ctrl-C ends the server.")
        address, token = table.partition("/?token=")[0], table.partition("?token=")[2].partition("#")[0]
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
        assert ui.end(signal.SIGINT) == 0
    assert not any(path.exists() for path in kept)


def test_a_database_that_came_with_the_folder_names_no_files_elsewhere(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    home = tmp_path / "home"
    home.mkdir()
    swept(home)
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
        table = ui.line("Table")
        ui.line("Ctrl-C ends the server.")
        address, token = table.partition("/?token=")[0], table.partition("?token=")[2].partition("#")[0]
        paths = [f"get-artifact?path=key&run_uuid={run.info.run_id}" for run in (elsewhere, linked, below)]
        paths += ["model-versions/get-artifact?path=key&name=m&version=1", "api/2.0/mlflow-artifacts/artifacts/key"]
        for path in paths:
            status, content = answer(f"{address}/{path}", token)
            assert status >= 400, path
            assert b"TOP-SECRET" not in content, path
