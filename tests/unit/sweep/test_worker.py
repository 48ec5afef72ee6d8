"""What a trial's process leaves behind when something raises."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

import pytest

from support.plans import fake_plan
from sweeprof.results.files import read_json
from sweeprof.results.record import Record
from sweeprof.sweep.worker import Request, run_trial

MODULE = """
from sweeprof.errors import Problem, UserError

def mistaken():
    raise UserError([Problem("training.loss", "mse", "needs as many targets as outputs.")])

def surprised():
    raise ValueError("two\\nlines")
"""


@pytest.mark.parametrize(
    ("builder", "reason"),
    [
        ("mistaken", "training.loss: 'mse' needs as many targets as outputs."),
        ("surprised", "ValueError: two (raising_builders.py:8 in surprised)"),
    ],
)
def test_a_mistake_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builder: str, reason: str
) -> None:
    (tmp_path / "raising_builders.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "raising_builders", raising=False)
    importlib.invalidate_caches()
    combination = fake_plan({"x": {"_target_": f"raising_builders.{builder}"}}).combinations[0]
    blank = Record("s", combination.id, "quality", "crashed", config=combination.config)
    run_trial(Request(blank.to_dict(), str(tmp_path / "records"), str(tmp_path / "log"), None, None, time.monotonic()))
    record = Record.from_dict(read_json(tmp_path / "records" / blank.file_name))
    assert (record.status, record.reason) == ("failed", reason)
    assert record.traceback is not None
