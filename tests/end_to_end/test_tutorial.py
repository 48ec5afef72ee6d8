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

from support.command import environment, run_command

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
def test_every_line_of_the_tutorial_in_its_order(tmp_path: Path) -> None:
    written("tutorial.md", tmp_path)
    codes: dict[str, int] = {}
    tables: dict[str, str] = {}
    for line in shell_lines():
        program, *arguments = shlex.split(line)
        if program != "sweeprof":
            command = [sys.executable if program == "python" else program, *arguments]
            subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), check=True, timeout=120)
            continue
        # Locks of its own, because no time is asserted; not below the folder, whose files an export depends on.
        quickly = (*QUICKLY, f"limits.locks={tmp_path.with_name('locks')}") if "=" in line else ()
        if "protocol=default" in line:
            quickly = (*quickly, "protocol.rounds=3")
        ran = run_command(tmp_path, *arguments, *quickly, timeout=600)
        codes[line], tables[line] = ran.code, ran.out + ran.err
    failed = {line: tables[line] for line, code in codes.items() if code}
    assert codes[GATE] == 3, tables[GATE]
    assert list(failed) == [GATE], failed
    assert "8 combinations" in tables["sweeprof --config-dir conf +sweep=widths dry_run=true"]
    assert "parameters" in tables[GATE]
    assert "worse" in tables[GATE]


@pytest.mark.slow
def test_the_figures_that_the_tutorial_names(tmp_path: Path) -> None:
    """MACs by hand, and the accuracy of a model that is not trained."""
    written("tutorial.md", tmp_path)
    (line,) = [line for line in shell_lines() if "_target_=my_models.perceptron" in line]
    ran = run_command(tmp_path, *shlex.split(line)[1:], *QUICKLY)
    assert ran.code == 0, ran.err
    rows = json.loads((ran.folder("adhoc") / "comparison.json").read_text())["rows"]
    macs = {
        row["axes"]["model.torch.width"]: row["cells"]["compute/macs_per_sample"]["measurement"]["value"]
        for row in rows
    }
    assert macs == {64: 66_176, 256: 1024 * 256 + 256 * 10}
    assert all(row["cells"]["quality/accuracy"]["measurement"]["value"] < 0.3 for row in rows)
