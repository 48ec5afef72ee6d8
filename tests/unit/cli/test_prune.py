"""``sweeprof prune``: what goes, what stays and why, and that a crash amid it leaves nothing that looks like a sweep."""

from __future__ import annotations

import fcntl
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.command import subcommand
from sweeprof.results.files import write_json
from sweeprof.run.reports import SweepLocations, located, set_tag
from sweeprof.run.tracker_process import keep_config, note_sent
from sweeprof.storage import Folder, Jobs, Note, sweeps

main = subcommand("prune")

LAB = {"_target_": "noting.Noting", "uri": "http://lab:5000"}


Capture = pytest.CaptureFixture[str]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Five nights, of which the newest are the last; 1,000 bytes each beside the plan."""
    output = tmp_path / "outputs"
    for day in range(1, 6):
        night(output, f"2026-11-0{day}_02-00-00Z")
    return output


def night(output: Path, stamp: str, name: str = "nightly") -> Path:
    path = output / name / stamp
    (path / "records").mkdir(parents=True)
    (path / "records" / "a.json").write_text("x" * 1000)
    (path / "plan.json").write_text(json.dumps({"sweep_id": f"s{stamp}"}))
    return path


def prune(output: Path, keep: int = 1, *words: str) -> int:
    return main(["nightly", "--output", str(output), "--keep", str(keep), *words])


def days(output: Path) -> list[int]:
    """The days whose sweeps are there, hidden folders too."""
    return sorted(int(path.name.partition("_")[0][-2:]) for path in (output / "nightly").iterdir())


def day(output: Path, number: int) -> Path:
    return output / "nightly" / f"2026-11-0{number}_02-00-00Z"


def test_the_newest_stay_and_what_went_is_told(output: Path, capsys: Capture) -> None:
    other = night(output, "2020-01-01_00-00-00Z", "other")
    assert prune(output, 2) == 0
    assert days(output) == [4, 5]
    assert other.is_dir()
    out = capsys.readouterr().out
    assert f"kept     {day(output, 4)}  one of the newest 2\n" in out
    assert f"removed  {day(output, 1)}  1.01 KiB\n" in out
    assert out.splitlines()[-1] == "3 removed, 3.04 KiB freed; 2 kept"
    assert prune(output, 2) == 0
    assert "0 removed, 0 B freed; 2 kept" in capsys.readouterr().out


def test_a_dry_run_removes_nothing_and_tells_the_same(output: Path, capsys: Capture) -> None:
    before = sorted(output.rglob("*"))
    assert prune(output, 4, "--dry-run") == 0
    assert sorted(output.rglob("*")) == before
    out = capsys.readouterr().out
    assert f"would go {day(output, 1)}  1.01 KiB\n" in out
    assert "1 would be removed, 1.01 KiB to be freed; 4 kept" in out


def test_a_tagged_sweep_stays_however_its_folder_is_reached(output: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "link").symlink_to(output)
    set_tag("v1", day(output, 1), f"s{day(output, 1).name}", SweepLocations(output))
    set_tag("good", tmp_path / "link" / "nightly" / day(output, 2).name, "s2", SweepLocations(output))
    assert main(["nightly", "--output", str(tmp_path / "link"), "--keep", "1"]) == 0
    assert days(output) == [1, 2, 5]
    out = capsys.readouterr().out
    assert f"{day(output, 1).name}  tag:v1\n" in out
    assert f"{day(output, 2).name}  tag:good\n" in out
    assert located("tag:v1", SweepLocations(output), "BASE") == output / "nightly" / day(output, 1).name


def test_a_tag_is_known_by_the_sweeps_id_where_outputs_were_moved(output: Path) -> None:
    write_json(output / ".tags" / "v1", {"folder": "../gone/nightly/x", "sweep_id": f"s{day(output, 2).name}"})
    assert prune(output) == 0
    assert days(output) == [2, 5]


def test_a_sweep_that_is_tagged_amid_it_stays(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.rmtree

    def slow(path: Path, **options: Any) -> None:
        real(path, **options)
        set_tag("v1", day(output, 2), "s2", SweepLocations(output))

    monkeypatch.setattr(shutil, "rmtree", slow)
    assert prune(output) == 0
    assert days(output) == [2, 5]


@pytest.mark.parametrize("content", ["", "[]", '{"folder": "nightly/x"}', '{"folder": 3, "sweep_id": "s"}'])
def test_a_tag_that_cannot_be_read_stops_everything(output: Path, content: str, capsys: Capture) -> None:
    (output / ".tags").mkdir()
    (output / ".tags" / "v1").write_text(content)
    assert prune(output) == 1
    assert days(output) == [1, 2, 3, 4, 5]
    assert "error: tag:v1: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "kind", "activity"),
    [
        ("driver", fcntl.LOCK_EX, "being measured"),
        ("work", fcntl.LOCK_SH, "processes of its last run are still ending"),
        ("sending", fcntl.LOCK_EX, "being sent to its tracker"),
        ("report", fcntl.LOCK_EX, "its reports are being written"),
    ],
)
def test_a_sweep_that_somebody_works_on_stays(
    output: Path, name: str, kind: int, activity: str, capsys: Capture
) -> None:
    with (day(output, 1) / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, kind)
        assert prune(output, 4) == 0
        assert f"kept     {day(output, 1)}  {activity}\n" in capsys.readouterr().out
        assert days(output) == [1, 2, 3, 4, 5]
    assert prune(output, 4) == 0
    assert days(output) == [2, 3, 4, 5]


def test_an_unsent_sweep_stays_until_it_is_sent(output: Path, capsys: Capture) -> None:
    unsent, sent = Folder(day(output, 1)), Folder(day(output, 2))
    keep_config(unsent, LAB)
    keep_config(sent, LAB)
    note_sent(sent, None)
    assert prune(output) == 0
    assert days(output) == [1, 5]
    assert f"not sent to its tracker: sweeprof sync {unsent.path}\n" in capsys.readouterr().out
    note_sent(unsent, None)
    assert prune(output) == 0
    assert days(output) == [5]


def test_a_sweep_whose_jobs_may_run_stays(output: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Slurm does not answer, as here, that is whatever has not told its end."""
    jobs = Jobs(day(output, 1))
    submission = jobs.new("night", [0], {})
    jobs.keep(submission)
    monkeypatch.setenv("PATH", "/nowhere")
    assert prune(output) == 0
    assert days(output) == [1, 5]
    assert "jobs of it may still run" in capsys.readouterr().out
    jobs.write_note(submission.token, 0, Note("1_0", "n1", 0, 2.0))
    assert prune(output) == 0
    assert days(output) == [5]


def test_a_link_to_a_sweep_elsewhere_stays(output: Path, tmp_path: Path) -> None:
    day(output, 1).rename(tmp_path / "archived")
    day(output, 1).symlink_to(tmp_path / "archived")
    assert prune(output) == 0
    assert days(output) == [1, 5]
    assert (tmp_path / "archived" / "plan.json").is_file()


def test_what_is_no_sweep_stays(output: Path) -> None:
    (output / "nightly" / "notes").mkdir()
    (output / "nightly" / "2020-01-01_00-00-00Z").mkdir()  # no plan: being made, or somebody's
    assert prune(output, 5) == 0
    assert len(list((output / "nightly").iterdir())) == 7


def test_a_crash_leaves_no_half_of_a_sweep(output: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def first_file_only(path: Path) -> None:
        (path / "records" / "a.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(shutil, "rmtree", first_file_only)
        assert prune(output, 4) == 130
    assert [folder.path.name for folder in sweeps(output)] == [day(output, n).name for n in (5, 4, 3, 2)]
    (left,) = (output / "nightly").glob(".*")
    capsys.readouterr()
    assert prune(output, 4, "--dry-run") == 0
    assert left.is_dir()
    assert prune(output, 4) == 0
    assert not left.exists()
    assert f"removed  {left}  37 B  begun by an earlier run\n" in capsys.readouterr().out


def test_what_cannot_be_removed_keeps_no_other(output: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    real = shutil.rmtree

    def refusing(path: Path, **options: Any) -> None:
        if "2026-11-02" in path.name:
            raise PermissionError(13, "Permission denied", str(path / "records"))
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", refusing)
    assert prune(output, 3) == 2
    assert [folder.path.name[8:10] for folder in sweeps(output)] == ["05", "04", "03"]
    told = capsys.readouterr()
    assert f"error: {day(output, 2)} could not be removed: [Errno 13] Permission denied" in told.err
    assert told.out.splitlines()[-1].startswith("1 removed")
    monkeypatch.undo()
    assert prune(output, 3) == 0
    assert days(output) == [3, 4, 5]


def test_nothing_in_a_folder_is_open_while_it_is_removed(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS would keep such a file, under another name, and with it the folder."""
    (day(output, 1) / "driver.lock").touch()
    opened: list[str] = []

    def looking(path: Path) -> None:
        for file in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                opened.append(str(file.readlink()))
        path.rename(output / "elsewhere")

    monkeypatch.setattr(shutil, "rmtree", looking)
    assert prune(output, 4) == 0
    assert days(output) == [2, 3, 4, 5]
    assert [name for name in opened if name.startswith(str(output))] == []


def test_two_at_once_are_no_trouble(output: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    real = shutil.rmtree

    def beaten(path: Path, **options: Any) -> None:
        monkeypatch.undo()
        assert prune(output) == 0  # the other, amid our first
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", beaten)
    assert prune(output, 3) == 0
    assert days(output) == [5]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nightly", "--keep", "0"], "--keep: '0' must be an integer ≥ 1"),
        (["nightly", "--keep", "2.5"], "--keep: '2.5' must be an integer ≥ 1"),
        (
            ["nihgtly", "--keep", "1"],
            "NAME: 'nihgtly' is not a name of sweeps. Did you mean 'nightly'? Known: nightly.",
        ),
        (["../outputs/nightly", "--keep", "1"], "is not a name of sweeps"),
        (["nightly", "--keep", "1", "--output", "absent"], "--output: 'absent' has no sweeps."),
    ],
)
def test_mistakes_remove_nothing(output: Path, words: list[str], said: str, capsys: Capture) -> None:
    assert main(["--output", str(output), *words]) == 1
    assert said in capsys.readouterr().err
    assert days(output) == [1, 2, 3, 4, 5]
