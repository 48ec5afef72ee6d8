"""The folder of a sweep: its place among others, whatever the clock says, its events and records, and what of them is resumed."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from support.command import subcommand
from support.plans import fake_plan, sweep_folder
from sweeprof.cli import common
from sweeprof.config.schema import LimitSettings
from sweeprof.errors import UserError
from sweeprof.plan.plan import ComparisonSettings, OtherSweep, Plan, Trial
from sweeprof.results.files import write_json
from sweeprof.results.record import Record, Status
from sweeprof.run import driver, resume
from sweeprof.run.locks import driver_lock, work_lock
from sweeprof.run.reports import SweepLocations, located
from sweeprof.run.resume import (
    changes_measurement,
    count_trials,
    find_sweep,
    replace_plan,
    retry_statuses,
    store_plan,
    with_settings,
)
from sweeprof.storage import DRIVER, EventLog, Folder, Jobs, Note, begun, events_of, sweeps

prune = subcommand("prune")

BEFORE = datetime(2026, 10, 25, 0, 45, tzinfo=UTC)
"""02:45 in Berlin; an hour later daylight saving time has ended, and it is 02:45 again."""


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def planned(created: datetime) -> Plan:
    return dataclasses.replace(fake_plan({"a": {}}), name="nightly", created=created.isoformat(timespec="seconds"))


def new(output: Path, created: datetime) -> Path:
    """The folder of a sweep as this version makes it."""
    folder = driver._new_folder(output, planned(created))
    write_json(folder.plan, planned(created).to_dict())
    return folder.path


def test_the_folder_of_all_sweeps(tmp_path: Path) -> None:
    assert Folder(tmp_path / "nightly" / "stamp").output == tmp_path
    assert Folder(Path("/sweep")).output == Path("/")  # as it is mounted in a container


def test_the_newest_sweep_has_the_same_names_everywhere(tmp_path: Path) -> None:
    first, second = (new(tmp_path, BEFORE + timedelta(minutes=minute)) for minute in (0, 1))
    third = tmp_path / "other" / "2026-10-26_00-00-00Z"
    write_json(third / "plan.json", dataclasses.replace(planned(BEFORE + timedelta(days=1)), name="other").to_dict())
    for reference, path in (("last", third), ("last~1", second), ("nightly/last", second), ("nightly/last~1", first)):
        assert located(reference, SweepLocations(tmp_path), "BASE") == path
        assert common.sweep_folder(reference, tmp_path).path == path
        assert find_sweep(reference, tmp_path, None).path == path
    assert find_sweep("last", tmp_path, "nightly").path == second
    named = SweepLocations(tmp_path, name="nightly")
    assert located("last", named, "BASE") == second
    with pytest.raises(UserError, match="there are 2 sweeps of the name nightly"):
        located("last~2", named, "BASE")
    with pytest.raises(UserError, match="resume: 'nowhere' is not the folder of a sweep"):
        find_sweep("nowhere", tmp_path, None)
    for reference in ("last~3", "absent/last"):
        for find in (common.sweep_folder, lambda given, output: find_sweep(given, output, None)):
            with pytest.raises(UserError, match=r"does not exist: there are (3|no) sweeps"):
                find(reference, tmp_path)


@pytest.mark.usefixtures("berlin")
def test_last_and_prune_are_right_when_daylight_saving_time_ends(tmp_path: Path) -> None:
    first = new(tmp_path, BEFORE)
    second = new(tmp_path, BEFORE + timedelta(minutes=30))  # 02:15 by the clock, after 02:45
    assert located("last", SweepLocations(tmp_path), "BASE") == second
    assert located("last~1", SweepLocations(tmp_path), "BASE") == first
    assert prune(["nightly", "--keep", "1", "--output", str(tmp_path)]) == 0
    assert second.is_dir()
    assert not first.exists()


def test_a_folder_whose_name_is_no_time_is_not_among_the_sweeps(tmp_path: Path) -> None:
    for name in ("release", "2026-13-01_12-00-00Z", "9999-99-99_99-99-99Z", "2026-07-01_12-00-00"):
        (tmp_path / "nightly" / name).mkdir(parents=True)
        (tmp_path / "nightly" / name / "plan.json").touch()
    assert list(sweeps(tmp_path)) == []


def test_two_sweeps_of_one_second_have_different_folders(tmp_path: Path) -> None:
    made = [new(tmp_path, BEFORE) for _ in range(11)]
    stamp = "2026-10-25_00-45-00Z"
    assert [path.name for path in made[:3]] == [stamp, f"{stamp}-2", f"{stamp}-3"]
    assert [folder.path for folder in sweeps(tmp_path)] == made[::-1]
    assert Folder(made[0]).read_plan().created == "2026-10-25T00:45:00+00:00"


def written(folder: Folder, reason: str) -> Path:
    return Record("s1", "ca", "timing", "failed", reason).write(folder.records)


def test_a_record_is_read_again_when_its_file_has_changed(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    path = written(folder, "first")
    (record,) = folder.records_of("ca")
    assert folder.records_of("ca")[0] is record
    written(folder, "other")  # a text as long as the first
    (changed,) = folder.records_of("ca")
    assert changed.reason == "other"
    content, then = path.read_bytes(), path.stat()
    path.write_bytes(content.replace(b"other", b"third"))  # by a program that does not replace the file
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert [record.reason for record in folder.records_of("ca")] == ["third"]
    path.write_bytes(b"{")
    damaged: dict[str, str] = {}
    assert folder.records_of("ca", damaged=damaged) == []
    assert list(damaged) == ["timing-r0.json"]
    path.unlink()
    assert folder.records_of("ca") == []


def test_the_newest_submission_is_the_last_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(tmp_path)
    one = jobs.new("night", [0, 1], {})
    jobs.keep(one)
    jobs.write_note(one.token, 0, Note("1", "n1", 0))
    monkeypatch.setattr(time, "time", lambda: one.submitted - 300)
    two = jobs.new("night", [0], {})
    jobs.keep(two)
    jobs.keep(jobs.new("night", [0], {}))
    newest = max(jobs.path.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_text(newest.read_text()[:20])  # it was cut
    assert jobs.all() == [one, two]


# Events, and what is resumed


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
    for wrong in (["tmeout"], "tmeout"):
        with pytest.raises(UserError, match=r"retry_statuses: 'tmeout' is not a status.*'timeout'"):
            retry_statuses(wrong)
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


def test_two_threads_may_tell_a_sweep_to_stop(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Folder(tmp_path).stop_because, ["why"] * 200))
    assert Folder(tmp_path).stopped() == "why"


def test_which_keys_decide() -> None:
    settings = ["retry_statuses", "limits.timeout_s", "hydra/launcher", "hydra.launcher.n_jobs", "tracking.uri"]
    assert not changes_measurement(["resume", *settings])
    assert changes_measurement(["resume", "batch_size"])
    assert changes_measurement(["resume", "sweep@_global_"])


def test_limits_that_the_command_line_does_not_name_are_kept() -> None:
    plan = replace(fake_plan({"a": {}}), limits=LimitSettings(timeout_s=9, memory="2GiB"))
    new = with_settings(plan, {"limits.memory": "1GiB", "fail_fast": True}, None)
    assert new == replace(plan, limits=LimitSettings(timeout_s=9, memory="1GiB"), fail_fast=True)


def test_a_plan_none_of_whose_combinations_was_measured_is_refused(tmp_path: Path) -> None:
    old, new = fake_plan({"a": {}, "b": {}}), fake_plan({"b": {}, "c": {}})
    folder = sweep_folder(tmp_path, old)
    Record("s1", "ca", "analysis", "ok").write(folder.records)
    with pytest.raises(UserError, match="has no results that belong to this plan"):
        replace_plan(folder, old, new)
    Record("s1", "cb", "analysis", "ok").write(folder.records)
    assert replace_plan(folder, old, new)[1] == [
        "1 combination is new, 1 is gone.",
        "1 of 2 combinations with results belong to the new plan.",
    ]


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
