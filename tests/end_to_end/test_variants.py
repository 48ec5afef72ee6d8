"""Variants of PyTorch as axes of a sweep, in inference and in training, through the real command."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from support.command import Command, call_command
from sweeprof.results.files import read_json

pytestmark = pytest.mark.slow

SHORT = ("protocol.min_s=0.02", "protocol.warmup_s=0.02", "protocol.min_samples=3", "tracking=none")
METRICS = "metrics.select=[latency/forward,latency/backward,latency/compile,compute/macs,quality/agreement]"


@pytest.mark.thorough
def test_precision_by_memory_layout_by_kind_of_step(sweeprof: Command) -> None:
    ran = sweeprof(
        "model=lenet5",
        "backend.precision=fp32,bf16,int8",
        "backend.channels_last=true,false",
        "mode=inference,training",
        "training.optimizer=adamw",
        "training.loss=cross_entropy",
        "compare.baseline={backend.precision: fp32, backend.channels_last: false}",
        METRICS,
        *SHORT,
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
    assert (
        "a dynamically quantized model has no gradients"
        in ran.out + (ran.folder("adhoc") / "comparison.md").read_text()
    )


def test_precisions_are_compared_with_single_precision(called: Command) -> None:
    select = "metrics.select=[latency/forward,quality/agreement]"
    ran = called("model=lenet5", "backend.precision=fp32,bf16,int8", select, "protocol.rounds=3", *SHORT)
    assert ran.code == 0, ran.err
    rows = read_json(ran.folder("adhoc") / "comparison.json")["rows"]
    assert [row["differs"] for row in rows] == [{}] * 3
    assert all(row["cells"]["latency/forward"]["verdict_reason"] != "different_environment" for row in rows)
    table = pd.read_csv(ran.folder("adhoc") / "comparison.csv").set_index("backend.precision")
    assert table["quality/agreement"]["fp32"] == 0
    assert 0 < table["quality/agreement"]["bf16"] < 0.05
    assert 0 < table["quality/agreement"]["int8"] < 0.05
    assert "vs fp32" in ran.out


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


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        (
            "mode=trainning",
            "mode: 'trainning' is not a kind of step. Did you mean 'training'? Known: inference, training, generation, loading.",
        ),
        ("mode=[inference]", "mode: ['inference'] is not a kind of step."),
        ("training.optimizer=adamm", "training.optimizer: 'adamm' is not an optimizer."),
        ("training.loss=mea", "training.loss: 'mea' is not a loss."),
        ("backend.precision=bf61", "backend.precision: 'bf61' is not a precision."),
    ],
)
def test_a_wrong_value_is_one_clear_error(tmp_path: Path, argument: str, told: str) -> None:
    ran = call_command(tmp_path, "model=mlp", argument, "tracking=none")
    assert ran.code == 1
    assert told in ran.err
    assert "Traceback" not in ran.err
