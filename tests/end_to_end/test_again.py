"""Reports made again from what is on disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from support.command import environment

GOLDEN = Path(__file__).parents[1] / "golden" / "sweep-v1"


def python(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(cwd), capture_output=True, text=True, timeout=120, check=False
    )


def test_reports_of_the_first_version_are_made_again(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "sweep")
    (tmp_path / "sweep" / "comparison.csv").unlink()
    done = python(tmp_path, "sweeprof.report", "sweep")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 combinations measured" in done.stdout
    found, golden = (pd.read_csv(folder / "comparison.csv") for folder in (tmp_path / "sweep", GOLDEN))
    pd.testing.assert_frame_equal(found[list(golden.columns)], golden)
    for name in ("comparison.json", "comparison.md", "report.html"):
        assert (tmp_path / "sweep" / name).stat().st_size > 0


@pytest.mark.parametrize("module", ["sweeprof.report", "sweeprof.sync"])
def test_mistakes(tmp_path: Path, module: str) -> None:
    (tmp_path / "empty").mkdir()
    for argument, said in (("empty", "is no folder of a sweep"), ("last", "finds no sweep below")):
        done = python(tmp_path, module, argument)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert "DIR" in python(tmp_path, module, "--help").stdout


def test_a_mistaken_word(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "sweep")
    mistaken = python(tmp_path, "sweeprof.sync", "sweep", "uir=x")
    assert (mistaken.returncode, "Did you mean 'uri'?" in mistaken.stderr) == (1, True)
