"""What tracking costs per combination: sent by us, and the same runs written with MLflow's fluent API, into a database file and
through a server, in turns within one run. And how a sweep of two thousand combinations is logged, opened and searched.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

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

TURNS = 3
COMBINATIONS = int(os.environ.get("TRACKING_COMBINATIONS", "2000"))
PAGE = 100
"""Runs that MLflow's table loads at once."""


@pytest.fixture(autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in isolated(tmp_path_factory.mktemp("home")).items():
        monkeypatch.setenv(name, value)


def prepared(folder: Path, sweep_id: str, rows: int = 0) -> Comparison:
    """A sweep with every combination measured, its records on disk; with ``rows`` so many that differ in their batch size."""
    of = dataclasses.replace(comparison(broken=False), sweep_id=sweep_id)
    if rows:
        many = []
        for i in range(rows):
            axes = {**of.rows[0].axes, "batch_size": i + 1}
            many.append(dataclasses.replace(of.rows[0], combination_id=f"c{i:012x}", axes=axes))
        of = dataclasses.replace(of, rows=tuple(many))
    folder.mkdir(parents=True)
    for record in records(of):
        record.write(folder / "records")
    (folder / "comparison.md").write_text(comparison_markdown(of), encoding="utf-8")
    (folder / "report.html").write_text("<p>report</p>", encoding="utf-8")
    return of


def send(of: Comparison, folder: Path, uri: str | None, output: Path) -> tuple[Links, float]:
    """Its links, and the seconds that sending what was measured took."""
    tracker = MlflowTracker(uri, output, history=True)
    links = tracker.open(SweepInfo(of.sweep_id, of.name, of.command, of.created, of.axes, len(of.rows)))
    outcomes = records(of)
    begin = time.monotonic()
    tracker.close(of, outcomes, folder, "finished")
    return links, time.monotonic() - begin


def sweeps_runs(client: MlflowClient, sweep_id: str) -> list[Run]:
    """The combinations of a sweep; raises where one is there twice."""
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment is not None
    wanted = f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = 'combination'"
    runs = list(client.search_runs([experiment.experiment_id], wanted, max_results=5000))
    assert len({run.data.tags["sweeprof.combination_id"] for run in runs}) == len(runs)
    return runs


Logged = tuple["Run", Path]
"""A run as MLflow has it, to be written again in another way, and the folder of its artifacts."""


def read_back(uri: str, sweep_id: str, folder: Path) -> list[Logged]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = []
    for run in sweeps_runs(client, sweep_id):
        target = folder / run.info.run_id
        target.mkdir(parents=True)
        client.download_artifacts(run.info.run_id, "", str(target))
        del run.data.tags["mlflow.parentRunId"]  # a run of the fluent API names its own parent
        found.append((run, target))
    return found


def bulk(run: Run, artifacts: Path) -> None:
    import mlflow

    with mlflow.start_run(run_name=run.info.run_name, nested=True, tags=run.data.tags):
        mlflow.log_params(run.data.params)
        mlflow.log_metrics(run.data.metrics)
        mlflow.log_artifacts(str(artifacts))


def value_by_value(run: Run, artifacts: Path) -> None:
    import mlflow

    with mlflow.start_run(run_name=run.info.run_name, nested=True):
        for key, text in run.data.tags.items():
            mlflow.set_tag(key, text)
        for key, text in run.data.params.items():
            mlflow.log_param(key, text)
        for key, value in run.data.metrics.items():
            mlflow.log_metric(key, value)
        for path in sorted(path for path in artifacts.rglob("*") if path.is_file()):
            folder = path.parent.relative_to(artifacts).as_posix()
            mlflow.log_artifact(str(path), None if folder == "." else folder)


def fluent(uri: str, output: Path, runs: list[Logged], write: Callable[[Run, Path], None]) -> float:
    """Seconds of a sweep written so; the artifacts go where ours go."""
    import mlflow

    mlflow.set_tracking_uri(uri)
    if mlflow.get_experiment_by_name("fluent") is None:
        mlflow.create_experiment("fluent", (output / "fluent").as_uri() if uri.startswith("sqlite") else None)
    mlflow.set_experiment("fluent")
    begin = time.monotonic()
    with mlflow.start_run(run_name="sweep"):
        for run in runs:
            write(*run)
    return time.monotonic() - begin


@pytest.mark.timeout(900)
def test_a_combination_costs_less_than_with_the_fluent_api(tmp_path: Path) -> None:
    with MlflowServer(tmp_path / "server") as server:
        output = tmp_path / "outputs"
        output.mkdir()
        for store, uri in (("database file", f"sqlite:///{output / 'mlflow.db'}"), ("server", server.url)):
            seen: dict[str, list[float]] = {"sweeprof": [], "bulk": [], "value by value": []}
            runs: list[Logged] = []
            for turn in range(TURNS + 1):
                folder = tmp_path / store / f"sweep-{turn}"
                sweep = prepared(folder, f"s{turn:012x}")
                seen["sweeprof"].append(send(sweep, folder, uri, output)[1])
                runs = runs or read_back(uri, sweep.sweep_id, tmp_path / store / "again")
                seen["bulk"].append(fluent(uri, output, runs, bulk))
                seen["value by value"].append(fluent(uri, output, runs, value_by_value))
            medians = {name: median(seconds[1:]) for name, seconds in seen.items()}  # the first turn warms up
            for name, seconds in medians.items():
                over = seconds / medians["sweeprof"]
                print(f"\n{store}: {name}: {seconds / len(runs) * 1e3:.1f} ms per combination, {over:.2f} of ours")
            assert medians["sweeprof"] < medians["value by value"]


@pytest.mark.timeout(1200)
def test_two_thousand_combinations_are_logged_opened_and_searched(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    sweep = prepared(tmp_path / "sweep", "s0123456789ab", COMBINATIONS)
    output = tmp_path / "outputs"
    links, seconds = send(sweep, tmp_path / "sweep", None, output)
    size = (output / "mlflow.db").stat().st_size
    print(f"\n{COMBINATIONS} combinations: {seconds / COMBINATIONS * 1e3:.0f} ms each, database {size / 1e6:.0f} MB")
    with MlflowServer(tmp_path / "server", f"sqlite:///{output / 'mlflow.db'}") as server:
        client = MlflowClient(tracking_uri=server.url)
        assert len(sweeps_runs(client, sweep.sweep_id)) == COMBINATIONS
        experiment = client.get_experiment_by_name("quickstart")
        assert experiment is not None
        wanted = "metrics.`latency/forward_ms` < 1000"
        begin = time.monotonic()
        found = client.search_runs([experiment.experiment_id], wanted, max_results=PAGE)
        print(f"search of the first {len(found)} below a latency: {time.monotonic() - begin:.2f} s")
        if CHROMIUM:
            show_table(server.url + links.comparison[links.comparison.index("/#/") :])
        else:
            print("table: no browser")
    shutil.rmtree(tmp_path)


def show_table(address: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            page = browser.new_page(viewport={"width": 2000, "height": 1600})
            begin = time.monotonic()
            page.goto(address)
            rows = page.locator(".ag-pinned-left-cols-container .ag-row a")
            rows.first.wait_for(timeout=180_000, state="attached")
            print(f"table: {time.monotonic() - begin:.1f} s until rows are shown")
        finally:
            browser.close()
