"""Allocations of steps against sums by hand, and against malloc."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sweeprof
from support.step_memory import compiler, observed
from support.torch_modules import Applied, Functional
from sweeprof.backends.torch import memory
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.backends.torch.memory import STEPS, AcceleratorMeter
from sweeprof.backends.torch.model import TorchModel, TorchVariant
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.results.layer_times import OUTSIDE, ROOT, Mode
from sweeprof.results.observations import Allocations, LayerMemory, bytes_by_kind

ROWS, WIDTH = 256, 64
SIZE = 4 * ROWS * WIDTH
"""Bytes of one activation."""
WITHIN = 0.02


def seen_of(module: nn.Module, optimizer: str | None = None, forward: Callable[..., Any] | None = None) -> Allocations:
    backend = TorchBackend()
    model = backend.load(lambda: module, "cpu", None)
    inputs = Inputs((torch.randn(ROWS, WIDTH),), forward=forward)
    return backend.allocations(model, Work(model.put(inputs), None, TrainingConfig(optimizer) if optimizer else None))


def by_path(seen: Allocations) -> dict[str, LayerMemory]:
    return {layer.path: layer for layer in seen.by_layer}


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="there is no C compiler for the interposed malloc")
def test_peaks_are_those_of_malloc(tmp_path: Path) -> None:
    models, modes = ("convolutions", "attention"), ("inference", "training")
    jobs = [f"support.memory_models:{model}:{mode}" for model in models for mode in modes]
    for job, own, truth in zip(jobs, observed("ours", jobs, tmp_path), observed("malloc", jobs, tmp_path), strict=True):
        assert own["peak"] == pytest.approx(truth["peak"], rel=WITHIN), job
        assert own["first"] == pytest.approx(truth["first"], rel=WITHIN), job


def test_an_inference_step_by_hand() -> None:
    seen = seen_of(nn.Sequential(nn.ReLU(), nn.Tanh(), nn.ReLU(inplace=True), nn.Sigmoid()))
    assert (seen.mode, seen.steps, seen.peak_bytes, seen.peak_at) == ("inference", STEPS, 2 * SIZE, "1")
    assert seen.step_peaks_bytes == (2 * SIZE,) * STEPS
    assert seen.allocated_per_step_bytes == 3 * SIZE
    assert seen.device == {}
    assert by_path(seen) == {
        OUTSIDE: LayerMemory(OUTSIDE, SIZE, 0, 0, 0),  # which releases the outputs
        ROOT: LayerMemory(ROOT, 2 * SIZE, 0, 0, 0),
        "0": LayerMemory("0", SIZE, SIZE, 0, SIZE),
        "1": LayerMemory("1", 2 * SIZE, SIZE, 0, SIZE),
        "2": LayerMemory("2", SIZE, 0, 0, 0),
        "3": LayerMemory("3", 2 * SIZE, SIZE, 0, 0),
    }


def test_the_timeline_has_the_peak_and_ends_at_what_is_kept() -> None:
    seen = seen_of(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()), "adam")
    assert max(moment.bytes for moment in seen.timeline) == seen.peak_bytes
    assert seen.timeline[-1].bytes == sum(layer.kept_bytes for layer in seen.by_layer)
    assert all(moment.bytes >= 0 for moment in seen.timeline)
    assert [moment.s for moment in seen.timeline] == sorted(moment.s for moment in seen.timeline)


def test_gradients_stay_with_their_module_and_optimizer_state_outside() -> None:
    seen = seen_of(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8)), "adam")
    kept = {path: layer.kept_bytes for path, layer in by_path(seen).items() if layer.kept_bytes}
    first, second = 4 * (WIDTH * WIDTH + WIDTH), 4 * (WIDTH * 8 + 8)
    states = 2 * (first + second) + 4 * 4  # two moments, and four counts of steps
    assert kept == {"0": first, "2": second, OUTSIDE: states}
    expected = {"parameter": first + second, "gradient": first + second, "optimizer": states, "input": SIZE, "other": 0}
    assert bytes_by_kind(seen.tensors) | {"other": 0} == expected


def test_the_first_training_step_has_no_gradients_from_before() -> None:
    seen = seen_of(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))), "momentum")
    assert seen.step_peaks_bytes[0] < seen.step_peaks_bytes[1] == seen.step_peaks_bytes[2] == seen.peak_bytes


class _Doubled(torch.autograd.Function):
    """Takes the double of its input; its backward takes as much space as a hundred activations."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient + torch.zeros(100 * ROWS, WIDTH).narrow(0, 0, ROWS)


def test_a_backward_belongs_to_the_module_whose_forward_it_is_of() -> None:
    seen = seen_of(nn.Sequential(nn.Linear(WIDTH, WIDTH), Functional(_Doubled.apply), nn.Linear(WIDTH, WIDTH)), "none")
    layers = by_path(seen)
    assert seen.peak_at == "1"
    assert layers["1"].allocated_bytes > 100 * SIZE > layers["0"].allocated_bytes + layers["2"].allocated_bytes
    assert layers["1"].peak_bytes == layers[ROOT].peak_bytes == seen.peak_bytes
    assert layers["0"].peak_bytes < 100 * SIZE


def test_a_gradient_that_is_copied_belongs_to_the_module_of_its_parameter() -> None:
    """The gradient of a sum is one number, expanded: the node that accumulates it makes the whole tensor."""
    summing: Any = Applied(lambda module, x: x.mean() + module.weight.sum())
    summing.weight = nn.Parameter(torch.ones(1000))
    layers = by_path(seen_of(nn.Sequential(nn.Tanh(), summing), "sgd"))
    assert layers["1"].kept_bytes == 4000


def checkpointed() -> Any:
    def forward(model: Any, x: torch.Tensor) -> Any:
        for block in model.body:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
        return model.head(x)

    body = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)))
    return Applied(forward, body=body, head=nn.Linear(WIDTH, WIDTH))


def test_what_a_checkpoint_computes_anew_stays_with_its_modules() -> None:
    layers = by_path(seen_of(checkpointed(), "none"))
    assert set(layers) == {OUTSIDE, ROOT, "head", *(f"body.{i}{leaf}" for i in range(2) for leaf in ("", ".0", ".1"))}
    forward = {path: layer.allocated_bytes for path, layer in by_path(seen_of(checkpointed())).items()}
    for block in range(2):
        path = f"body.{block}.1"  # its output, once more, and a gradient of its size
        assert forward[path] == SIZE
        assert layers[path].allocated_bytes == 3 * SIZE
        assert layers[f"body.{block}"].peak_bytes >= layers[path].peak_bytes


def test_a_shared_module_is_called_by_the_name_of_its_caller() -> None:
    shared = nn.Tanh()
    inner = nn.Sequential(shared, shared)
    layers = by_path(seen_of(Applied(lambda model, x: model.inner(model.shared(x)), shared=shared, inner=inner)))
    assert layers["shared"].allocated_bytes == SIZE
    assert layers["inner.0"].allocated_bytes == 2 * SIZE


def test_what_runs_outside_the_model() -> None:
    seen = seen_of(nn.Tanh(), forward=lambda module, x: module(x).exp())
    assert by_path(seen)[OUTSIDE].allocated_bytes == SIZE
    assert (seen.peak_bytes, seen.peak_at) == (2 * SIZE, OUTSIDE)


def test_memory_from_before_makes_nothing_negative() -> None:
    """The model lets go of what it held when it is called for the first time, and keeps what it made last."""

    def forward(module: Any, x: torch.Tensor) -> torch.Tensor:
        module.held = x + 1
        return torch.tanh(x)

    module: Any = Applied(forward)
    with torch.profiler.profile(profile_memory=True):  # so that the profiler knows how large it is
        module.held = torch.zeros(50 * ROWS, WIDTH)
    seen = seen_of(module)
    assert all(moment.bytes >= 0 for moment in seen.timeline)
    assert by_path(seen)[ROOT].kept_bytes == SIZE
    assert seen.peak_bytes == pytest.approx(2 * SIZE, abs=64)  # what it held and what it holds, and numbers on the way


def test_a_compiled_module_is_one_module() -> None:
    module: Any = torch.compile(nn.Sequential(nn.Tanh(), nn.Tanh()), backend="eager")
    model = TorchModel(module, torch.device("cpu"), TorchVariant(compiler="inductor"))
    seen = TorchBackend().allocations(model, Work(model.put(Inputs((torch.randn(ROWS, WIDTH),)))))
    assert (seen.peak_at, seen.step_peaks_bytes[-1]) == (ROOT, 2 * SIZE)
    assert {layer.path for layer in seen.by_layer} == {OUTSIDE, ROOT}


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_callers_tensors_and_our_copies_of_the_model_are_not_in_the_table(mode: Mode) -> None:
    mine, model = torch.ones(12345), nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH))
    seen: Any = sweeprof.Profiler(model, inputs=torch.randn(ROWS, WIDTH), mode=mode).seen("allocations")
    found = bytes_by_kind(seen.tensors)
    parameters = 4 * (WIDTH * WIDTH + 2 * WIDTH)
    assert (found["parameter"], found["buffer"]) == (parameters, 4 * 2 * WIDTH + 8)
    assert found["input"] == SIZE
    assert found.get("gradient", 0) == (parameters if mode == "training" else 0)
    assert found.get("other", 0) == 0
    del mine


class FakeAccelerator:
    """``torch.accelerator`` as far as the meter needs it; each synchronisation moves on to the next figures."""

    def __init__(self) -> None:
        self.now = 0
        self.calls: list[str] = []

    def synchronize(self, device: torch.device) -> None:
        self.now += 1

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.calls.append(f"reset at {self.now}")

    def memory_allocated(self, device: torch.device) -> int:
        return 100 * self.now

    def max_memory_allocated(self, device: torch.device) -> int:
        return 1000

    def max_memory_reserved(self, device: torch.device) -> int:
        return 2000

    def get_memory_info(self, device: torch.device) -> tuple[int, int]:
        return 80_000 - {2: 5, 3: 9, 4: 7}[self.now], 80_000


class History:
    """The history of CUDA's allocator, as torch records it."""

    def __init__(self, is_recorded: bool = False) -> None:
        self.is_recorded = is_recorded
        self.calls: list[str | None] = []

    def record(self, enabled: str | None = "all", max_entries: int = 0, stacks: str = "all") -> None:
        self.calls.append(enabled)
        self.is_recorded = enabled is not None

    def snapshot(self, device: torch.device) -> dict[str, list[str]]:
        assert self.is_recorded
        return {"segments": [str(device)]}


@pytest.mark.parametrize(("kind", "is_recorded"), [("cuda:1", False), ("cuda:1", True), ("cpu", False)])
@pytest.mark.parametrize("fails", [False, True])
def test_the_snapshot_of_an_allocator(
    kind: str, is_recorded: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is recorded on other devices, and a history that the caller records goes on."""
    history = History(is_recorded)
    monkeypatch.setattr(memory, "is_history_recorded", lambda: history.is_recorded)
    monkeypatch.setattr(memory, "record_memory_history", history.record)
    monkeypatch.setattr(memory, "memory_snapshot", history.snapshot)
    with suppress(ValueError), memory.snapshot_of(torch.device(kind)) as files:
        assert history.is_recorded == (kind != "cpu")
        if fails:
            raise ValueError("the model failed")
    is_taken = kind == "cuda:1" and not is_recorded
    assert history.calls == (["all", None] if is_taken else [])
    assert history.is_recorded == is_recorded
    assert list(files) == (["memory_snapshot.pickle"] if is_taken and not fails else [])
    for content in files.values():
        assert pickle.loads(content) == {"segments": ["cuda:1"]}


@pytest.mark.parametrize("process", [[30, 50, 40], None])
def test_the_figures_of_an_accelerator(process: list[int] | None) -> None:
    accelerator = FakeAccelerator()
    own = iter(process or ())
    meter = AcceleratorMeter(torch.device("cuda"), accelerator, lambda: next(own, None))
    meter.begin()
    for _ in range(3):
        meter.stepped()
    assert accelerator.calls == ["reset at 1"]
    assert meter.result() == {
        "allocated_pre_bytes": 100,
        "allocated_peak_bytes": 1000,
        "allocated_post_bytes": 400,
        "reserved_peak_bytes": 2000,
        "device_peak_bytes": 9,
        **({"process_peak_bytes": 50} if process else {}),
    }
