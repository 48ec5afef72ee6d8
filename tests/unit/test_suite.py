"""The suite itself: tests that crash their workers, and capabilities that a backend lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conformance import asking
from conformance.asking import _shared_folder
from conformance.cases import BACKENDS

__all__ = ["_shared_folder"]

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


# A capability that is missing is a skip that names the declared gap, or a failure.

REASON = "not implemented: nobody did"


def answered(monkeypatch: pytest.MonkeyPatch, capabilities: list[str], gaps: dict[str, Any], message: str) -> None:
    """Let a backend have those capabilities and gaps, and answer ``lines`` with an error."""
    facts = {"answer": {"capabilities": capabilities, "gaps": gaps}}
    lines = {"error": "Unsupported", "message": message, "trace": "…"}
    monkeypatch.setattr(asking, "answers", lambda backend: {"facts": facts, "lines": lines})


def test_a_declared_gap_is_a_skip_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, [], {"lines": ["not implemented", "nobody did"]}, REASON)
    with pytest.raises(pytest.skip.Exception, match=f"fake has no lines .lines.: {REASON}"):
        asking.needs("fake", "lines", "lines")


def test_a_gap_that_is_not_declared_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, [], {}, REASON)
    with pytest.raises(AssertionError, match="fake lacks lines and declares no gap"):
        asking.needs("fake", "lines", "lines")


def test_another_answer_than_the_declared_gap_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, [], {"lines": ["not implemented", "nobody did"]}, "something else")
    with pytest.raises(AssertionError, match=r"lines was answered: .*something else"):
        asking.needs("fake", "lines", "lines")


def test_a_refusal_that_the_case_does_not_declare_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, ["lines"], {}, REASON)
    asking.needs("torch", "lines", "lines")
    with pytest.raises(AssertionError):
        asking.pass_data("torch", "lines", "Lines")


def test_a_refusal_that_the_case_declares_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, ["lines"], {}, BACKENDS["tensorflow"].refuses["lines"])
    with pytest.raises(pytest.skip.Exception, match=r"backend\.mode=eager runs them"):
        asking.needs("tensorflow", "lines", "lines")
