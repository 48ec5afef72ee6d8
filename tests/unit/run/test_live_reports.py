"""The reports of a sweep that runs, or that was killed while it ran: what has been measured so far, and what is missing."""

from __future__ import annotations

import dataclasses
import errno
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from support.plans import fake_plan, read_records, sweep_folder
from sweeprof.cli.run import run_command
from sweeprof.plan.plan import Plan
from sweeprof.report.answer import answer
from sweeprof.report.changes import comparison_markdown
from sweeprof.results.compared_rows import Comparison
from sweeprof.run import reports
from sweeprof.run.comparison import comparison_of
from sweeprof.run.locks import driver_lock
from sweeprof.run.reports import ClusterReports, sent_to
from sweeprof.run.shard import run_shard
from sweeprof.storage import Folder, events_of


def plan_of(isolation: str = "inline", models: str = "ab", rounds: int = 2) -> Plan:
    return fake_plan({name: {} for name in models}, isolation=isolation, rounds=rounds)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are written after every trial, however long that takes."""
    monkeypatch.setattr(reports, "SHARE", 1e9)
    monkeypatch.setattr(reports, "EVERY_S", 0.0)
    monkeypatch.setattr(reports, "WAKE_S", 0.01)


@pytest.fixture
def on_cluster(tmp_path: Path, always: None) -> Folder:
    """A sweep that a cluster has measured, whose driver is still to write reports."""
    plan = dataclasses.replace(plan_of(), cluster={"settings": {}, "resources": []})
    folder = sweep_folder(tmp_path / "sweep", plan)
    run_shard(folder, 0)
    return folder


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.usefixtures("always")
def test_a_sweep_that_runs_shows_what_is_measured_and_what_is_missing(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of())
    seen: list[Comparison] = []
    with sent_to(seen.append):
        run_shard(folder, 0)
    first = seen[1]  # after the first round
    assert first.running is not None
    assert (first.running.done, first.running.planned) == (2, 6)
    assert [row.rounds_complete for row in first.rows] == [1] * 2
    assert all(row.cells["latency/forward"].measurement.value is not None for row in first.rows)
    assert answer(first).counts == "running: 2 of 6 trials have ended; 0 of 2 combinations measured; 2 incomplete."
    assert "resume=" not in comparison_markdown(first)
    done = [comparison.running.done for comparison in seen if comparison.running is not None]
    assert done == sorted(set(done))
    assert len(done) == len(seen) == 6  # after each trial
    shown = Comparison.read(folder.path)
    assert shown.running == seen[-1].running
    assert (folder.path / "report.html").read_text().count("running: 6 of 6 trials have ended") > 0
    assert not (folder.path / "tables").exists()
    assert comparison_of(folder).running is None


def test_writing_takes_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of())
    began = time.monotonic()
    run_shard(folder, 0)
    assert time.monotonic() - began < 10
    assert not (folder.path / "report.html").exists()
    monkeypatch.setattr(reports, "EVERY_S", 0.0)
    seen: list[Comparison] = []
    with sent_to(seen.append):
        run_shard(sweep_folder(tmp_path / "other", plan_of()), 0)
    assert len(seen) == 1  # which took far more than a fiftieth of the time


@pytest.mark.usefixtures("always")
def test_what_cannot_be_written_does_not_end_the_sweep(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of())

    def fails(_: Comparison) -> None:
        raise ValueError("the tracker is away")

    with sent_to(fails):
        run_shard(folder, 0)
    assert "ValueError: the tracker is away" in caplog.text
    assert len(read_records(folder.records)) == 6


def test_on_a_cluster_the_driver_writes_them_while_it_waits(on_cluster: Folder) -> None:
    page = on_cluster.path / "report.html"
    assert not page.exists()
    with ClusterReports(on_cluster):
        wait_for(page.exists)
    assert "running: 6 of 6 trials have ended" in page.read_text()


def test_a_full_disk_does_not_end_the_driver_of_a_cluster(
    on_cluster: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(reports, "write_reports", fails)
    with ClusterReports(on_cluster):
        wait_for(lambda: "No space left on device" in caplog.text)
    assert "the reports of the running sweep were not written: [Errno 28] No space left on device" in caplog.text


@pytest.mark.parametrize("seed", [0, 1])
def test_the_report_of_a_killed_sweep_has_all_rows(
    tmp_path: Path, seed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of("fork", "abcd", 3))
    ended = random.Random(seed).randint(2, 14)
    running = multiprocessing.get_context("fork").Process(target=run_shard, args=(folder, 0))
    running.start()
    try:
        wait_for(lambda: sum(event.kind == "end" for event in events_of(folder.events)) >= ended)
    finally:
        running.kill()
        running.join()
    assert run_command(["report", str(folder.path)]) == 0
    comparison = Comparison.read(folder.path)
    timed = Counter(r.combination_id for r in read_records(folder.records) if r.pass_name == "timing")
    assert {row.combination_id: row.rounds_complete for row in comparison.rows if row.has_values} == timed
    assert len(timed) >= min(ended, 4)
    assert comparison.running is None
    assert "of 4 combinations measured" in capfd.readouterr().out


def test_the_report_of_a_running_sweep_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of())
    run_shard(folder, 0)
    with driver_lock(folder.path):
        assert run_command(["report", str(folder.path)]) == 0
    assert "running: 6 of 6 trials have ended" in " ".join(capfd.readouterr().out.split())
