"""The links that a sweep ends with, followed as users do: the address in Chromium, on a server of our own.

MLflow's format of a saved view is its own affair; this is where a new version of MLflow shows whether it still reads ours.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import needs_browser
from support.layered import write_layers
from support.mlflow_pages import (
    COLUMNS,
    FIRST_VISIT,
    HEADLINES,
    WAIT_MS,
    charts,
    first_visit,
    mlflow_page,
    opened,
    opened_view,
    run_table,
    visible_texts,
)
from support.samples import comparison, records, with_added_memory
from support.servers import MlflowServer
from sweeprof.report.changes import comparison_markdown
from sweeprof.report.html import html
from sweeprof.tracking import Links, SweepInfo
from sweeprof.tracking.connection import VIEWER
from sweeprof.tracking.mlflow import ENVIRONMENT, MlflowTracker
from sweeprof.tracking.runs import LAYERS
from sweeprof.tracking.views import HISTORY, TREND, run_address, runs_address, view_address

if TYPE_CHECKING:
    from mlflow.entities import Run
    from playwright.sync_api import Page

# What these pages show of the quickstart is among the tests of that.
pytestmark = [pytest.mark.slow, needs_browser]

ROWS = 18
MEASURED = 16
MEASURED_ONE = "lenet5/torch/b1"
AXES = ["model", "backend", "batch_size"]
SECTIONS = [("Compare", "5"), ("Trade-offs", "2"), ("All axes", "1")]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}.items():
            patch.setenv(name, value)
        yield dict(os.environ)


@pytest.fixture(scope="module")
def database(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweeps of today") / "mlflow.db"


@pytest.fixture(scope="module")
def links(database: Path) -> Links:
    """Of a database with two nights of the sample sweep in it, in a folder whose name has to be quoted."""
    output = database.parent
    tracker, night_before = MlflowTracker(None, output, history=True), "2026-11-20T00:30:00+00:00"
    send(tracker, output, sweep_id="s0", created=night_before, rows=comparison().rows[:4])
    found = send(tracker, output)
    assert found.needs_viewer
    return found


def send(tracker: MlflowTracker, output: Path, **changes: Any) -> Links:
    long_command = f"{comparison().command} {' '.join(f'model.torch.setting_{i}={i}' for i in range(20))}"
    of = with_added_memory(dataclasses.replace(comparison(), command=long_command, **changes))
    folder = output / of.sweep_id
    write_layers(folder, of)
    (folder / "comparison.md").write_text(comparison_markdown(of), encoding="utf-8")
    (folder / "report.html").write_text(html(of, False), encoding="utf-8")
    found = tracker.open(SweepInfo(of.sweep_id, of.name, of.command, of.created, of.axes, len(of.rows)))
    tracker.close(of, records(of), folder, "finished")
    return found


@pytest.fixture(scope="module")
def server(links: Links, database: Path) -> Iterator[str]:
    artifacts = str(database.parent / "mlflow-artifacts")
    with MlflowServer(database.parent / "server", f"sqlite:///{database}", artifacts) as found:
        yield found.url


@pytest.fixture(scope="module")
def page(server: str) -> Iterator[Page]:
    with mlflow_page() as found:
        yield found


def view(links: Links, server: str, kind: str, mode: str) -> str:
    """The address of another view than the table that is printed."""
    printed = links.comparison.replace(VIEWER, server)
    return printed.replace("-table&compareRunsMode=TABLE", f"-{kind}&compareRunsMode={mode}")


def runs_of(server: str, kind: str, experiment: str = "1") -> list[Run]:
    """Newest first."""
    from mlflow.tracking import MlflowClient

    return [*MlflowClient(server).search_runs([experiment], f"tags.`sweeprof.kind` = '{kind}'")]


def one_named(name: str, runs: list[Run]) -> Run:
    """Those that began in the same moment have no order."""
    return next(run for run in runs if run.info.run_name == name)


def test_the_table_lists_every_combination_with_headline_metrics_and_axes(
    links: Links, server: str, page: Page
) -> None:
    opened_view(page, links.comparison.replace(VIEWER, server), ROWS)
    names, headers = run_table(page, ROWS)
    assert headers[headers.index("latency/forward_ms") :] == [*COLUMNS, "sweeprof.reason", *AXES, "Duration"]
    assert len(names) == ROWS
    assert names[:6] == [f"lenet5/{backend}/b{n}" for n in (1, 8, 64) for backend in ("torch", "tensorflow")]
    assert page.get_by_text("timing: killed by SIGKILL (signal 9)").is_visible()


def test_a_sweep_without_a_view_lists_every_combination(server: str, page: Page) -> None:
    sweep = runs_of(server, "sweep")[0]
    opened_view(page, runs_address(server, "1", sweep.info.run_id, "table"), ROWS)
    page.get_by_text("lenet5/tensorflow/b1", exact=True).wait_for(timeout=WAIT_MS)
    assert page.get_by_role("link", name="Prompts").count() == 0  # the pages of language models


def test_a_first_visit_shows_axes_latency_ratio_and_verdict_without_scrolling(
    links: Links, server: str, page: Page
) -> None:
    with first_visit(page) as new:
        opened(new, links.comparison.replace(VIEWER, server), FIRST_VISIT)
        new.get_by_text("MLflow Assistant").wait_for(timeout=WAIT_MS)
        new.get_by_text(f"{ROWS} matching runs").wait_for(timeout=WAIT_MS)
        new.get_by_text("lenet5/tensorflow/b1", exact=True).wait_for(timeout=WAIT_MS)
        assert new.get_by_role("link", name="Prompts").count() == 0  # the pages of language models
        headers = visible_texts(new, ".ag-header-cell [data-testid]")
        assert {"Run Name", *COLUMNS[:3]} <= set(headers)
        names = visible_texts(new, ".ag-pinned-left-cols-container .ag-row a")
        assert names[:2] == ["lenet5/torch/b1", "lenet5/tensorflow/b1"]
        cells = visible_texts(new, ".ag-center-cols-container .ag-row .ag-cell")
        assert {"0.24383", "1.9", "unclear", "baseline"} <= set(cells)


def test_the_charts_are_drawn_for_every_measured_combination(links: Links, server: str, page: Page) -> None:
    opened_view(page, view(links, server, "charts", "CHART"), ROWS)
    names = [*AXES, *reversed(HEADLINES)]
    # Each line's text is that of its ticks and its name. They are drawn one after the other.
    script = """count => {
        const lines = [...document.querySelectorAll(".parcoords .dimension")];
        return lines.length === count && lines.map(line => line.textContent);
    }"""
    lines = page.wait_for_function(script, arg=len(names), timeout=WAIT_MS).json_value()
    assert [name for name, line in zip(names, lines, strict=True) if name not in line] == []
    assert charts(page, 7)[:7] == [[["bar", MEASURED]]] * 5 + [[["scatter", MEASURED]]] * 2
    shown = page.get_by_test_id("experiment-view-compare-runs-chart-area").inner_text()
    assert re.findall(r"^([A-Za-z][\w -]*)\s*\((\d+)\)", shown, re.M)[:3] == SECTIONS


def test_the_history_draws_a_line_over_the_nights(server: str, page: Page) -> None:
    # Without a graphics card lines take long to draw.
    opened(page, view_address(server, "2", HISTORY, TREND), {"width": 1600, "height": 1200})
    points = [count for _, count in charts(page, 1)[0]]
    assert set(points) == {1, 2}
    # Of a run there may be a trace for its line and another for its points.
    assert points.count(2) * MEASURED == 4 * len(points)


def test_the_description_of_the_sweep_is_formatted_and_leads_to_the_charts(server: str, page: Page) -> None:
    opened(page, f"{server}/{run_address('', '1', runs_of(server, 'sweep')[0].info.run_id)}")
    page.locator("strong", has_text="No certain difference between torch and tensorflow in 7 of 9 cases").wait_for(
        timeout=WAIT_MS
    )
    with page.expect_popup() as popup:
        page.get_by_role("link", name="charts", exact=True).click(timeout=5_000)
    assert "viewStateShareKey=sweeprof-s0123456789ab-charts&compareRunsMode=CHART" in popup.value.url
    popup.value.close()
    for name in ("table", "report", "history"):
        assert page.get_by_role("link", name=name, exact=True).first.is_visible()


def test_a_combination_has_its_layers_as_a_table(server: str, page: Page) -> None:
    measured = one_named(MEASURED_ONE, runs_of(server, "combination"))
    opened(page, f"{server}/{run_address('', '1', measured.info.run_id, LAYERS)}")
    page.get_by_text("conv #2").first.wait_for(timeout=WAIT_MS)
    assert page.get_by_text("forward_self_ms").first.is_visible()
