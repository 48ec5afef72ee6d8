"""Reports made again from what is on disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from support.command import call_module

GOLDEN = Path(__file__).parents[1] / "golden" / "sweep-v1"


def test_reports_of_the_first_version_are_made_again(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "sweep")
    (tmp_path / "sweep" / "comparison.csv").unlink()
    done = call_module(tmp_path, "sweeprof", "report", "sweep")
    assert done.code == 0, done.err
    assert "2 of 2 combinations measured" in done.out
    found, golden = (pd.read_csv(folder / "comparison.csv") for folder in (tmp_path / "sweep", GOLDEN))
    pd.testing.assert_frame_equal(found[list(golden.columns)], golden)
    for name in ("comparison.json", "comparison.md", "report.html"):
        assert (tmp_path / "sweep" / name).stat().st_size > 0


@pytest.mark.parametrize("command", ["report", "sync"])
def test_mistakes(tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    for argument, said in (
        ("empty", "is not the folder of a sweep"),
        ("last", "does not exist: there are no sweeps in"),
    ):
        done = call_module(tmp_path, "sweeprof", command, argument)
        assert done.code == 1
        assert said in done.err
        assert "Traceback" not in done.err
    assert "DIR" in call_module(tmp_path, "sweeprof", command, "--help").out


def test_a_mistaken_word(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "sweep")
    mistaken = call_module(tmp_path, "sweeprof", "sync", "sweep", "uir=x")
    assert (mistaken.code, "Did you mean 'uri'?" in mistaken.err) == (1, True)
