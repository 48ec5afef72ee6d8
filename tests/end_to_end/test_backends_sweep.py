"""One model on every run-time, as +sweep=backends has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command import run_command
from sweeprof.paths import conf_folder

SWEEP: dict[str, Any] = yaml.safe_load((conf_folder() / "sweep" / "backends.yaml").read_text(encoding="utf-8"))


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_every_run_time_gives_the_same_answers_in_one_table(tmp_path: Path) -> None:
    """The whole of it but for two of its three models."""
    assert SWEEP["axes"]["model"] == ["lenet5", "mlp", "digits_resnet"]
    backends = set(SWEEP["axes"]["backend"])
    assert backends >= {
        "torch",
        "torch_compile",
        "tensorflow",
        "tensorflow_eager",
        "tensorflow_xla",
        "onnxruntime",
        "jax",
    }
    quickly = ("protocol.min_s=0.05", "protocol.warmup_s=0.05", "tracking=none")
    ran = run_command(tmp_path, "+sweep=backends", "model=mlp", *quickly, timeout=580)
    assert ran.code == 0, ran.err
    comparison = json.loads((ran.folder("backends") / "comparison.json").read_text())
    rows: list[dict[str, Any]] = comparison["rows"]
    assert {(row["axes"]["backend"], row["axes"]["batch_size"]) for row in rows} == {
        (backend, size) for backend in backends for size in (1, 32)
    }
    for row in rows:
        values = {name: cell["measurement"]["value"] for name, cell in row["cells"].items()}
        assert row["status"] == "ok", row["reason"]
        assert values["quality/agreement"] < 1e-3
        assert values["quality/accuracy"] == rows[0]["cells"]["quality/accuracy"]["measurement"]["value"]
        assert values["compute/macs"] == row["axes"]["batch_size"] * 139_904
        assert values["params/total"] == 140_106
        assert values["latency/forward"] > 0
    best = ran.out.partition("Best batch size, by throughput")[2]
    assert {backend for backend in backends if f"backend={backend}: " in best} == backends
