"""A disk that is full, for real: one line that says what to do, no half file, and the sweep can be resumed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from support.command import Command

pytestmark = pytest.mark.slow

FAKE = ("model=fake", "backend=fake", "dataset=synthetic", "tracking=none", "compare.baseline={batch_size: 1}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A disk of its own below the working directory, mounted with the size that is asked for, and changed by asking again."""
    place = tmp_path / "outputs"
    place.mkdir()
    options = ["-t", "tmpfs", "tmpfs", str(place), "-o"]

    def sized(size: str) -> Path:
        remount = "remount," if place.is_mount() else ""
        done = subprocess.run(["mount", *options, f"{remount}size={size}"], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
        return place

    yield sized
    if place.is_mount():
        subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> None:
    """Leave no room at all."""
    with suppress(OSError), (place / "filler").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk")
@pytest.mark.parametrize("isolation", ["fork", pytest.param("inline", marks=pytest.mark.thorough)])
def test_a_full_disk_ends_the_sweep_in_one_line_and_nothing_is_lost(
    sweeprof: Command, disk: Callable[[str], Path], isolation: str
) -> None:
    place = disk("256k")
    ran = sweeprof(*FAKE, "batch_size=1,2,3,4,5,6,7,8", f"isolation={isolation}")
    assert ran.code == 2, ran.out
    (folder,) = (place / "adhoc").iterdir()
    full = [line for line in ran.err.splitlines() if "is full" in line]
    assert full == [f"the disk of {folder} is full: make room, then resume with: python -m sweeprof resume={folder}"]
    assert "Traceback" not in ran.out + ran.err
    kept = sorted(folder.glob("records/*/*.json"))
    assert 0 < len(kept) < 32
    assert {json.loads(path.read_text())["status"] for path in kept} == {"ok"}
    assert list(folder.rglob("*.tmp")) == []
    before = {path: path.stat().st_mtime for path in kept}

    fill(place)
    still = sweeprof(f"resume={folder}")
    assert (still.code, "Traceback" in still.err) == (2, False), still.err
    assert "is full: make room, then resume with" in still.err

    disk("64m")
    on = sweeprof(f"resume={folder}")
    assert on.code == 0, on.err
    assert {path: path.stat().st_mtime for path in kept} == before
    assert list(pd.read_csv(folder / "comparison.csv")["status"]) == ["ok"] * 8


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk")
def test_a_disk_that_is_full_from_the_start(sweeprof: Command, disk: Callable[[str], Path]) -> None:
    (disk("16k") / "filler").write_bytes(b"x" * (12 << 10))
    ran = sweeprof(*FAKE)
    assert ran.code in (1, 2)
    assert "Traceback" not in ran.out + ran.err
    assert "full" in ran.err or "No space left" in ran.err
