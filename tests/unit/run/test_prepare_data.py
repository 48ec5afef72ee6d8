"""Datasets that are decoded before the first trial."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweeprof.run.prepare_data import prepare_data

CLEARING = """
from pathlib import Path
class Clearing:
    def __init__(self, log):
        self.log = Path(log)
    def prepare(self, split):
        self.log.unlink()
"""


def test_another_shard_may_have_removed_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of one sweep that a launcher runs side by side have one log."""
    (tmp_path / "clearing.py").write_text(CLEARING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    log = tmp_path / "logs" / "data.log"
    dataset = {"_target_": "clearing.Clearing", "prepare": True, "log": str(log)}
    prepare_data([{"dataset": dataset, "backend": {}}], log.parent)
    assert not log.exists()
