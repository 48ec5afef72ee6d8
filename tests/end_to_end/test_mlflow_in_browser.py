"""The links that a sweep ends with, followed as users do: the viewer's command in a shell, the address in Chromium.

MLflow's format of a saved view is its own affair; this is where a new version of MLflow shows whether it still reads ours.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.samples import comparison, records
from sweeprof.report.markdown import markdown
from sweeprof.tracking import Links, SweepInfo
from sweeprof.tracking.mlflow import ENVIRONMENT, MlflowTracker
from sweeprof.tracking.process import VIEWER

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs a browser at {CHROMIUM}")

ARGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
ROWS = 18
MEASURED = 16
# Columns, rows and charts are made only where they are seen: everything is to fit.
VIEWPORT: Any = {"width": 2600, "height": 2600}
SECTIONS = [("Compare", "4"), ("Trade-offs", "2"), ("All axes", "1"), ("Other metrics", "11")]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}.items():
            patch.setenv(name, value)
        yield dict(os.environ)


@pytest.fixture(scope="module")
def links(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Links:
    """Of a database with the sample sweep in it, in a folder whose name has to be quoted."""
    output = tmp_path_factory.mktemp("sweeps of today")
    found = send(MlflowTracker(None, output), output)
    assert found.command is not None
    return found


def send(tracker: MlflowTracker, folder: Path, name: str = "quickstart") -> Links:
    of = dataclasses.replace(comparison(), name=name)
    (folder / "comparison.md").write_text(markdown(of), encoding="utf-8")
    found = tracker.open(SweepInfo(of.sweep_id, of.name, of.command, of.created, of.axes, len(of.rows)))
    tracker.close(of, records(of), folder, "finished")
    return found


@pytest.fixture(scope="module")
def server(links: Links, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the viewer, started by its own command on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert links.command is not None
    command = links.command.replace("--port 5000", f"--port {port}")
    folder = tmp_path_factory.mktemp("server")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, shell=True, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            base = f"http://127.0.0.1:{port}"
            wait_for(f"{base}/health", process, folder / "log")
            yield base
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=20)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the viewer did not start: {log.read_text()}")


@pytest.fixture(scope="module")
def page(server: str) -> Iterator[Page]:
    """A page that has asked nobody but the viewer, when all is over."""
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGS.split())
        try:
            found = browser.new_page(viewport=VIEWPORT)
            found.on("request", lambda request: asked.append(request.url))
            yield found
        finally:
            browser.close()
    elsewhere = [url for url in asked if not url.startswith((f"{server}/", "data:", "blob:"))]
    assert asked
    assert elsewhere == []


def opened(page: Page, address: str) -> None:
    # Within one page a new address after the # loads nothing anew.
    page.goto("about:blank")
    page.goto(address)
    page.get_by_text(f"{ROWS} matching runs").wait_for(timeout=40_000)


def charts_of(address: str) -> str:
    return address.replace("-table&compareRunsMode=TABLE", "-charts&compareRunsMode=CHART")


def in_order(page: Page, selector: str, side: str) -> list[str]:
    """The first line of each element, by place: that in the document says nothing in these grids."""
    script = f"""all => all
        .map(element => [element.getBoundingClientRect().{side}, element.innerText.trim().split('\\n')[0]])
        .sort((a, b) => a[0] - b[0]).map(pair => pair[1].trim()).filter(Boolean)"""
    found: list[str] = page.locator(selector).evaluate_all(script)
    return found


def test_the_table_lists_every_combination_with_headline_metrics_and_axes(
    links: Links, server: str, page: Page
) -> None:
    opened(page, links.comparison.replace(VIEWER, server))
    rows = ".ag-pinned-left-cols-container .ag-row"
    page.locator(rows).nth(ROWS - 1).wait_for(timeout=10_000)
    page.locator(".ag-header-cell", has_text="batch_size").wait_for(timeout=10_000)
    headers = in_order(page, ".ag-header-cell", "left")
    assert headers[headers.index("latency/forward_ms") :] == [
        "latency/forward_ms",
        "throughput/samples_per_s",
        "memory/rss_peak_mib",
        "quality/accuracy",
        "sweeprof.reason",
        "model",
        "backend",
        "batch_size",
        "Duration",
    ]
    names = in_order(page, f"{rows} a", "top")
    assert len(names) == ROWS
    assert names[:6] == [f"lenet5/{backend}/b{n}" for n in (1, 8, 64) for backend in ("torch", "tensorflow")]
    assert page.get_by_text("timing: killed by SIGKILL (signal 9)").is_visible()


def test_the_charts_are_drawn_for_every_measured_combination(links: Links, server: str, page: Page) -> None:
    opened(page, charts_of(links.comparison.replace(VIEWER, server)))
    page.locator(".parcoords .dimension").nth(6).wait_for(timeout=20_000)
    page.locator(".js-plotly-plot").nth(5).wait_for(timeout=20_000)
    points = "element => element.map(plot => plot.data.map(trace => [trace.type, trace.x.length]))"
    drawn = page.locator(".js-plotly-plot").evaluate_all(points)
    assert drawn == [[["bar", MEASURED]]] * 4 + [[["scatter", MEASURED]]] * 2
    shown = page.get_by_test_id("experiment-view-compare-runs-chart-area").inner_text()
    assert re.findall(r"^([A-Za-z][\w -]*)\s*\((\d+)\)", shown, re.M) == SECTIONS


def test_the_description_of_the_sweep_leads_to_the_charts(server: str, page: Page) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=server)
    (parent,) = client.search_runs(["1"], "tags.`sweeprof.kind` = 'sweep'")
    page.goto(f"{server}/#/experiments/1/runs/{parent.info.run_id}")
    page.get_by_text("16 of 18 combinations measured").wait_for(timeout=20_000)
    with page.expect_popup() as popup:
        page.get_by_role("link", name="charts", exact=True).click(timeout=5_000)
    assert "viewStateShareKey=sweeprof-s0123456789ab-charts&compareRunsMode=CHART" in popup.value.url
    popup.value.close()


def test_a_server_takes_a_sweep_with_its_artifacts(server: str, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    found = send(MlflowTracker(server, tmp_path / "unused"), tmp_path, name="remote")
    assert found.command is None
    assert found.comparison.startswith(f"{server}/#/experiments/2/runs?viewStateShareKey=sweeprof-")
    client = MlflowClient(tracking_uri=server)
    runs = client.search_runs(["2"], "tags.`sweeprof.kind` = 'combination'")
    assert len(runs) == ROWS
    assert [file.path for file in client.list_artifacts(runs[0].info.run_id)] == ["config.json"]
    assert not (tmp_path / "unused").exists()
