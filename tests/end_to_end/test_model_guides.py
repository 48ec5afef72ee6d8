"""docs/models.md and docs/data.md, as a reader would follow them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.command import call_command
from support.planning import planned
from sweeprof.measuring.inputs import Inputs, Workload, workload_of

DOCS = Path(__file__).parents[2] / "docs"
QUICKLY = ("tracking=none", "protocol.min_s=0.02", "protocol.warmup_s=0.02")

pytestmark = pytest.mark.usefixtures("measured_in_forks")


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
    ran = call_command(folder, *arguments, *QUICKLY, "protocol.rounds=1")
    assert ran.code == 0, (ran.out, ran.err)
    rows: list[dict[str, Any]] = json.loads((ran.folder(name) / "comparison.json").read_text())["rows"]
    assert {row["status"] for row in rows} == {"ok"}
    return rows


@pytest.mark.slow
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


def test_the_unit_of_a_dataset_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written("data.md", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    clips = import_module("my_audio").Clips()
    batch, _ = clips.split("test").batch(np.arange(3))
    assert batch["x"].shape == (3, 16000)  # 3 s with the padding
    assert workload_of(clips, Inputs.from_batch(batch), 3) == Workload("seconds of audio", 1 + 0.5 + 0.75)


@pytest.mark.slow
def test_further_quality_metrics(tmp_path: Path) -> None:
    (command,) = [line for line in written("data.md", tmp_path) if "torchmetrics" in " ".join(line)]
    (row,) = measured(tmp_path, command)
    values = {name: cell["measurement"]["value"] for name, cell in row["cells"].items()}
    assert 0.98 < values["quality/f1"] < 1
    assert 0.9 < values["quality/certain"] < 1
    (verdict,) = {cell["measurement"]["better"] for name, cell in row["cells"].items() if name == "quality/f1"}
    assert verdict == "higher"


@pytest.mark.slow
def test_data_in_five_minutes(tmp_path: Path) -> None:
    lines = written("data.md", tmp_path)
    others = ("--config-dir", "torchmetrics", "my_detection")  # have tests of their own
    commands = [line for line in lines if not any(other in " ".join(line) for other in others)]
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


@pytest.mark.slow
def test_a_metric_of_several_outputs_and_targets(tmp_path: Path) -> None:
    (command,) = [line for line in written("data.md", tmp_path) if "my_detection" in " ".join(line)]
    rows = measured(tmp_path, [*command, "backend=torch,onnxruntime"])
    first, second = (row["cells"]["quality/places"]["measurement"]["value"] for row in rows)
    assert 0.2 < first < 0.5  # of three classes, by chance
    assert first == second


@pytest.mark.slow
def test_a_source_of_data_of_ones_own(tmp_path: Path) -> None:
    written("data.md", tmp_path)
    (tmp_path / "lines").mkdir()
    for name in ("cat-1", "dog-1", "dog-2"):
        (tmp_path / "lines" / f"{name}.txt").write_text("1 2 3.5")
    line = ["--config-dir", "mine", "dataset=lines", "model=fake", "backend=fake", "metrics.select=[quality/accuracy]"]
    (row,) = measured(tmp_path, line)
    assert row["cells"]["quality/accuracy"]["measurement"]["value"] is not None
    (tmp_path / "lines" / "cat-1.txt").write_text("1 2 x")
    ran = call_command(tmp_path, *line, "tracking=none")
    assert ran.code == 1
    assert "cat-1.txt has something else than numbers" in ran.err


@pytest.mark.slow
@pytest.mark.usefixtures("described_here")
def test_the_commands_can_be_planned(tmp_path: Path) -> None:
    made = 0
    for line in written("models.md", tmp_path):
        if "--config-dir" in line or "FOLDER" in " ".join(line) or "net.onnx" in " ".join(line):
            continue
        plan = planned([*line, "tracking=none"])
        assert all("inputs" in c.config["dataset"]["inputs"] for c in plan.combinations)
        made += 1
    assert made == 7


@pytest.mark.slow
def test_training_a_model_on_the_loss_that_it_returns_itself(tmp_path: Path) -> None:
    (command,) = [line for line in written("models.md", tmp_path) if "training.loss=own" in line]
    small = "model.config.n_layer=1 model.config.n_embd=32 model.config.n_head=2 inputs.sequence_length=8"
    (row,) = measured(tmp_path, [*command, *small.split()])
    assert row["cells"]["latency/iteration"]["measurement"]["value"] > 0
    (plan,) = [json.loads(path.read_text()) for path in tmp_path.glob("**/plan.json")]
    assert '"labels"' in json.dumps(plan)


@pytest.mark.slow
def test_a_language_model_by_configuration_alone(tmp_path: Path) -> None:
    """Sequence length, batch size, precision and backend are axes; outputs agree, and what cannot be run has a reason."""
    command = (
        "model=transformers model.architecture=bert model.task=text-classification model.config.num_hidden_layers=1"
    )
    sizes = "model.config.hidden_size=64 model.config.num_attention_heads=2 inputs.sequence_length=16,32"
    variants = "batch_size=2 backend=torch,onnxruntime backend.precision=fp32,bf16"
    select = "metrics.select=[latency/forward,throughput/units_per_s,compute/macs,quality/agreement]"
    exclude = "exclude=[{backend: onnxruntime, inputs.sequence_length: 32}]"  # an export takes long
    ran = call_command(
        tmp_path, *command.split(), *sizes.split(), *variants.split(), select, exclude, *QUICKLY, "protocol.rounds=1"
    )
    assert ran.code == 0, (ran.out, ran.err)
    rows = json.loads((ran.folder("adhoc") / "comparison.json").read_text())["rows"]
    assert len(rows) == 6
    for row in rows:
        is_bf16_onnx = (row["axes"]["backend"], row["axes"]["backend.precision"]) == ("onnxruntime", "bf16")
        assert row["status"] == ("unsupported" if is_bf16_onnx else "ok"), row["reason"]
        if not is_bf16_onnx:
            values = {name: cell["measurement"]["value"] for name, cell in row["cells"].items()}
            assert values["quality/agreement"] < (1e-5 if row["axes"]["backend.precision"] == "fp32" else 0.1)
            length, batch = row["axes"]["inputs.sequence_length"], row["axes"]["batch_size"]
            tokens = length * batch / values["latency/forward"]
            assert values["throughput/tokens_per_s"] == pytest.approx(tokens, rel=1e-6)
            projections = length * (4 * 64 * 64 + 2 * 64 * 3072)
            attention = 2 * length * length * 64
            assert values["compute/macs"] == batch * (projections + attention + 64 * 64 + 64 * 2)


def bert_command() -> list[str]:
    """The sweep over sequence lengths, batch sizes, precisions and backends in docs/models.md."""
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^sweeprof .*inputs.sequence_length=64,128,256.*$", text, re.MULTILINE)
    return shlex.split(line)[1:]


@pytest.mark.slow
@pytest.mark.usefixtures("described_here")
def test_what_a_precision_lacks_is_planned() -> None:
    plan = planned([*bert_command(), "tracking=none"])
    assert len(plan.combinations) == 3 * 2 * 2 * 3
    for combination in plan.combinations:
        is_lacking = (combination.axes["backend"], combination.axes["backend.precision"]) == ("onnxruntime", "bf16")
        assert (combination.unsupported is not None) == is_lacking
    reasons = {c.unsupported for c in plan.combinations} - {None}
    assert reasons == {
        "onnxruntime does not support precision=bf16: its provider for the CPU has no kernels for products of bfloat16, and for "
        "other providers none is exported"
    }
    assert {"quality/accuracy", "quality/agreement"} <= {str(name) for name in plan.metrics}


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_a_language_model_in_two_precisions_on_three_backends(tmp_path: Path) -> None:
    """The documented sweep, with a narrower model: every row is ok or unsupported, and the outputs agree."""
    narrow = "model.config.hidden_size=64 model.config.num_attention_heads=2 model.config.intermediate_size=128"
    ran = call_command(tmp_path, *bert_command(), *narrow.split(), *QUICKLY)
    assert ran.code == 0, (ran.out, ran.err)
    rows = json.loads((ran.folder("adhoc") / "comparison.json").read_text())["rows"]
    assert len(rows) == 36
    for row in rows:
        precision = row["axes"]["backend.precision"]
        is_lacking = (row["axes"]["backend"], precision) == ("onnxruntime", "bf16")
        assert row["status"] == ("unsupported" if is_lacking else "ok"), row["reason"]
        if not is_lacking:
            assert row["precision_method"] == "convert"
            assert row["cells"]["quality/agreement"]["measurement"]["value"] < (1e-4 if precision == "fp32" else 0.1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_of_timm(tmp_path: Path) -> None:
    """Two of its three models, at one batch size; the whole of it is planned by tests/unit/config/test_configs.py."""
    fewer = ("model.name=mobilenetv3_small_050,vit_tiny_patch16_224", "batch_size=4")
    ran = call_command(tmp_path, "+sweep=timm", *fewer, *QUICKLY, "protocol.rounds=1")
    assert ran.code == 0, (ran.out, ran.err)
    rows = json.loads((ran.folder("timm") / "comparison.json").read_text())["rows"]
    assert len(rows) == 4
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        difference = row["cells"]["quality/agreement"]["measurement"]["value"]
        assert (difference == 0) == (row["axes"]["backend.precision"] == "fp32")
