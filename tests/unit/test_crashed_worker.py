"""Tests that crash their workers fail, and all other tests run: pytest ends, and says how the workers ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CRASH = """
import os, signal, time
from pathlib import Path

def test_before(): pass
def test_crash():
    here = Path(__file__)
    here.with_suffix(".begun").touch()
    while len(list(here.parent.glob("*.begun"))) < {together}:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGSEGV)
def test_after(): pass
"""
CONFTEST = """
import os, time
from support.distribution import *

def pytest_collection():
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw3":  # the second of two workers that replace others
        time.sleep(1)
"""
OTHER = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_other(number): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 2])
def test_the_other_tests_run(tmp_path: Path, together: int) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS}\n")
    for number in range(together):
        (tmp_path / f"test_crash_{number}.py").write_text(CRASH.replace("{together}", str(together)))
    for number in range(2):
        (tmp_path / f"test_other_{number}.py").write_text(OTHER)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    command = [sys.executable, "-m", "pytest", "-n2", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"{together} failed, {6 + 2 * together} passed" in ran.stdout
    for number in range(together):
        assert f"crashed while running 'test_crash_{number}.py::test_crash'" in ran.stdout
    assert ran.stderr.count("ended with exit code -11") == together
