"""What tracking costs per combination: sent by us, and the same runs written with MLflow's fluent API, into a database file and
through a server, in turns within one run. And how a sweep of two thousand combinations is logged, opened and searched.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import ARGUMENTS, CHROMIUM
from support.samples import comparison, records
from support.servers import MlflowServer, isolated
from sweeprof.report.changes import comparison_markdown
from sweeprof.results.compared_rows import Comparison
from sweeprof.tracking import Links, SweepInfo
from sweeprof.tracking.mlflow import MlflowTracker

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient
    from playwright.sync_api import Page

TURNS = 3
COMBINATIONS = int(os.environ.get("TRACKING_COMBINATIONS", "2000"))
PAGE = 100
"""Runs that MLflow's table loads at once."""
VIEWPORT: Any = {"width": 2000, "height": 1600}


@pytest.fixture(autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in isolated(tmp_path_factory.mktemp("home")).items():
        monkeypatch.setenv(name, value)


@dataclass(frozen=True)
class Logged:
    """A run as MLflow has it, to be written again in another way."""

    name: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    artifacts: Path


@dataclass(frozen=True)
class Prepared:
    """A sweep whose records are on disk."""

    comparison: Comparison
    folder: Path

    def send(self, uri: str | None, output: Path) -> tuple[Links, float]:
        """Its links, and the seconds that sending what was measured took."""
        of, tracker = self.comparison, MlflowTracker(uri, output, history=True)
        links = tracker.open(SweepInfo(of.sweep_id, of.name, of.command, of.created, of.axes, len(of.rows)))
        outcomes = records(of)
        begin = time.monotonic()
        tracker.close(of, outcomes, self.folder, "finished")
        return links, time.monotonic() - begin


def prepared(folder: Path, sweep_id: str, rows: int = 0) -> Prepared:
    """Every combination measured; with ``rows`` so many that differ in their batch size."""
    of = dataclasses.replace(comparison(broken=False), sweep_id=sweep_id)
    if rows:
        first = of.rows[0]
        ids = ((f"c{i:012x}", {**first.axes, "batch_size": i + 1}) for i in range(rows))
        many = tuple(dataclasses.replace(first, combination_id=id, axes=axes) for id, axes in ids)
        of = dataclasses.replace(of, rows=many)
    folder.mkdir(parents=True)
    for record in records(of):
        record.write(folder / "records")
    (folder / "comparison.md").write_text(comparison_markdown(of), encoding="utf-8")
    (folder / "report.html").write_text("<p>report</p>", encoding="utf-8")
    return Prepared(of, folder)


def sweeps_runs(client: MlflowClient, sweep_id: str) -> list[Run]:
    """The combinations of a sweep; raises where one is there twice."""
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment is not None
    wanted = f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = 'combination'"
    runs = list(client.search_runs([experiment.experiment_id], wanted, max_results=5000))
    assert len({run.data.tags["sweeprof.combination_id"] for run in runs}) == len(runs)
    return runs


def read_back(uri: str, sweep_id: str, folder: Path) -> list[Logged]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = []
    for run in sweeps_runs(client, sweep_id):
        target = folder / run.info.run_id
        target.mkdir(parents=True)
        client.download_artifacts(run.info.run_id, "", str(target))
        # A run of the fluent API names its own parent.
        tags = {key: text for key, text in run.data.tags.items() if key != "mlflow.parentRunId"}
        found.append(Logged(run.info.run_name, run.data.params, run.data.metrics, tags, target))
    return found


def bulk(run: Logged) -> None:
    import mlflow

    with mlflow.start_run(run_name=run.name, nested=True, tags=dict(run.tags)):
        mlflow.log_params(dict(run.params))
        mlflow.log_metrics(dict(run.metrics))
        mlflow.log_artifacts(str(run.artifacts))


def value_by_value(run: Logged) -> None:
    import mlflow

    with mlflow.start_run(run_name=run.name, nested=True):
        for key, text in run.tags.items():
            mlflow.set_tag(key, text)
        for key, text in run.params.items():
            mlflow.log_param(key, text)
        for key, value in run.metrics.items():
            mlflow.log_metric(key, value)
        for path in sorted(path for path in run.artifacts.rglob("*") if path.is_file()):
            folder = path.parent.relative_to(run.artifacts).as_posix()
            mlflow.log_artifact(str(path), None if folder == "." else folder)


def fluent(uri: str, output: Path, runs: list[Logged], write: Callable[[Logged], None]) -> float:
    """Seconds of a sweep written so; the artifacts go where ours go."""
    import mlflow

    mlflow.set_tracking_uri(uri)
    if mlflow.get_experiment_by_name("fluent") is None:
        mlflow.create_experiment("fluent", (output / "fluent").as_uri() if uri.startswith("sqlite") else None)
    mlflow.set_experiment("fluent")
    begin = time.monotonic()
    with mlflow.start_run(run_name="sweep"):
        for run in runs:
            write(run)
    return time.monotonic() - begin


def costs(uri: str, output: Path, folder: Path) -> Iterator[tuple[str, float]]:
    """Ways to write the same runs, with the seconds per combination, in turns; of the first turn, which warms up, nothing."""
    runs: list[Logged] = []
    for turn in range(TURNS + 1):
        sweep = prepared(folder / f"sweep-{turn}", f"s{turn:012x}")
        found = [("sweeprof", sweep.send(uri, output)[1])]
        runs = runs or read_back(uri, sweep.comparison.sweep_id, folder / "again")
        found += [("fluent, in bulk", fluent(uri, output, runs, bulk))]
        found += [("fluent, value by value", fluent(uri, output, runs, value_by_value))]
        if turn:
            yield from ((name, seconds / len(runs)) for name, seconds in found)


@pytest.mark.timeout(900)
def test_a_combination_costs_less_than_with_the_fluent_api(tmp_path: Path) -> None:
    print(f"\n{'milliseconds per combination':<40}{'median':>8}{'of ours':>9}")
    with MlflowServer(tmp_path / "server") as server:
        output = tmp_path / "outputs"
        output.mkdir()
        for store, uri in (("database file", f"sqlite:///{output / 'mlflow.db'}"), ("server", server.url)):
            seen: dict[str, list[float]] = {}
            for name, seconds in costs(uri, output, tmp_path / store):
                seen.setdefault(name, []).append(seconds)
            own = median(seen["sweeprof"])
            for name, all in seen.items():
                print(f"{f'{store}: {name}':<40}{median(all) * 1e3:>8.1f}{median(all) / own:>9.2f}")
            assert own < median(seen["fluent, value by value"])


@pytest.mark.timeout(1200)
def test_two_thousand_combinations_are_logged_opened_and_searched(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    sweep = prepared(tmp_path / "sweep", "s0123456789ab", COMBINATIONS)
    output = tmp_path / "outputs"
    links, seconds = sweep.send(None, output)
    print(f"\n{COMBINATIONS} combinations: logged in {seconds:.0f} s, {seconds / COMBINATIONS * 1e3:.0f} ms each")
    _, seconds = sweep.send(None, output)
    print(f"sent again, when all is there: {seconds:.0f} s")
    size = (output / "mlflow.db").stat().st_size
    print(f"database {size / 1e6:.0f} MB, artifacts {used(output / 'mlflow-artifacts') / 1e6:.0f} MB")
    with MlflowServer(tmp_path / "server", f"sqlite:///{output / 'mlflow.db'}") as server:
        client = MlflowClient(tracking_uri=server.url)
        begin = time.monotonic()
        assert len(sweeps_runs(client, sweep.comparison.sweep_id)) == COMBINATIONS
        print(f"all runs read through a server: {time.monotonic() - begin:.1f} s")
        show_searches(client)
        if CHROMIUM:
            address = server.url + links.comparison[links.comparison.index("/#/") :]
            show_pages(address)
        else:
            print("pages: no browser")
    shutil.rmtree(tmp_path)


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def show_searches(client: MlflowClient) -> None:
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment is not None
    for name, wanted, order in (
        ("one, by an axis", "params.batch_size = '77'", []),
        ("the first 100 below a latency", "metrics.`latency/forward_ms` < 1000", []),
        ("the 100 fastest", "", ["metrics.`latency/forward_ms`"]),
    ):
        begin = time.monotonic()
        found = client.search_runs([experiment.experiment_id], wanted, max_results=PAGE, order_by=order)
        print(f"search, {name}: {time.monotonic() - begin:.2f} s ({len(found)} runs)")


def show_pages(table: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            page = browser.new_page(viewport=VIEWPORT)
            for visit in ("first", "again"):
                seconds = until(page, table, ".ag-pinned-left-cols-container .ag-row a")
                print(f"table, {visit}: {seconds:.1f} s until rows are shown")
            charts = table.replace("-table&compareRunsMode=TABLE", "-charts&compareRunsMode=CHART")
            print(f"charts: {until(page, charts, '.js-plotly-plot .bars path'):.1f} s until bars are shown")
        finally:
            browser.close()


def until(page: Page, address: str, selector: str) -> float:
    page.goto("about:blank")
    begin = time.monotonic()
    page.goto(address)
    page.locator(selector).first.wait_for(timeout=180_000, state="attached")
    return time.monotonic() - begin
