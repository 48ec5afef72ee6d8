"""Datasets that are decoded before the first trial."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweeprof.run.shard import prepare_data

CLEARING = """
from pathlib import Path
class Clearing:
    def __init__(self, log):
        self.log = Path(log)
    def prepare(self, split):
        self.log.unlink()
"""


ODD = """
import os, time
from pathlib import Path
class Odd:
    def __init__(self, kind, done):
        self.kind, self.done = kind, Path(done)
    def prepare(self, split):
        if self.kind == "hangs":
            time.sleep(600)
        if self.kind == "dies":
            os._exit(3)
        self.done.touch()
"""


@pytest.mark.slow
def test_a_dataset_that_hangs_or_dies_keeps_no_other_from_being_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "odd_data.py").write_text(ODD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr("sweeprof.run.shard.DECODING_S", 8.0)
    kinds = ("dies", "hangs", "fine")
    nodes = [
        {"_target_": "odd_data.Odd", "prepare": True, "kind": kind, "done": str(tmp_path / f"{kind}.done")}
        for kind in kinds
    ]
    prepare_data([{"dataset": node, "backend": {}} for node in nodes], tmp_path / "logs")
    assert [path.name for path in tmp_path.glob("*.done")] == ["fine.done"]
    assert "ended with code 3" in caplog.text
    assert "did not answer within 8 s" in caplog.text


def test_another_shard_may_have_removed_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of one sweep that a launcher runs side by side have one log."""
    (tmp_path / "clearing.py").write_text(CLEARING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    log = tmp_path / "logs" / "data.log"
    dataset = {"_target_": "clearing.Clearing", "prepare": True, "log": str(log)}
    prepare_data([{"dataset": dataset, "backend": {}}], log.parent)
    assert not log.exists()
