"""Lines of torch modules: bytes by hand, and whose functions are watched."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from sweeprof.backends.torch.memory import _memory_on, lines
from sweeprof.backends.torch.model import TorchModel
from sweeprof.errors import Unsupported
from sweeprof.measuring import line_profile as lines_module
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.line_profile import WARMUP
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.results.observations import Line, Lines

MIB = 1 << 20
CPU = torch.device("cpu")
STEPS = 4


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "STEPS", STEPS)


def watch(module: nn.Module, *inputs: torch.Tensor, functions: tuple[str, ...] = (), training: bool = False) -> Lines:
    work = Work(Inputs(inputs), training=TrainingConfig() if training else None)
    return lines(TorchModel(module.eval(), CPU), work, functions)


def by_text(seen: Lines, function: int = 0) -> dict[str, Line]:
    return {line.source.strip(): line for line in seen.functions[function].lines}


class Allocating(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = torch.empty(1 << 20)
        torch.empty(1 << 19)
        for _ in range(2):
            y = x * 2
        return y[:1] + kept[:1]


def test_bytes_are_those_of_the_tensors() -> None:
    seen = watch(Allocating(), torch.zeros(1 << 20))
    assert seen.memory_reason is None
    assert [function.name for function in seen.functions] == [f"{__name__}.Allocating.forward"]
    assert seen.functions[0].first_line == Allocating.forward.__code__.co_firstlineno
    found = {t: (line.allocated_bytes, line.peak_bytes) for t, line in by_text(seen).items() if line.hits}
    expected = {
        "kept = torch.empty(1 << 20)": (4 * MIB, 4 * MIB),
        "torch.empty(1 << 19)": (2 * MIB, 0),
        "for _ in range(2):": (0, 0),
        "y = x * 2": (8 * MIB, 8 * MIB),  # the second is made while the first is still there
        "return y[:1] + kept[:1]": (0, 0),
    }
    # Beside tensors there are Python's own objects and torch's.
    assert found == {text: pytest.approx(bytes, rel=0.01, abs=0.02 * MIB) for text, bytes in expected.items()}
    hits = {text: line.hits // seen.steps for text, line in by_text(seen).items() if line.hits}
    assert hits == {**dict.fromkeys(expected, 1), "for _ in range(2):": 3, "y = x * 2": 2}


class Deep(nn.Module):
    """Four results of 4 MiB, all of which a backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x * self.weight).expand(1 << 20)
        for _ in range(4):
            x = x.exp()
        return x


@pytest.mark.parametrize(("training", "alive"), [(False, 2), (True, 4)])
def test_what_a_training_step_keeps_for_its_backward_is_there_at_the_peak(training: bool, alive: int) -> None:
    line = by_text(watch(Deep(), torch.zeros(1), training=training))["x = x.exp()"]
    # Beside tensors there is what torch and its libraries set up when they are first needed, some hundred KiB at most.
    assert line.allocated_bytes == pytest.approx(4 * 4 * MIB, rel=0.05)
    assert line.peak_bytes == pytest.approx(alive * 4 * MIB, rel=0.05, abs=0.5 * MIB)


@pytest.mark.slow
def test_a_training_step_is_a_whole_one() -> None:
    module = nn.Linear(4, 4)
    before = module.weight.detach().clone()
    watch(module, torch.ones(1, 4))
    assert torch.equal(module.weight, before)
    config = TrainingConfig(functools.partial(torch.optim.SGD, lr=0.01))
    lines(TorchModel(module, CPU), Work(Inputs((torch.ones(1, 4),)), training=config), ())
    moved = (before - module.weight).mean().item()  # the gradient of a mean of four outputs is 1/4
    assert moved == pytest.approx((WARMUP + STEPS + 1) * 0.01 / 4, rel=0.01)


def test_a_container_is_python_too() -> None:
    seen = watch(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.zeros(1, 4))
    assert seen.functions[0].name == "torch.nn.modules.container.Sequential.forward"
    assert by_text(seen)["input = module(input)"].hits == 2 * seen.steps


def test_functions_of_any_layer_are_watched_by_the_name_of_its_class() -> None:
    class Local(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    seen = watch(nn.Sequential(nn.Linear(4, 4), Local(), Local()), torch.zeros(1, 4), functions=("Local.forward",))
    assert by_text(seen)["return x + 1"].hits == 2 * seen.steps


def test_what_does_not_run_as_written_is_not_supported() -> None:
    from torch._dynamo import OptimizedModule

    in_place = nn.Linear(4, 4)
    in_place.compile(backend="eager")
    with pytest.raises(Unsupported, match="compiled"):
        watch(in_place, torch.zeros(1, 4))
    with pytest.raises(Unsupported, match="compiled"):
        watch(OptimizedModule(nn.Linear(4, 4), lambda forward: forward), torch.zeros(1, 4))  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="Python function"):
        watch(nn.Linear(4, 4), torch.zeros(1, 4), functions=("torch.relu",))


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_scripted_model_is_not_run_by_python() -> None:
    with pytest.raises(Unsupported, match="scripted"):
        watch(torch.jit.script(nn.Linear(4, 4)), torch.zeros(1, 4))


def test_a_device_without_statistics_has_a_reason() -> None:
    found = _memory_on(torch.device("mps"))([], lambda: None)
    assert found.reason == "the allocator of mps keeps no statistics"
