"""What is resumed, and how a new plan differs from the old one."""

from __future__ import annotations

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from support.plans import fake_plan, sweep_folder
from sweeprof.config.schema import LimitSettings
from sweeprof.errors import UserError
from sweeprof.plan.plan import ComparisonSettings, OtherSweep, Trial
from sweeprof.results.files import write_json
from sweeprof.results.record import Record, Status
from sweeprof.run import resume
from sweeprof.run.locks import driver_lock, has_driver, report_lock, work_lock
from sweeprof.run.resume import (
    changes_measurement,
    count_trials,
    replace_plan,
    retry_statuses,
    store_plan,
    with_settings,
)
from sweeprof.storage import DRIVER, EventLog, Folder, begun, events_of, sweeps

ONE = Trial("ca", "timing", 1)


def test_a_folder_that_was_removed_meanwhile_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="was just removed by another process"), driver_lock(tmp_path / "gone"):
        pass


def test_who_works_has_a_file_that_nfs_lets_it_share(tmp_path: Path) -> None:
    """NFS makes shared locks of files that are open for reading alone."""
    work = work_lock(tmp_path)
    assert work is not None
    with work:
        assert work.readable()


def test_a_cut_event_is_passed_over_and_the_next_begins_a_line(tmp_path: Path) -> None:
    path = tmp_path / "shard-0.jsonl"
    with EventLog(path) as log:
        log.write("begin", ONE)
        log.write("end", ONE, status="ok")
    path.write_bytes(path.read_bytes()[:-9])
    with EventLog(path) as log:
        log.write("begin", replace(ONE, round=2))
    assert [(e.kind, e.round) for e in events_of(tmp_path)] == [("begin", 1), ("begin", 2)]
    assert begun(tmp_path) == {("ca", "timing", 1), ("ca", "timing", 2)}


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
def test_the_times_of_events_follow_no_set_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    real = time.time
    with EventLog(tmp_path / "shard-0.jsonl") as log:
        log.write("begin", ONE)
        monkeypatch.setattr(time, "time", lambda: real() + step_s)
        log.write("end", ONE, status="ok")
    began, ended = (event.time for event in events_of(tmp_path))
    assert 0 <= ended - began < 60


def test_what_waits_for_its_turn_has_not_begun(tmp_path: Path) -> None:
    with EventLog(tmp_path / "shard-0.jsonl") as log:
        log.write("begin", ONE)
        log.write("waiting", ONE, waits_for=None)
        assert begun(tmp_path) == set()
        log.write("running", ONE)
    assert begun(tmp_path) == {("ca", "timing", 1)}


def test_an_interleaved_round_is_run_again_as_a_whole(tmp_path: Path) -> None:
    plan = fake_plan({"a": {}, "b": {}}, ["timing"], rounds=2)
    for combination in plan.combinations:
        combination.config["protocol"]["interleave"] = "samples"
    folder = sweep_folder(tmp_path, plan)
    for id, round, status in (("ca", 0, "ok"), ("cb", 0, "failed"), ("ca", 1, "ok"), ("cb", 1, "ok")):
        Record("s1", id, "timing", status, round=round).write(folder.records)  # type: ignore[arg-type]
    said = "2 trials are measured, 0 missing, 2 again"
    assert str(count_trials(folder, plan, retry_statuses([]), move=True)).startswith(said)
    assert [folder.is_done(Trial(id, "timing", 0)) for id in ("ca", "cb")] == [False, False]
    assert str(count_trials(folder, plan, retry_statuses([]), move=True)) == "2 trials are measured, 2 missing"


def test_what_is_run_again(tmp_path: Path) -> None:
    plan = fake_plan({name: {} for name in "abcd"}, ["quality"])
    folder = sweep_folder(tmp_path, plan)
    endings: dict[str, Status] = {"ca": "ok", "cb": "oom", "cc": "timeout"}
    for id, status in endings.items():
        Record("s1", id, "quality", status).write(folder.records)
    found = count_trials(folder, plan, retry_statuses([]), move=False)
    assert str(found) == "1 trials are measured, 1 missing, 2 again (1 timeout, 1 oom)"
    found = count_trials(folder, plan, retry_statuses(["oom"]), move=True)
    assert str(found) == "2 trials are measured, 1 missing, 1 again (1 oom)"
    assert [folder.is_done(Trial(id, "quality")) for id in ("ca", "cb", "cc")] == [True, False, True]
    assert folder.attempts(Trial("cb", "quality")) == 1
    with pytest.raises(UserError, match=r"retry_statuses: 'tmeout' is not a status.*'timeout'"):
        retry_statuses(["tmeout"])
    with pytest.raises(UserError, match=r"retry_statuses: 'tmeout' is not a status.*'timeout'"):
        retry_statuses("tmeout")
    assert retry_statuses("timeout") == {"timeout"}


def test_a_plan_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_plan({"a": {}}), fake_plan({"a": {}, "b": {}})
    folder = sweep_folder(tmp_path, old)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(resume, "write_json", full)
        with pytest.raises(OSError, match="no space left"):
            store_plan(folder, old, new)
    assert folder.read_plan() == old
    store_plan(folder, old, new)
    assert folder.read_plan() == new


def test_a_record_of_a_later_version_is_set_aside_and_measured_again(tmp_path: Path) -> None:
    plan = fake_plan({"a": {}}, ["quality"])
    folder = sweep_folder(tmp_path, plan)
    path = folder.record_path(plan.trials()[0])
    write_json(path, {**Record("s1", "ca", "quality", "failed").to_dict(), "schema_version": 99})
    before = path.read_bytes()
    found = count_trials(folder, plan, retry_statuses([]), move=True)
    assert str(found) == "0 trials are measured, 0 missing, 1 again (1 damaged)"
    assert not path.exists()
    assert (tmp_path / "damaged" / "records" / "ca" / "quality-r0-0.json").read_bytes() == before


def test_two_threads_may_tell_a_sweep_to_stop(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Folder(tmp_path).stop_because, ["why"] * 200))
    assert Folder(tmp_path).stopped() == "why"


def test_which_keys_decide() -> None:
    settings = ["retry_statuses", "limits.timeout_s", "hydra/launcher", "hydra.launcher.n_jobs", "tracking.uri"]
    assert not changes_measurement(["resume", *settings])
    assert changes_measurement(["resume", "batch_size"])
    assert changes_measurement(["resume", "sweep@_global_"])


def test_settings_of_the_command_line_count() -> None:
    plan = fake_plan({"a": {}, "b": {}, "c": {}})
    new = with_settings(plan, {"limits.memory": "1GiB", "fail_fast": True, "retry_statuses": ["oom"]}, None)
    assert new == replace(plan, limits=LimitSettings(timeout_s=None, memory="1GiB"), fail_fast=True)


def test_a_plan_of_other_combinations(tmp_path: Path) -> None:
    old, new = fake_plan({"a": {}, "b": {}}), fake_plan({"b": {}, "c": {}})
    folder = sweep_folder(tmp_path, old)
    Record("s1", "ca", "analysis", "ok").write(folder.records)
    assert replace_plan(folder, old, old) == (old, [])
    with pytest.raises(UserError, match="has no results that belong to this plan"):
        replace_plan(folder, old, new)
    Record("s1", "cb", "analysis", "ok").write(folder.records)
    assert replace_plan(folder, old, new)[1] == [
        "1 combination is new, 1 is gone.",
        "1 of 2 combinations with results belong to the new plan.",
    ]


def test_the_newest_sweep(tmp_path: Path) -> None:
    second = "2026-01-02_03-04-05Z"
    stamps = (second, f"{second}-10", f"{second}-9", "2025-12-31_23-59-59Z", "mine")
    for stamp in stamps:
        sweep_folder(tmp_path / "a" / stamp, fake_plan({"a": {}}))
    sweep_folder(tmp_path / "b" / "2027-01-01_00-00-00Z", fake_plan({"a": {}}))
    assert next(sweeps(tmp_path)).path.parent.name == "b"
    assert [folder.path.name for folder in sweeps(tmp_path, "a")] == [stamps[1], stamps[2], stamps[0], stamps[3]]


def test_a_folder_has_one_driver(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert not has_driver(folder.path)
    with driver_lock(folder.path):
        assert has_driver(folder.path)
        with pytest.raises(UserError, match="is in use by process"), driver_lock(folder.path):
            pass
    assert not has_driver(folder.path)


def test_last_stays_the_sweep_that_it_was_when_a_sweep_began(tmp_path: Path) -> None:
    plan = fake_plan({"a": {}})
    folder = sweep_folder(tmp_path / "new", plan)
    before, itself = (OtherSweep("last", str(tmp_path / name)) for name in ("old", "new"))
    old, new = (replace(plan, compare=ComparisonSettings(against=one)) for one in (before, itself))
    assert replace_plan(folder, old, new)[0].compare.against == before
    with pytest.raises(UserError, match=r"compare\.baseline: 'last' is the sweep that is resumed"):
        replace_plan(folder, plan, new)


def test_what_a_dead_driver_started_does_no_work_under_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with driver_lock(tmp_path):
        mine = os.environ[DRIVER]
    with driver_lock(tmp_path):
        work = work_lock(tmp_path)
        assert work is not None
        work.close()
        with monkeypatch.context() as started_before:
            started_before.setenv(DRIVER, mine)
            assert work_lock(tmp_path) is None
    assert DRIVER not in os.environ


def test_reports_are_made_one_after_the_other(tmp_path: Path) -> None:
    """Else a report of a sweep that runs could end after the sweep's own, and hide its last rows."""
    done: list[str] = []

    def second() -> None:
        with report_lock(tmp_path):
            done.append("second")

    with ThreadPoolExecutor(1) as pool:
        with report_lock(tmp_path):
            waiting = pool.submit(second)
            with pytest.raises(TimeoutError):
                waiting.result(0.1)
            done.append("first")
        waiting.result(20)
    assert done == ["first", "second"]
