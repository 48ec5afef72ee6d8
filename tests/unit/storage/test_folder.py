"""Sweeps in the order of their creation, whatever the clock of the wall says; their records and what was submitted of them."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from support.command import subcommand
from support.plans import fake_plan
from support.plans import sweep_folder as make_folder
from sweeprof.cli.common import sweep_folder
from sweeprof.errors import UserError
from sweeprof.plan.plan import Plan
from sweeprof.results.files import write_json
from sweeprof.results.record import Record
from sweeprof.run import driver
from sweeprof.run.reports import SweepLocations, located
from sweeprof.run.resume import find_sweep
from sweeprof.storage import Folder, Jobs, Note, ShardOutcome, Submission, sweeps

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
        assert sweep_folder(reference, tmp_path).path == path
        assert find_sweep(reference, tmp_path, None).path == path
    assert find_sweep("last", tmp_path, "nightly").path == second
    with pytest.raises(UserError, match="resume: 'nowhere' is not the folder of a sweep"):
        find_sweep("nowhere", tmp_path, None)
    for reference in ("last~3", "absent/last"):
        for find in (sweep_folder, lambda given, output: find_sweep(given, output, None)):
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


def written(folder: Folder, reason: str, round: int = 0) -> Path:
    return Record("s1", "ca", "timing", "failed", reason, round=round).write(folder.records)


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


def test_only_so_many_records_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path)
    size = max(written(folder, "failed", number).stat().st_size for number in range(3))
    monkeypatch.setattr("sweeprof.storage.KEPT_BYTES", 2 * size)
    first = folder.records_of("ca")
    again = folder.records_of("ca")
    assert again == first
    assert not any(a is b for a, b in zip(again, first, strict=True))  # each had been forgotten when it was read next
    assert folder.records_of("ca")[0] is not first[0]
    monkeypatch.setattr("sweeprof.storage.KEPT_BYTES", 3 * size)
    kept = folder.records_of("ca")
    assert all(a is b for a, b in zip(folder.records_of("ca"), kept, strict=True))


def test_submissions_are_found_among_the_notes_of_their_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(tmp_path)
    one = jobs.new("night", [0, 1], {})
    jobs.keep(one, "#!/bin/bash\n")
    for number in range(2):
        jobs.write_note(one.token, number, Note("1", "n1", 0))
    jobs.write_outcomes({1: ShardOutcome("x", "lost", "y")})
    read: list[str] = []
    original = Jobs.read

    def noted(self: Jobs, token: str) -> Submission | None:
        read.append(token)
        return original(self, token)

    monkeypatch.setattr(Jobs, "read", noted)
    assert jobs.all() == [one]
    assert read == [one.token]  # of thousands of notes none is read


def test_the_newest_is_the_last_whatever_the_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(tmp_path)
    one = jobs.new("night", [0], {})
    jobs.keep(one)
    monkeypatch.setattr(time, "time", lambda: one.submitted - 300)
    two = jobs.new("night", [0], {})
    jobs.keep(two)
    assert jobs.all() == [one, two]


def test_a_submission_that_was_cut_is_none(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    jobs.keep(jobs.new("night", [0], {}))
    (path,) = jobs.path.glob("*.json")
    path.write_text(path.read_text()[:20])
    assert jobs.all() == []


def test_a_copy_under_another_name_is_never_the_last(tmp_path: Path) -> None:
    first, second, other = "a/2026-01-01_00-00-00Z", "a/2026-01-01_00-00-00Z-2", "b/2026-01-02_00-00-00Z"
    for path in (first, second, other, "a/release"):
        make_folder(tmp_path / path, fake_plan({"a": {}}))
    named = SweepLocations(tmp_path, name="a")
    assert located("last", SweepLocations(tmp_path), "BASE") == tmp_path / other
    for reference, path in (("last", second), ("last~1", first), ("b/last", other)):
        assert located(reference, named, "BASE") == tmp_path / path
    with pytest.raises(UserError, match="there are 2 sweeps of the name a"):
        located("last~2", named, "BASE")
