"""The project's files agree with each other, its folders are found in a checkout and in a wheel, and its suite hides no failure."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from conformance import asking
from conformance.cases import BACKENDS

import sweeprof
from sweeprof import paths

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)


def workflow(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    return content


def test_the_workflows_run_every_python_that_the_package_names() -> None:
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    for jobs, name in ((workflow("ci")["jobs"], "tests"), (workflow("nightly")["jobs"], "versions")):
        assert jobs[name]["strategy"]["matrix"]["python"] == PYTHONS


def test_the_workflows_run_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {target for names in targets for target in names.split()}
    run = [
        step["run"]
        for name in ("ci", "nightly", "docs", "release")
        for job in workflow(name)["jobs"].values()
        for step in job.get("steps", [])
        if "run" in step
    ]
    used = {target for line in run for words in re.findall(r"\bmake ([a-z\- ]+)", line) for target in words.split()}
    assert {"lint", "types", "docs", "coverage", "slow", "test-cluster", "versions", "dist"} <= used
    assert used <= known


def test_only_the_job_that_publishes_may_sign_in_to_the_package_index() -> None:
    jobs = workflow("release")["jobs"]
    assert {name for name, job in jobs.items() if "id-token" in job.get("permissions", {})} == {"publish"}
    assert {"ci", "nightly", "build"} <= set(jobs["publish"]["needs"])


def test_the_changelog_begins_with_the_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert "version" in PROJECT["dynamic"]
    assert next(heading for heading in headings if heading != "Unreleased") == sweeprof.__version__


# Folders


PACKAGE = Path(sweeprof.__file__).parent


def test_the_configs_are_beside_the_package_in_a_checkout_and_in_one_that_a_wheel_installs(tmp_path: Path) -> None:
    assert paths.conf_folder() == PACKAGE.parent / "conf"
    installed = tmp_path / "site-packages" / "sweeprof"
    shutil.copytree(PACKAGE.parent / "conf", installed / "conf")
    shutil.copy(PACKAGE / "paths.py", installed)
    assert runpy.run_path(str(installed / "paths.py"))["conf_folder"]() == installed / "conf"


# The suite itself: tests that crash their workers, and capabilities that a backend lacks


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


@pytest.mark.thorough
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


def test_a_refusal_that_the_case_declares_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, ["lines"], {}, BACKENDS["tensorflow"].refuses["lines"])
    with pytest.raises(pytest.skip.Exception, match=r"backend\.mode=eager runs them"):
        asking.needs("tensorflow", "lines", "lines")
