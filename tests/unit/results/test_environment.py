"""The environment against what other programs say of this machine."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from sweeprof.results.environment import capture, load, oom_kills


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=T", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "-q")
    (tmp_path / "model.py").write_text("x = 1\n")
    git(tmp_path, "add", "model.py")
    git(tmp_path, "commit", "-q", "-m", "first", "--no-gpg-sign")
    return tmp_path


def test_it_is_plain_data() -> None:
    found = capture()
    assert json.loads(json.dumps(found)) == found


def test_host_and_system() -> None:
    found = capture()
    assert found["host"] == socket.gethostname()
    assert found["os"] == f"{platform.system()} {platform.release()}"
    assert found["python"] == platform.python_version()
    assert found["user"] == psutil.Process().username()


def test_processors_and_memory() -> None:
    found = capture()
    cpu = found["cpu"]
    assert cpu["logical"] == psutil.cpu_count()
    assert cpu["physical"] == psutil.cpu_count(logical=False)
    assert cpu["available"] == len(psutil.Process().cpu_affinity() or ())
    assert cpu["architecture"] == platform.machine()
    assert cpu["model"] in Path("/proc/cpuinfo").read_text() or cpu["model"] == platform.processor()
    assert cpu["quota"] is None or 0 < cpu["quota"] <= 4096
    assert found["memory_bytes"] == psutil.virtual_memory().total


def test_versions_are_those_installed() -> None:
    versions = capture()["versions"]
    for name in ("numpy", "hydra-core", "torch", "tensorflow", "keras"):
        assert versions[name] == metadata.version(name)
    assert None not in versions.values()


def test_load_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.2345, 0.5, 15.678))  # the real ones change between two readings
    assert load() == [1.23, 0.5, 15.68]
    assert capture()["load"] == load()


def test_out_of_memory_kills_are_those_of_the_kernel() -> None:
    lines = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    assert oom_kills() == int(lines.get("oom_kill", 0))


def test_a_clean_repository(repository: Path) -> None:
    assert capture()["git"] == {"revision": git(repository, "rev-parse", "HEAD"), "dirty": False}


def test_a_tag_does_not_hide_the_revision(repository: Path) -> None:
    git(repository, "tag", "-a", "v1", "-m", "v1")
    assert capture()["git"] == {"revision": git(repository, "rev-parse", "HEAD"), "dirty": False}


def test_a_changed_file_makes_it_dirty(repository: Path) -> None:
    (repository / "model.py").write_text("x = 2\n")
    assert capture()["git"] == {"revision": git(repository, "rev-parse", "HEAD"), "dirty": True}


def test_a_folder_within_the_repository(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "inner").mkdir()
    monkeypatch.chdir(repository / "inner")
    assert capture()["git"]["revision"] == git(repository, "rev-parse", "HEAD")


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert capture()["git"] is None


def test_no_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert capture()["git"] is None


def test_the_age_of_a_process() -> None:
    began = time.monotonic()
    program = "import time; from sweeprof.results.environment import process_age; time.sleep(0.5); print(process_age())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.5 <= float(done.stdout) <= time.monotonic() - began + 0.02  # a tick is a hundredth of a second
