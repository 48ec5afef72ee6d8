"""A compiled model beside the same model as it is, through the real command."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from support.command import Command

SHORT = ("protocol.min_s=0.02", "protocol.warmup_s=0.02", "protocol.min_samples=3", "tracking=none")


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="torch.compile needs a C++ compiler")
def test_compiled(sweeprof: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With an empty cache, so that it really compiles."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    select = "metrics.select=[latency/forward,latency/compile,quality/agreement]"
    ran = sweeprof("model=mlp", "backend=torch,torch_compile", select, "protocol.rounds=1", *SHORT)
    assert ran.code == 0, ran.err
    table = pd.read_csv(ran.folder("adhoc") / "comparison.csv").set_index("backend")
    assert list(table["status"]) == ["ok", "ok"]
    assert table["latency/compile"]["torch_compile"] > 10 * table["latency/forward"]["torch_compile"]
    assert pd.isna(table["latency/compile"]["torch"])
    assert table["quality/agreement"]["torch_compile"] < 1e-4
