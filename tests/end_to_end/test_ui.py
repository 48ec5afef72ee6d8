"""``sweeprof ui`` after a real sweep: what it prints is followed in Chromium."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from support.browser import needs_browser
from support.command import Ran, run_command
from support.mlflow_pages import WAIT_MS, mlflow_page, opened, opened_view
from support.processes import left_after
from support.servers import MlflowServer
from support.started import started

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
    with started("sweeprof.ui", "--port", "0", cwd=home) as ui:
        ui.line("Ctrl-C ends the server.")
        links = {name: ui.line(f"{name:<11}") for name in PAGES}
        assert list(dict(printed(line) for line in ui.lines[:-1])) == PAGES
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
    with started("sweeprof.ui", "--port", str(urlsplit(address).port), cwd=home) as second:
        assert second.process.wait(timeout=60) == 0
        assert second.line("Table") == address


def printed(line: str) -> tuple[str, str]:
    found = re.fullmatch(r"(\S.*?) {2,}(\S+)", line)
    assert found, line
    return found[1], found[2]


def test_the_server_ends_with_a_command_that_is_killed(home: Path) -> None:
    with started("sweeprof.ui", "--port", "0", cwd=home) as ui:
        ui.line("Ctrl-C ends the server.")
        ui.end(signal.SIGKILL)
        assert left_after(home, 20) == []


@pytest.mark.thorough
def test_of_a_sweep_on_a_server_the_links_are_printed_and_that_is_all(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with MlflowServer(tmp_path / "server") as server:
        swept(home, f"tracking.uri={server.url}")
        with started("sweeprof.ui", cwd=home) as ui:
            assert ui.process.wait(timeout=60) == 0
            assert ui.line("Table").startswith(f"{server.url}/#/experiments/1/runs?viewStateShareKey=sweeprof-")
        alone = swept(tmp_path, "tracking=none")
        with started("sweeprof.ui", "--uri", server.url, str(alone.folder("small")), cwd=tmp_path) as ui:
            assert ui.process.wait(timeout=60) == 2
            assert ui.err.startswith(f"error: MLflow does not have {alone.folder('small')}; to send it: sweeprof sync")
