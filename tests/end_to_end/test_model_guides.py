"""docs/models.md and docs/data.md, as a reader would follow them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.command import run_command
from support.planning import planned

DOCS = Path(__file__).parents[2] / "docs"
QUICKLY = ("tracking=none", "protocol.min_s=0.02", "protocol.warmup_s=0.02")


def written(page: str, folder: Path) -> list[list[str]]:
    """Write the files that a page shows, and return the arguments of its commands."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, content in re.findall(
        r"^```(?:python|yaml)\n# (\S+\.(?:py|yaml))\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return [shlex.split(line)[1:] for line in re.findall(r"^sweeprof .*$", text, re.MULTILINE)]


def measured(folder: Path, arguments: list[str], name: str = "adhoc") -> list[dict[str, Any]]:
    ran = run_command(folder, *arguments, *QUICKLY)
    assert ran.code == 0, (ran.out, ran.err)
    rows: list[dict[str, Any]] = json.loads((ran.folder(name) / "comparison.json").read_text())["rows"]
    assert {row["status"] for row in rows} == {"ok"}
    return rows


def test_a_source_of_ones_own(tmp_path: Path) -> None:
    (command,) = [line for line in written("models.md", tmp_path) if "--config-dir" in line]
    rows = measured(tmp_path, command)
    macs = {
        (row["axes"]["model.name"], row["axes"]["inputs.rows"]): row["cells"]["compute/macs"]["measurement"]["value"]
        for row in rows
    }
    assert macs == {(name, r): layers * r * 32 * 32 for name, layers in (("shallow", 1), ("deep", 4)) for r in (8, 16)}


@pytest.mark.slow
def test_data_of_ones_own(tmp_path: Path) -> None:
    (command,) = [line for line in written("data.md", tmp_path) if "--config-dir" in line]
    rows = measured(tmp_path, [*command, "model.config.num_hidden_layers=1"])
    assert [row["axes"]["dataset.length"] for row in rows] == [16, 64]
    accuracies = [row["cells"]["quality/accuracy"]["measurement"]["value"] for row in rows]
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)


@pytest.mark.slow
def test_data_in_five_minutes(tmp_path: Path) -> None:
    commands = [line for line in written("data.md", tmp_path) if "--config-dir" not in line]
    subprocess.run([sys.executable, "make_data.py"], cwd=tmp_path, check=True, timeout=120)
    accuracies: list[float] = []
    for command in commands:
        select = "metrics.select=[quality/accuracy,latency/forward]"
        rows = measured(tmp_path, [*command, select, f"name={len(accuracies)}"], str(len(accuracies)))
        accuracies += [row["cells"]["quality/accuracy"]["measurement"]["value"] for row in rows]
    assert len(commands) == 3
    both, chosen, table = set(accuracies[:2]), accuracies[2], accuracies[3]
    assert both == {table}
    assert min(table, chosen) > 0.9


def test_a_source_of_data_of_ones_own(tmp_path: Path) -> None:
    written("data.md", tmp_path)
    (tmp_path / "lines").mkdir()
    for name in ("cat-1", "dog-1", "dog-2"):
        (tmp_path / "lines" / f"{name}.txt").write_text("1 2 3.5")
    line = ["--config-dir", "mine", "dataset=lines", "model=fake", "backend=fake", "metrics.select=[quality/accuracy]"]
    (row,) = measured(tmp_path, line)
    assert row["cells"]["quality/accuracy"]["measurement"]["value"] is not None
    (tmp_path / "lines" / "cat-1.txt").write_text("1 2 x")
    ran = run_command(tmp_path, *line, "tracking=none")
    assert ran.code == 1
    assert "cat-1.txt has something else than numbers" in ran.err


@pytest.mark.slow
@pytest.mark.skipif(find_spec("timm") is None, reason="`make collections` installs timm and torchvision")
def test_the_commands_can_be_planned(tmp_path: Path) -> None:
    made = 0
    for line in written("models.md", tmp_path):
        if "--config-dir" in line or "FOLDER" in " ".join(line) or "net.onnx" in " ".join(line):
            continue
        plan = planned([*line, "tracking=none"])
        assert all("inputs" in c.config["dataset"]["inputs"] for c in plan.combinations)
        made += 1
    assert made == 5


@pytest.mark.slow
def test_a_language_model_by_configuration_alone(tmp_path: Path) -> None:
    """Sequence length, batch size, precision and backend are axes; outputs agree, and what cannot be run has a reason."""
    command = (
        "model=transformers model.architecture=bert model.task=text-classification model.config.num_hidden_layers=1"
    )
    sizes = "model.config.hidden_size=64 model.config.num_attention_heads=2 inputs.sequence_length=16,32 batch_size=2"
    variants = "backend=torch,onnxruntime backend.precision=fp32,bf16"
    ran = run_command(tmp_path, *command.split(), *sizes.split(), *variants.split(), *QUICKLY)
    assert ran.code == 0, (ran.out, ran.err)
    rows = json.loads((ran.folder("adhoc") / "comparison.json").read_text())["rows"]
    assert len(rows) == 8
    for row in rows:
        is_bf16_onnx = (row["axes"]["backend"], row["axes"]["backend.precision"]) == ("onnxruntime", "bf16")
        assert row["status"] == ("unsupported" if is_bf16_onnx else "ok"), row["reason"]
        if not is_bf16_onnx:
            values = {name: cell["measurement"]["value"] for name, cell in row["cells"].items()}
            assert values["quality/agreement"] < (1e-5 if row["axes"]["backend.precision"] == "fp32" else 0.1)
            length, batch = row["axes"]["inputs.sequence_length"], row["axes"]["batch_size"]
            projections = length * (4 * 64 * 64 + 2 * 64 * 3072)
            attention = 2 * length * length * 64
            assert values["compute/macs"] == batch * (projections + attention + 64 * 64 + 64 * 2)
