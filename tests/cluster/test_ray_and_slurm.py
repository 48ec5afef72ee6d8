"""The same sweep on Ray and on Slurm, each of three nodes on this machine: the same table, in about the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from support.command import run_command
from support.ray_lab import RayLab
from support.slurm import Lab

SWEEP = (
    "model=mlp,lenet5",
    "batch_size=range(1,301)",
    "metrics=static",
    "tracking=none",
    "dataset=synthetic",
    "shards=6",
)
COLUMNS = ["model", "batch_size", "status", "compute/macs", "params/total"]
RATIO = 1.3


@pytest.fixture(scope="module")
def ray() -> Iterator[RayLab]:
    """The cluster."""
    pytest.importorskip("ray", reason="ray is not installed: make ray")
    made = RayLab()
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_six_hundred_static_combinations_take_as_long(
    slurm: Lab, ray: RayLab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds: dict[str, float] = {}
    tables = []
    on_slurm = ("cluster=slurm", "cluster.poll_s=0.5", "cluster.memory=1500MiB")
    for name, arguments in {"slurm": on_slurm, "ray": ray.arguments}.items():
        (tmp_path / name).mkdir()
        began = time.monotonic()
        ran = run_command(tmp_path / name, *SWEEP, f"limits.locks={tmp_path / 'locks'}", *arguments, timeout=700)
        seconds[name] = time.monotonic() - began
        assert ran.code == 0, ran.out + ran.err
        tables.append(pd.read_csv(ran.folder("adhoc") / "comparison.csv")[COLUMNS])
    pd.testing.assert_frame_equal(tables[0], tables[1])
    assert len(tables[0]) == 600
    assert set(tables[0]["status"]) == {"ok"}
    ratio = seconds["ray"] / seconds["slurm"]
    with capsys.disabled():
        print(
            f"\n600 static combinations: Slurm {seconds['slurm']:.0f} s, Ray {seconds['ray']:.0f} s, ratio {ratio:.2f}"
        )
    assert ratio <= RATIO
