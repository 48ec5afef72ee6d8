"""Variants of PyTorch as axes of a sweep, and interleaved samples, through the real command."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from support.command import Command
from support.plans import read_records
from sweeprof.measuring.timing import Timing

pytestmark = pytest.mark.slow

SHORT = ("protocol.min_s=0.02", "protocol.warmup_s=0.02", "protocol.min_samples=3", "tracking=none")
METRICS = "metrics.select=[latency/forward,latency/backward,latency/compile,compute/macs,quality/agreement]"


@pytest.mark.thorough
def test_precision_by_memory_layout_by_kind_of_step(sweeprof: Command) -> None:
    ran = sweeprof(
        *("model=lenet5", "backend.precision=fp32,bf16,int8", "backend.channels_last=true,false"),
        *("mode=inference,training", "training.optimizer=adamw", "training.loss=cross_entropy", METRICS, *SHORT),
        "compare.baseline={backend.precision: fp32, backend.channels_last: false}",
    )
    assert ran.code == 0, ran.err
    table = pd.read_csv(ran.folder("adhoc") / "comparison.csv")
    assert len(table) == 3 * 2 * 2
    trained, quantized = table["mode"] == "training", table["backend.precision"] == "int8"
    assert (table["latency/forward"].notna() == ~(trained & quantized)).all()
    assert (table["latency/backward"].notna() == (trained & ~quantized)).all()
    assert table["latency/compile"].isna().all()
    assert set(table["compute/macs"]) == {416_520}
    assert (table["quality/agreement"] < 0.05).all()
    report = (ran.folder("adhoc") / "comparison.md").read_text()
    assert "a quantized model has no gradients" in ran.out + report


def test_precisions_are_compared_with_single_precision(called: Command) -> None:
    select = "metrics.select=[latency/forward,quality/agreement]"
    ran = called("model=lenet5", "backend.precision=fp32,bf16,int8", select, "protocol.rounds=3", *SHORT)
    rows = ran.rows()
    assert [row["differs"] for row in rows] == [{}] * 3
    assert all(row["cells"]["latency/forward"]["verdict_reason"] != "different_environment" for row in rows)
    table = pd.read_csv(ran.folder("adhoc") / "comparison.csv").set_index("backend.precision")
    assert table["quality/agreement"]["fp32"] == 0
    assert 0 < table["quality/agreement"]["bf16"] < 0.05
    assert 0 < table["quality/agreement"]["int8"] < 0.05
    assert "vs fp32" in ran.out


def test_four_bits_and_a_precision_that_the_device_lacks(called: Command) -> None:
    """The outputs of each are compared with those in single precision."""
    model = ("model.torch._target_=torch.nn.Linear", "+model.torch.in_features=256", "+model.torch.out_features=32")
    select = "metrics.select=[latency/forward,quality/agreement,size/params_bytes]"
    ran = called(*model, "dataset=synthetic", "dataset.shape=[256]", "backend.precision=fp32,int4,fp8", select, *SHORT)
    rows = {row["axes"]["backend.precision"]: row for row in ran.rows()}
    assert {name: row["status"] for name, row in rows.items()} == {"fp32": "ok", "int4": "ok", "fp8": "unsupported"}
    assert rows["fp8"]["reason"] == "precision=fp8 has no kernels for device=cpu (only for cuda, xpu)"
    found = {name: cell["measurement"]["value"] for name, cell in rows["int4"]["cells"].items()}
    assert 0 < found["quality/agreement"] < 0.2
    assert found["size/params_bytes"] == 256 * 32 // 2 + 4 * 2 * 32 + 2 * 32
    assert "int4 (torchao)" in ran.out


@pytest.mark.system
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="torch.compile needs a C++ compiler")
def test_compiled(sweeprof: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With an empty cache, so that it really compiles."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    ran = sweeprof("model=mlp", "backend=torch,torch_compile", METRICS, "protocol.rounds=1", *SHORT)
    assert ran.code == 0, ran.err
    table = pd.read_csv(ran.folder("adhoc") / "comparison.csv").set_index("backend")
    assert list(table["status"]) == ["ok", "ok"]
    assert table["latency/compile"]["torch_compile"] > 10 * table["latency/forward"]["torch_compile"]
    assert pd.isna(table["latency/compile"]["torch"])
    assert table["compute/macs"].nunique() == 1
    assert table["quality/agreement"]["torch_compile"] < 1e-4


# Interleaved samples on scripted clocks: every figure is exact


FAKE = ("model=fake", "backend=fake", "dataset=synthetic", "tracking=none", "protocol.rounds=3")


@pytest.mark.slow
def test_interleaved_samples(sweeprof: Command) -> None:
    """Batch sizes 1 and 2, each with a baseline and two slower ones: two trial groups a round; steps of the two kinds alternate."""
    ran = sweeprof(
        *(*FAKE, "name=d", "protocol=interleaved", "metrics=latency", "model.fake.step_s=0.001"),
        *("batch_size=1,2", "backend.slowdown=1,2,4", "compare.baseline={backend.slowdown: 1}"),
    )
    rows = ran.rows("d")
    records = read_records(ran.folder("d") / "records")
    assert {record.status for record in records} == {"ok"}
    assert len(records) == 2 * 3 * 3
    runs: dict[str, list[Timing]] = {}
    turns: dict[str, set[Any]] = {}
    for record in records:
        timing = Timing.from_dict(record.observations or {}, record.round)
        assert timing.interleaved_run is not None
        runs.setdefault(timing.interleaved_run.id, []).append(timing)
        turns.setdefault(timing.interleaved_run.id, set()).add(timing.interleaved_run.turns)
    assert len(runs) == 2 * 3
    assert {len(members) for members in runs.values()} == {3}
    assert {len(of_one) for of_one in turns.values()} == {1}
    for row in rows:
        slowdown = row["axes"]["backend.slowdown"]
        cell: dict[str, Any] = row["cells"]["latency/forward"]
        assert cell["measurement"]["paired"] == ([] if slowdown == 1 else cell["measurement"]["rounds"])
        if slowdown > 1:
            assert (round(cell["ratio"], 9), cell["verdict"]) == (slowdown, "worse")
