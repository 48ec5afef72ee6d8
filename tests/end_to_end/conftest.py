"""The command in an empty folder, by itself and within this process, one quickstart that many tests look at, and a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import ARGUMENTS, CHROMIUM, Visit, opened
from support.command import Command, Ran, call_command, run_command
from support.processes import left_after

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def sweeprof(tmp_path: Path) -> Command:
    """The command, run in an empty folder."""

    def run(*arguments: str) -> Ran:
        return run_command(tmp_path, *arguments)

    return run


@pytest.fixture
def called(tmp_path: Path, measured_in_forks: None) -> Command:
    """The command in an empty folder, run in this process, which has imported what it needs; its trials have their own."""

    def call(*arguments: str) -> Ran:
        return call_command(tmp_path, *arguments)

    return call


@pytest.fixture
def no_process_is_left(tmp_path: Path) -> Iterator[None]:
    """Fails if anything that was started with this home still runs ten seconds after the test."""
    yield
    assert left_after(tmp_path, 10) == []


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The quickstart, once, with MLflow: 12 of its 18 combinations; each is timed for a shorter time."""
    home = tmp_path_factory.mktemp("quickstart")
    quickly = ("protocol.min_s=0.02", "protocol.warmup_s=0.02")
    return run_command(home, "+sweep=quickstart", "batch_size=1,64", *quickly, timeout=400)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; a module that asks for it skips itself where there is none."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Opens pages, of which none fetches or complains about anything."""
    visits: list[Visit] = []

    def open_page(html: str, fragment: str = "", **options: Any) -> Visit:
        visits.append(opened(browser, html, fragment, **options))
        return visits[-1]

    yield open_page
    for one in visits:
        one.leave()
        assert one.complaints == []
        assert len(one.requests) == 1
