"""The same samples in six forms give the same accuracy on two frameworks; mistakes in data are one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from support.command import run_command
from support.kinds_of_data import write_digits


@pytest.mark.slow
def test_six_kinds_of_data_give_the_same_accuracy_on_torch_and_tensorflow(tmp_path: Path) -> None:
    kinds = write_digits(tmp_path)
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    sweep = {
        "variants": {"data": kinds},
        "axes": {"backend": ["torch", "tensorflow"], "data": list(kinds)},
        "metrics": {"select": ["quality/accuracy", "quality/agreement"]},
        "batch_size": 64,
    }
    header = "# @package _global_\n"
    (tmp_path / "mine" / "sweep" / "forms.yaml").write_text(header + yaml.safe_dump(sweep), encoding="utf-8")
    ran = run_command(tmp_path, "--config-dir", "mine", "+sweep=forms", "tracking=none", "isolation=fork")
    assert ran.code == 0, (ran.out, ran.err)
    rows = json.loads((ran.folder("forms") / "comparison.json").read_text())["rows"]
    assert len(rows) == 12
    cells = [row["cells"]["quality/accuracy"]["measurement"] for row in rows]
    assert {row["status"] for row in rows} == {"ok"}, [row["reason"] for row in rows]
    assert len({cell["value"] for cell in cells}) == 1
    assert cells[0]["value"] > 0.9
