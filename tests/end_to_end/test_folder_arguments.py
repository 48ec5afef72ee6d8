"""Mistakes in the arguments of ``sweeprof report`` and ``sweeprof sync``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.command import call_module

GOLDEN = Path(__file__).parents[1] / "golden" / "sweep-v2"


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
