"""Weights that take long to make: made once in a sweep, and the same as those that every trial makes itself."""

from __future__ import annotations

import fcntl
import json
import socket
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from support.command import folder_of, run_command
from support.plans import read_records

pytestmark = pytest.mark.slow

MODELS = """
import functools, hashlib, json, os, random, sys, time

import numpy as np
import torch
from sweeprof.model_sources import transformers


def note(**seen):
    with open(os.environ["SEEN"], "a") as file:
        file.write(json.dumps(seen) + "\\n")


def digest(tensors, *more):
    values = hashlib.sha256(repr(more).encode())
    for tensor in tensors:
        values.update(tensor.detach().numpy().tobytes())
    return values.hexdigest()


def finish(kind, weight):
    os.environ["BUILT"] = "as CUDA sets CUDA_MODULE_LOADING when it is first used"
    if not weight.is_meta:
        time.sleep(float(os.environ["BUILDING_S"]))
    note(built=kind, is_real=not weight.is_meta)


@functools.cache
def kept():
    return torch.arange(3)


class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        plugins = os.path.join(os.path.dirname(__file__), "plugins")
        sys.path.insert(0, plugins)  # as torch.hub does: it cannot be imported afterwards
        import imported_by_the_builder

        sys.path.remove(plugins)
        self.scale = imported_by_the_builder
        self.kind, self.is_noted = kind, False
        self.first = torch.nn.Linear(64, 64)
        self.recurrent = torch.nn.LSTM(64, 64)
        self.last = torch.nn.Linear(64, 64)
        self.last.weight = self.first.weight
        self.norm = torch.nn.BatchNorm1d(64)
        self.large = torch.nn.Parameter(torch.empty(5_000_000).normal_(), requires_grad=False)
        self.register_buffer("passing", torch.randn(6), persistent=False)
        self.plain = [torch.randn(3)]
        self.numbers = random.random(), np.random.rand()
        hidden = self.plain[0]
        if kind == "reads a value":
            self.total = float(self.first.weight.sum())
        elif kind == "hides a tensor":
            hidden = torch.randn(3)
        elif kind == "draws on the host":
            self.drawn = torch.rand(1, device="cpu").item()
        elif kind == "holds a view":
            self.part = self.passing[2:4]
        elif kind == "knows its device":
            self.place = self.passing.device
        elif kind == "gives a function its device":
            self.make = functools.partial(torch.arange, 3, device=self.passing.device)
        elif kind == "keeps a tensor elsewhere":
            kept()
        self.hidden = lambda: hidden
        finish(kind, self.first.weight)

    def forward(self, x):
        if not self.is_noted:
            self.is_noted = True
            with torch.no_grad():
                self.passing += 1  # seen by the view
            tensors = [*self.parameters(), *self.buffers(), *self.plain, self.hidden(), *self.recurrent._flat_weights]
            tensors += [getattr(self, "part", self.passing), getattr(self, "make", kept)()]
            tied = self.last.weight is self.first.weight
            more = self.numbers, getattr(self, "total", 0), getattr(self, "drawn", 0), str(getattr(self, "place", 0)), tied
            note(ran=self.kind, digest=digest(tensors, *more, random.random(), np.random.rand(), torch.rand(2).tolist()))
        return self.norm(self.last(self.recurrent(self.first(x))[0])) * self.scale.SCALE


def llama(**settings):
    model = transformers.build(**settings)
    finish("llama", model.lm_head.weight)
    model.model.register_forward_pre_hook(seen)
    return model


def seen(model, *_):
    if not hasattr(model, "is_noted") and not model.embed_tokens.weight.is_meta:
        model.is_noted = True
        note(ran="llama", digest=digest([*model.parameters(), *model.buffers()], torch.rand(2).tolist()))
"""
FROM_FILE = "is plain"
KINDS = (
    FROM_FILE,
    "reads a value",
    "hides a tensor",
    "draws on the host",
    "holds a view",
    "knows its device",
    "gives a function its device",
    "keeps a tensor elsewhere",
)
NETS = ("model=lenet5", "model.torch._target_=models.Net", f"+model.torch.kind={','.join(map(repr, KINDS))}")
SHORT = ("protocol=short", "protocol.rounds=2", "protocol.min_s=0.01", "protocol.warmup_s=0.01", "tracking=none")


class Seen:
    """What the models of a sweep have noted: whether each build filled its weights, and the digests of all values at first use."""

    def __init__(self, path: Path) -> None:
        self.real: dict[str, int] = defaultdict(int)
        self.digests: dict[str, set[str]] = defaultdict(set)
        for line in path.read_text().splitlines():
            note: dict[str, Any] = json.loads(line)
            if "built" in note:
                self.real[note["built"]] += note["is_real"]
            else:
                self.digests[note["ran"]].add(note["digest"])


def measured(folder: Path, monkeypatch: pytest.MonkeyPatch, building_s: float, *arguments: str) -> Seen:
    folder.mkdir(exist_ok=True)
    (folder / "models.py").write_text(MODELS)
    (folder / "plugins").mkdir(exist_ok=True)
    (folder / "plugins" / "imported_by_the_builder.py").write_text("import torch\n\nSCALE = torch.ones(64)\n")
    monkeypatch.setenv("SEEN", str(folder / "seen.jsonl"))
    monkeypatch.setenv("BUILDING_S", str(building_s))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    ran = run_command(folder, *SHORT, *arguments)
    assert ran.code == 0, ran.out + ran.err
    return Seen(folder / "seen.jsonl")


def test_a_users_model_has_the_same_weights_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ("dataset=synthetic", "dataset.shape=[64]", "metrics.select=[latency/forward]")
    slow = measured(tmp_path / "slow", monkeypatch, 1.1, *NETS, *data)
    quick = measured(tmp_path / "quick", monkeypatch, 0, *NETS, *data)
    assert quick.real == dict.fromkeys(KINDS, 2)
    assert slow.real == {**dict.fromkeys(KINDS, 2), FROM_FILE: 1}
    assert {kind: len(digests) for kind, digests in quick.digests.items()} == dict.fromkeys(KINDS, 1)
    assert slow.digests == quick.digests


@pytest.mark.thorough
def test_memory_is_the_same_with_weights_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ("dataset=synthetic", "dataset.shape=[64]", "metrics.select=[memory/added_bytes]", "batch_size=1,2,3")
    memory = {}
    for building_s, real in (1.1, 1), (0, 9):
        folder = tmp_path / str(building_s)
        seen = measured(folder, monkeypatch, building_s, *NETS[:-1], f"+model.torch.kind={FROM_FILE!r}", *data)
        assert seen.real == {FROM_FILE: real}
        found = [r.observations for r in read_records(folder_of(folder) / "records") if r.pass_name == "memory"]
        memory[building_s] = [entry for entry in found if entry is not None]
        assert len(memory[building_s]) == 3
    for key in ("added_bytes", "rss_loaded_bytes", "rss_peak_bytes", "rss_stepping_bytes"):
        for from_file, made in zip(*(sorted(entry[key] for entry in found) for found in memory.values()), strict=True):
            assert from_file == pytest.approx(made, abs=4e6), key


@pytest.mark.thorough
def test_a_model_of_transformers_has_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = "num_hidden_layers: 1, hidden_size: 32, intermediate_size: 32, num_attention_heads: 2, vocab_size: 50"
    model = ("model=transformers", "model.torch._target_=models.llama", "model.architecture=llama")
    config = (f"model.config={{{sizes}, tie_word_embeddings: true}}", "model.task=text-generation")
    work = ("inputs.sequence_length=8", "generation.new_tokens=3", "mode=training,generation")
    metrics = "metrics.select=[latency/total,generation/latency]"
    slow = measured(tmp_path / "slow", monkeypatch, 1.1, *model, *config, *work, metrics)
    quick = measured(tmp_path / "quick", monkeypatch, 0, *model, *config, *work, metrics)
    assert (slow.real, quick.real) == ({"llama": 1}, {"llama": 4})
    assert len(slow.digests["llama"]) == 1
    assert slow.digests == quick.digests


@pytest.mark.thorough
def test_files_of_weights_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sweep"
    weights = folder / "cache" / "sweeprof" / "weights" / socket.gethostname()
    for name in ("killed", "running"):
        (weights / name).mkdir(parents=True)
        (weights / name / "0.bin").write_bytes(bytes(100))
        (weights / name / "lock").touch()
    data = ("dataset=synthetic", "dataset.shape=[64]", "metrics.select=[latency/forward]", "batch_size=1,2")
    with (weights / "running" / "lock").open("ab") as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        seen = measured(folder, monkeypatch, 1.1, *NETS[:-1], f"+model.torch.kind={FROM_FILE!r}", *data)
    assert seen.real == {FROM_FILE: 1}
    assert {path.name for path in weights.iterdir()} == {"lock", "running"}
