"""Two processes exclude each other, for real."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import Timeout

from sweeprof.sweep import lock
from sweeprof.sweep.lock import measuring_lock

HOLD = """
import sys, pathlib
from sweeprof.sweep import lock
lock.FOLDER = pathlib.Path(sys.argv[1])
with lock.measuring_lock(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another sweep on this host must neither wait for the tests nor hold them up."""
    monkeypatch.setattr(lock, "FOLDER", tmp_path / "locks")


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "locks"), "cpu"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with process:
        yield process
        process.kill()


def is_free(device: str) -> bool:
    try:
        with measuring_lock(device).acquire(timeout=0):
            return True
    except Timeout:
        return False


def test_one_measures_at_a_time(holder: subprocess.Popen[str]) -> None:
    assert not is_free("cpu")
    assert holder.stdin is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.wait(30) == 0
    assert is_free("cpu")


def test_other_devices_are_free(holder: subprocess.Popen[str]) -> None:
    assert is_free("cuda:0")


def test_a_killed_holder_frees_it(holder: subprocess.Popen[str]) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait(30)
    assert is_free("cpu")


def test_waiting_ends_when_the_holder_does(holder: subprocess.Popen[str]) -> None:
    assert holder.stdin is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    with measuring_lock("cpu").acquire(timeout=30):
        assert holder.wait(30) == 0


def test_everyone_may_use_the_folder_and_the_lock(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        with measuring_lock("cuda:1"):
            pass
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    file = tmp_path / "locks" / "cuda-1.lock"
    if file.exists():  # filelock may remove it
        assert stat.S_IMODE(file.stat().st_mode) == 0o666


def test_the_folder_is_the_hosts() -> None:
    import tempfile

    program = "from sweeprof.sweep import lock; print(lock.FOLDER)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == Path(tempfile.gettempdir()) / "sweeprof-locks"
