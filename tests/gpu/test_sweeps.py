"""Sweeps on a device by the command: what fails does not end a sweep, frees its memory, and two sweeps take turns."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.command import Ran, run_command, running_command

MODELS = '''
import os
import signal

import torch
from torch import nn


class Net(nn.Module):
    """Layers of a width; with samples enough it asks for more memory than there is, or is killed."""

    def __init__(self, width=64, greedy_from=None, killed_from=None):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
        self.greedy_from, self.killed_from = greedy_from, killed_from

    def forward(self, x):
        if self.greedy_from and len(x) >= self.greedy_from:
            torch.empty(1 << 46, dtype=torch.uint8, device=x.device)
        if self.killed_from and len(x) >= self.killed_from and not x.is_meta:
            self.held = torch.zeros(1 << 28, device=x.device)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layers(x)
'''
QUICK = ("tracking=none", "protocol=quick", "protocol.rounds=1", "protocol.min_s=0.05", "protocol.warmup_s=0.05")


def arguments(device: str, *further: str) -> tuple[str, ...]:
    model = ("model.torch._target_=device_models.Net", "dataset=synthetic", "dataset.shape=[64]")
    return (*model, f"device.type={device}", *QUICK, *further)


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "device_models.py").write_text(MODELS)
    return tmp_path


def statuses(ran: Ran, axis: str = "batch_size") -> dict[Any, str]:
    rows = json.loads((ran.folder("adhoc") / "comparison.json").read_text())["rows"]
    return {row["axes"][axis]: row["status"] for row in rows}


def test_a_lack_of_memory_is_a_row_and_the_sweep_goes_on(cwd: Path, device: str) -> None:
    asked = arguments(device, "metrics.select=[latency/forward]", "batch_size=2,4,8", "+model.torch.greedy_from=4")
    ran = run_command(cwd, *asked)
    assert statuses(ran) == {2: "ok", 4: "oom", 8: "oom"}, ran.out + ran.err


def test_a_trial_that_is_killed_frees_its_memory(cwd: Path, device: str) -> None:
    free = torch.cuda.mem_get_info()[0] if device.startswith("cuda") else 0
    asked = arguments(device, "metrics.select=[latency/forward]", "batch_size=2,4", "+model.torch.killed_from=4")
    ran = run_command(cwd, *asked)
    assert statuses(ran) == {2: "ok", 4: "crashed"}, ran.out + ran.err
    if device.startswith("cuda"):
        assert torch.cuda.mem_get_info()[0] >= free - (1 << 26)


def test_two_sweeps_at_once_take_turns(cwd: Path, device: str) -> None:
    """No trial that measures the device runs while one of the other sweep does."""
    asked = arguments(device, "metrics.select=[latency/forward]", "batch_size=2,4")
    with running_command(cwd, *asked, "name=first") as first:
        second = run_command(cwd, *asked, "name=second")
        out, _ = first.communicate(timeout=250)
    assert (first.returncode, second.code) == (0, 0), out + second.out + second.err
    spans: list[tuple[str, str, str]] = []
    for name in ("first", "second"):
        (folder,) = (cwd / "outputs" / name).iterdir()
        for path in folder.glob("records/*/timing-*.json"):
            ran = json.loads(path.read_text())["environment"]["ran"]
            spans.append((*ran, name))
    assert len(spans) == 4
    spans.sort()
    for (_, end, name), (begin, _, other) in itertools.pairwise(spans):
        assert name == other or end <= begin


def test_compiled_rows(cwd: Path, device: str) -> None:
    """Outputs are those of the eager model; on the CPU a row of CUDA graphs is unsupported."""
    metrics = "metrics.select=[latency/forward,latency/graph_breaks,quality/agreement,operators/self_s]"
    compiled = ("backend=torch_compile", "backend.compile_mode=null,reduce-overhead", "batch_size=4")
    if device == "cpu":
        compiled = ("backend=torch", "backend.compile=false,aot_eager,cudagraphs", "batch_size=4")
    ran = run_command(cwd, *arguments(device, metrics, *compiled))
    rows = json.loads((ran.folder("adhoc") / "comparison.json").read_text())["rows"]
    found = {tuple(row["axes"].values()): row for row in rows}
    expected = ["ok", "ok", "unsupported"] if device == "cpu" else ["ok", "ok"]
    assert sorted(row["status"] for row in rows) == sorted(expected), ran.out + ran.err
    for row in found.values():
        if row["status"] == "ok":
            cells = {name: cell["measurement"]["value"] for name, cell in row["cells"].items()}
            assert cells["latency/forward"] > 0
            assert cells.get("quality/agreement") in (None, pytest.approx(0, abs=1e-2))
            assert cells["latency/graph_breaks"] in (None, 0)


def test_the_default_table_is_complete(cwd: Path, device: str) -> None:
    (row,) = run_command(cwd, *arguments(device, "batch_size=4")).rows()
    assert row["status"] == "ok"
    for name in ("latency/forward", "memory/added_bytes"):
        assert row["cells"][name]["measurement"]["value"] > 0, row["cells"][name]


def test_a_model_of_transformers(cwd: Path, device: str) -> None:
    """Its modules are imported before trials are forked, of which one may use the GPU, as torchao does."""
    pytest.importorskip("transformers")
    config = "model.config={num_hidden_layers: 1, hidden_size: 32, num_attention_heads: 2, intermediate_size: 64, vocab_size: 99}"
    model = ("model=transformers", "model.architecture=llama", "model.task=text-generation", config)
    ran = run_command(cwd, *model, f"device.type={device}", *QUICK, "metrics=generation", "generation.new_tokens=4")
    (row,) = ran.rows()
    assert row["status"] == "ok", ran.out + ran.err
    assert row["cells"]["generation/latency"]["measurement"]["value"] > 0
