"""A test that crashes its worker fails, and all other tests run: pytest ends, and says how the worker ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
CRASH = """
import os, signal

def test_before(): pass
def test_crash(): os.kill(os.getpid(), signal.SIGSEGV)
def test_after(): pass
"""
OTHER = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_other(number): pass
"""


def test_the_other_tests_run(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS}\n")
    (tmp_path / "test_crash.py").write_text(CRASH)
    for number in range(2):
        (tmp_path / f"test_other_{number}.py").write_text(OTHER)
    (tmp_path / "conftest.py").write_text("from support.distribution import *\n")
    command = [sys.executable, "-m", "pytest", "-n2", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "1 failed, 8 passed" in ran.stdout
    assert "crashed while running" in ran.stdout
    assert "ended with exit code -11" in ran.stderr
