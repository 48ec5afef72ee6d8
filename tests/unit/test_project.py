"""The project's files agree with each other, its folders are found in a checkout and in a wheel, and gaps of backends are told."""

from __future__ import annotations

import re
import runpy
import shutil
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


def test_the_workflows_run_every_kind_of_test() -> None:
    workflows = "".join(path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    run = {target for words in re.findall(r"\bmake ([a-z\- ]+)", workflows) for target in words.split()}
    assert {"lint", "types", "docs", "coverage", "slow", "thorough", "test-cluster", "versions", "dist"} <= run


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


# A capability that is missing is a skip that names the declared gap, or a failure.

REASON = "not implemented: nobody did"
TRACED = BACKENDS["tensorflow"].refuses["lines"]


@pytest.mark.parametrize(
    ("backend", "capabilities", "gaps", "reason", "outcome", "said"),
    [
        ("fake", [], ["not implemented", "nobody did"], REASON, pytest.skip.Exception, f"fake has no lines .lines.: {REASON}"),
        ("fake", [], None, REASON, AssertionError, "fake lacks lines and declares no gap"),
        ("tensorflow", ["lines"], None, TRACED, pytest.skip.Exception, r"backend\.mode=eager runs them"),
    ],
    ids=["a gap that is declared", "one that is not", "a refusal that the case declares"],
)  # fmt: skip
def test_what_a_backend_does_not_do_is_a_skip_only_where_that_is_declared(
    backend: str,
    capabilities: list[str],
    gaps: list[str] | None,
    reason: str,
    outcome: type[BaseException],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = {"answer": {"capabilities": capabilities, "gaps": {"lines": gaps} if gaps else {}}}
    lines = {"error": "Unsupported", "message": reason, "trace": "…"}
    monkeypatch.setattr(asking, "answers", lambda backend: {"facts": facts, "lines": lines})
    with pytest.raises(outcome, match=said):
        asking.needs(backend, "lines", "lines")
