"""A real sweep that was interrupted is resumed and ends with the table of one that was not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from support.command import FAKE, Command, call_command, folder_of, running_command, wait_for
from support.processes import left_after

pytestmark = pytest.mark.usefixtures("no_process_is_left")

UNTRACKED = (*FAKE, "compare.baseline={batch_size: 1}")
INLINE = (*UNTRACKED, "isolation=inline")
"""Where no process is lost."""
FLAKY = """
import os
from sweeprof.backends.fake import FakeModel
def model(kind, step_s):
    return FakeModel(on_step=kind if os.path.exists("broken") else None)
"""
METRICS = "metrics.select=[compute/macs,quality/accuracy]"


@pytest.fixture
def measured_in_forks() -> None:
    """Nothing: processes that are left are found by their environment, which forks of others do not have."""


def table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "comparison.csv")


def records(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        str(path.relative_to(folder / "records")): json.loads(path.read_text())
        for path in folder.glob("records/*/*.json")
    }


def changed(folder: Path) -> dict[str, float]:
    return {str(path): path.stat().st_mtime for path in folder.glob("records/*/*.json")}


@pytest.mark.slow
def test_after_a_killed_driver_the_rest_is_measured_and_nothing_twice(called: Command, tmp_path: Path) -> None:
    (tmp_path / "quiet").mkdir()
    quiet = call_command(tmp_path / "quiet", *UNTRACKED, "batch_size=1,2,3")
    with running_command(tmp_path, *UNTRACKED, "batch_size=1,2,3") as process:
        wait_for(lambda: len(list(tmp_path.glob("outputs/*/*/records/*/*.json"))) >= 4, process)
    assert left_after(tmp_path, 10) == []
    folder = folder_of(tmp_path)
    (folder / "records" / ".x.json.1.tmp").write_text("half a fi")
    first = changed(folder)
    ran = called("resume=last")
    assert (quiet.code, ran.code) == (0, 0), ran.err
    assert f"resuming {folder}" in ran.err
    assert folder_of(tmp_path) == folder
    after = changed(folder)
    assert {path: after[path] for path in first} == first
    pd.testing.assert_frame_equal(table(folder), table(folder_of(tmp_path / "quiet")))
    assert list(folder.rglob("*.tmp")) == []


@pytest.mark.slow
def test_what_failed_is_tried_again_and_kept_beside(called: Command, tmp_path: Path) -> None:
    (tmp_path / "flaky.py").write_text(FLAKY)
    (tmp_path / "broken").touch()
    ran = called(
        *UNTRACKED, METRICS, "model.fake._target_=flaky.model", "model.fake.kind=raise,kill", "compare.baseline={}"
    )
    assert ran.code == 2
    folder = folder_of(tmp_path)
    assert sorted(table(folder)["status"]) == ["crashed", "failed"]
    (failed,) = [r for r in records(folder).values() if r["status"] == "failed"]
    log = folder / "logs" / failed["combination_id"] / "quality-r0.log"
    assert "ValueError: the fake model was told to raise" in failed["traceback"]
    assert failed["traceback"] in log.read_text()
    assert f"resume={folder}" in ran.out
    (tmp_path / "broken").unlink()

    dry = called("resume=last", "retry_statuses=[failed]", "dry_run=true")
    assert (dry.code, "3 trials are measured, 0 missing, 1 again (1 failed)" in dry.err) == (0, True), dry.err
    narrowed = called(f"resume={folder}", "retry_statuses=[failed]")
    assert narrowed.code == 2
    assert sorted(table(folder)["status"]) == ["crashed", "ok"]
    again = records(folder)[f"{failed['combination_id']}/quality-r0.json"]
    assert (again["status"], again["attempt"]) == ("ok", 1)
    aside = folder / "records" / failed["combination_id"] / "superseded" / "quality-r0-a0.json"
    assert json.loads(aside.read_text()) == failed

    rest = called("resume=last", "limits.timeout_s=77", "fail_fast=true")
    assert rest.code == 0
    assert sorted(table(folder)["status"]) == ["ok", "ok"]
    plan = json.loads((folder / "plan.json").read_text())
    assert (plan["limits"]["timeout_s"], plan["fail_fast"]) == (77, True)


@pytest.mark.slow
def test_a_changed_plan_is_explained(called: Command, tmp_path: Path) -> None:
    assert called(*INLINE, METRICS, "batch_size=1,2").code == 0
    folder = folder_of(tmp_path)
    first, old = changed(folder), json.loads((folder / "plan.json").read_text())
    more = called(*INLINE, METRICS, "batch_size=1,2,3", "resume=last")
    assert more.code == 0, more.err
    assert "1 combination is new, 0 are gone." in more.err
    assert "2 of 2 combinations with results belong to the new plan." in more.err
    assert list(table(folder)["status"]) == ["ok"] * 3
    assert {path: time for path, time in changed(folder).items() if path in first} == first
    assert json.loads((folder / "plan.json").read_text())["sweep_id"] == old["sweep_id"]
    combinations = json.loads((folder / "plan.json").read_text())["combinations"]
    assert not any("resume" in combination["command"] for combination in combinations)

    other = called(*INLINE, METRICS, "batch_size=1,2", "model.fake.step_s=0.5", "resume=last")
    assert other.code == 1
    assert "has no results that belong to this plan" in other.err
    assert list(table(folder)["status"]) == ["ok"] * 3


@pytest.mark.thorough
def test_a_resumed_search_says_how_many_combinations_it_may_still_choose(called: Command, tmp_path: Path) -> None:
    """Another seed may choose none of those that are measured."""
    search = ("batch_size=range(1,13)", "search.maximize=throughput", "search.sampler=RandomSampler")
    assert called(*UNTRACKED, "metrics=latency", "protocol.min_s=0", *search, "search.trials=3").code == 0
    for changes, count in ((["search.trials=5"], 2), (["search.seed=1", "search.trials=12"], 9)):
        dry = called("resume=last", *changes, "dry_run=true")
        assert f"3 trials are measured, 0 missing; the search may choose up to {count} more." in dry.err, dry.err
    assert called("resume=last", "dry_run=true").err.rstrip().endswith("3 trials are measured, 0 missing.")
