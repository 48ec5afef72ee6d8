"""docs/tutorial.md, as a reader would follow it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from end_to_end.test_model_guides import DOCS, written

from support.command import Ran, call_command, environment

QUICKLY = ("tracking=none", "protocol.min_s=0.02", "protocol.warmup_s=0.02")
ELSEWHERE = ("python3 -m venv", "pip install", "sweeprof ui", "SWEEP=")
"""Lines that other tests run: of packages, of MLflow's pages and of the nightly recipe."""

GATE = "sweeprof compare tag:good widths/last --fail-on worse"


def shell_lines() -> list[str]:
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if not line.startswith(ELSEWHERE)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("measured_in_forks")
def test_every_line_of_the_tutorial_in_its_order(tmp_path: Path) -> None:
    written("tutorial.md", tmp_path)
    ran: dict[str, Ran] = {}
    for line in shell_lines():
        program, *arguments = shlex.split(line)
        if program != "sweeprof":
            command = [sys.executable if program == "python" else program, *arguments]
            subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), check=True, timeout=120)
            continue
        quickly = QUICKLY if "=" in line else ()
        if "protocol=default" in line:
            # The gate is for parameters, of which one round of one row is enough; the line before has both backends.
            quickly = (*quickly, "protocol.rounds=1", "model.torch.width=64", "batch_size=32", "backend=torch")
        ran[line] = call_command(tmp_path, *arguments, *quickly)
        if "_target_=my_models.perceptron" in line:
            assert_figures_of_the_page(max((tmp_path / "outputs" / "adhoc").iterdir()))
    failed = {line: (one.out, one.err) for line, one in ran.items() if one.code}
    assert list(failed) == [GATE], failed
    assert ran[GATE].code == 3, failed
    assert "8 combinations" in ran["sweeprof --config-dir conf +sweep=widths dry_run=true"].out
    assert "parameters" in ran[GATE].out
    assert "worse" in ran[GATE].out


def assert_figures_of_the_page(folder: Path) -> None:
    """MACs by hand, and the accuracy of a model that is not trained."""
    rows = json.loads((folder / "comparison.json").read_text())["rows"]
    macs = {
        row["axes"]["model.torch.width"]: row["cells"]["compute/macs_per_sample"]["measurement"]["value"]
        for row in rows
    }
    assert macs == {64: 66_176, 256: 1024 * 256 + 256 * 10}
    assert all(row["cells"]["quality/accuracy"]["measurement"]["value"] < 0.3 for row in rows)
