"""The worked example of docs/backends.md, as a reader would do it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conformance.asking import GUIDE, write_guide

from support.command import call_command

QUICKLY = ("tracking=none", "protocol.min_s=0.02", "protocol.warmup_s=0.02")


pytestmark = pytest.mark.usefixtures("measured_in_forks")


def told(text: str) -> list[str]:
    """The arguments of the command that the guide gives."""
    (found,) = re.findall(r"^sweeprof (--config-dir mine .*)$", text, re.MULTILINE)
    return str(found).split()


@pytest.mark.slow
def test_a_backend_of_ones_own_is_swept_beside_torch(tmp_path: Path) -> None:
    write_guide(tmp_path)
    ran = call_command(tmp_path, *told(GUIDE.read_text()), *QUICKLY)
    assert ran.code == 0, ran.err
    rows: list[dict[str, Any]] = json.loads((ran.folder("adhoc") / "comparison.json").read_text())["rows"]
    assert {(row["axes"]["backend"], row["axes"]["batch_size"], row["status"]) for row in rows} == {
        (backend, size, "ok") for backend in ("torch", "numpy") for size in (1, 32)
    }
    for row in rows:
        values = {name: cell["measurement"]["value"] for name, cell in row["cells"].items()}
        assert values["compute/macs"] == row["axes"]["batch_size"] * 139_904
        assert values["params/total"] == 140_106
        assert 0 <= values["quality/agreement"] < 1e-4
        assert values["latency/forward"] > 0


@pytest.mark.slow
def test_outputs_that_differ_fail_the_row_and_the_command(tmp_path: Path) -> None:
    write_guide(tmp_path)
    arguments = ("--config-dir", "mine", "model=perceptron", "backend=torch,numpy", "metrics=latency", *QUICKLY)
    ran = call_command(tmp_path, *arguments, "compare.tolerance=1e-12")
    assert ran.code == 2, ran.err
    assert "1 of 2 combinations measured; 1 failed" in ran.out
    assert "failed: outputs differ by up to" in ran.out
