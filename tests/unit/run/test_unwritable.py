"""Folders of sweeps that cannot be written: each command says so in one sentence, without a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.plans import fake_plan, sweep_folder
from support.samples import comparison
from sweeprof.cli.run import run_command
from sweeprof.results.files import unwritable, write_json
from sweeprof.storage import sweeps

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")

NOBODY = 65534


@contextmanager
def _of_another_user(place: Path) -> Iterator[None]:
    """Be a user who may read the folder and not write it."""
    for path in (place, *place.parents):
        if path.stat().st_uid == 0 and path.stat().st_mode & 0o005 != 0o005:
            path.chmod(path.stat().st_mode | 0o055)
    list(sweeps(place))  # which imports a module late, and that user may not be able to read the interpreter
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of sweeps with one in it."""
    folder = sweep_folder(tmp_path / "outputs" / "name" / "2026-11-22_10-00-00Z", fake_plan({"a": {}}))
    write_json(folder.path / "comparison.json", comparison())
    write_json(tmp_path / "earlier.json", {**comparison().to_dict(), "sweep_id": "earlier"})
    return tmp_path / "outputs"


def _errors(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line]


def test_commands_say_that_the_folder_is_unwritable(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder,) = place.glob("*/*")
    with _of_another_user(place):
        for words in (
            ["report", str(folder)],
            ["sync", str(folder)],
            ["compare", str(folder), "--tag", "nightly", "--output", str(place)],
            ["compare", str(place.parent / "earlier.json"), str(folder), "--json", str(place / "new.json")],
        ):
            assert run_command(words) == 1
            (line,) = _errors(capsys)
            assert line.startswith("error: ")
            assert "Permission denied" in line


@pytest.mark.parametrize("words", [["resume={folder}"], ["resume=last", "output={place}"], ["output={place}/new"]])
def test_a_sweep_says_that_its_folder_cannot_be_written(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    (folder,) = place.glob("*/*")
    said = [word.format(folder=folder, place=place) for word in words]
    fake = ["model=fake", "backend=fake", "dataset=synthetic"] if "resume" not in words[0] else []
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command sets it for the rest of its process
    # It would silence the loggers of later tests.
    monkeypatch.setattr("hydra._internal.hydra.configure_log", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["sweeprof"])  # which Hydra reads, and run_command completes
    with _of_another_user(place), pytest.raises(SystemExit) as ended:
        sys.exit(run_command([*said, *(fake or ["trust=true"]), "tracking=none"]))
    lines = _errors(capsys)
    if fake:
        (line,) = lines
        assert "cannot be written: " in line
        assert ended.value.code == 1
    else:
        then = f"make it writable, then resume with: python -m sweeprof resume={folder}"
        assert " ".join(lines).endswith(f"the disk of {folder} may not be written by this user: {then}")
        assert ended.value.code == 2


def test_errors_of_other_places_are_not_taken_for_the_sweeps_disk(tmp_path: Path) -> None:
    elsewhere = PermissionError(13, "Permission denied", "/tmp/sweeprof-locks/host.lock")
    assert unwritable(elsewhere, tmp_path) is None
    assert unwritable(OSError(30, "Read-only file system"), tmp_path) == "is read-only"
    assert unwritable(OSError(28, "No space left on device", "/other"), tmp_path) == "is full"
    assert unwritable(ValueError(), tmp_path) is None
    replaced = NotADirectoryError(20, "Not a directory", str(tmp_path / "records"))
    assert unwritable(replaced, tmp_path) == "was removed"
