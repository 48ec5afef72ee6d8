"""Profilers that time layers, ours among them: what each sees of some steps, every step beside one without a profiler."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from benchmarks.counters import quiet
from torch import nn

from sweeprof import Profiler
from sweeprof.results.layer_times import LayerTimes, Mode
from sweeprof.results.record import Protocol


class Spent(NamedTuple):
    """One phase of one step, in seconds of the wall's clock and of the processor's, which other programs hardly disturb."""

    wall: float
    processor: float


@dataclass(frozen=True)
class Reported:
    """One phase of one step with a profiler."""

    spent: float
    """With the probes, by a clock outside them, the one that times :attr:`Pair.plain`; seconds."""
    parts: float
    """The sum of what is reported for the parts that do not overlap, over what the phase took with the probes."""
    model: float | None = None
    """What is reported for the model, over the same; None where nothing is."""


@dataclass(frozen=True)
class Pair:
    """The same phase of two steps: without a profiler, in seconds, and with it."""

    plain: float
    reported: Reported


Watch = Callable[[nn.Module, torch.Tensor, int], list[Pair]]
"""Steps a model so many times with a profiler, which leaves it as it was, and as often without."""
Phase = Callable[[nn.Module, torch.Tensor], Spent]
"""A phase of one step."""
Step = Callable[[nn.Module, torch.Tensor], Reported]
"""A step to warm up, and one that counts, in one session of a profiler."""


@dataclass(frozen=True)
class LayerProfiler:
    """A profiler."""

    name: str
    forward: Watch
    """Of inference."""
    backward: Watch | None = None
    """The backward of training steps; None for one that does not time it."""
    module: str = "torch"
    """What must be importable."""

    def is_installed(self) -> bool:
        """Whether it can be imported."""
        with warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")
            try:
                import_module(self.module)
            except Exception:  # missing, or broken by what is installed beside it
                return False
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        return True


def forward_s(module: nn.Module, given: torch.Tensor) -> Spent:
    """One forward."""
    begin = _now()
    module(given)
    return _since(begin)


def backward_s(module: nn.Module, given: torch.Tensor) -> Spent:
    """The backward of one training step."""
    loss = module(given).mean()
    _clear_gradients(module)
    begin = _now()
    loss.backward()
    return _since(begin)


def _now() -> Spent:
    return Spent(time.perf_counter(), time.process_time())


def _since(begin: Spent) -> Spent:
    end = _now()
    return Spent(end.wall - begin.wall, end.processor - begin.processor)


class _NoOptimizer:
    """Does not clear the gradients either, which would count as backward."""

    def __init__(self, parameters: object) -> None:
        """None is kept."""

    def zero_grad(self, set_to_none: bool) -> None:
        """Nothing: the forward has done it."""

    def step(self) -> None:
        """Nothing."""


@dataclass(frozen=True)
class _Noted:
    """How ours is told to call the model and what to differentiate, so that the phase's processor time is seen from outside."""

    mode: Mode
    module: nn.Module
    plain: list[float] = field(default_factory=list)
    probed: list[float] = field(default_factory=list)

    def forward(self, module: nn.Module, given: torch.Tensor) -> Any:
        if self.mode == "training":
            _clear_gradients(module)
            return module(given)
        begin = time.process_time()
        outputs = module(given)
        self._note(begin)
        return outputs

    def loss(self, outputs: torch.Tensor, _targets: None) -> torch.Tensor:
        loss = outputs.mean()
        loss.register_hook(self._backward_begun)  # type: ignore[no-untyped-call]
        return loss

    def _backward_begun(self, _gradient: torch.Tensor) -> None:
        begin = time.process_time()
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: self._note(begin))

    def _note(self, begin: float) -> None:
        noted = self.probed if "forward" in vars(self.module) else self.plain
        noted.append(time.process_time() - begin)


def _clear_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def _ours(mode: Mode, module: nn.Module, given: torch.Tensor, steps: int) -> list[Pair]:
    """It takes both steps of a pair itself; its parts are every call's own time, and what runs outside any module."""
    protocol = Protocol(min_samples=steps, min_s=0, max_s=600)
    noted = _Noted(mode, module)
    profiler = Profiler(
        module,
        inputs=given,
        protocol=protocol,
        mode=mode,
        optimizer=_NoOptimizer,
        loss=noted.loss,
        forward=noted.forward,
    )
    times = profiler.seen("layer_times")
    assert isinstance(times, LayerTimes)
    phase = times.forward if mode == "inference" else times.backward
    assert phase is not None
    calls = [call.forward if mode == "inference" else call.backward for call in times.calls]
    sums = [sum(repeats) for repeats in zip(*(call for call in calls if call), strict=True)]
    columns = (noted.plain, noted.probed, phase.probed, sums, calls[0])
    return [
        Pair(alone, Reported(spent, total / whole, (total - outside) / whole))
        for alone, spent, whole, total, outside in zip(*(column[-steps:] for column in columns), strict=True)
    ]


def _in_turns(step: Step, phase: Phase, module: nn.Module, given: torch.Tensor, steps: int) -> list[Pair]:
    pairs = []
    for _ in range(steps):
        phase(module, given)
        pairs.append(Pair(phase(module, given).processor, step(module, given)))
    return pairs


def _leaves(module: nn.Module) -> list[nn.Module]:
    return [inner for inner in module.modules() if not list(inner.children())]


def _by_flops(package: str, module: nn.Module, given: torch.Tensor) -> Reported:
    """flops-profiler, and the one it was made from; they time modules while they count."""
    session = import_module(package).FlopsProfiler(module)
    with _functions_kept():
        session.start_profile()
        try:
            module(given)
            session.reset_profile()
            whole = forward_s(module, given)
            parts = sum(vars(leaf)["__duration__"] for leaf in _leaves(module))
            return Reported(whole.processor, parts / whole.wall, session.get_total_duration() / whole.wall)
        finally:
            session.end_profile()


@contextmanager
def _functions_kept() -> Iterator[None]:
    """flops-profiler leaves ``torch.matmul`` in the place of ``torch.bmm``."""
    kept = torch.bmm
    try:
        yield
    finally:
        torch.bmm = kept


class _Clocked(nn.Module):
    """A model around a model that notes how long its steps take: for a profiler that makes them itself."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.steps: list[Spent] = []

    def forward(self, given: torch.Tensor) -> None:
        self.steps.append(forward_s(self.inner, given))


def _by_moduleprofiler(module: nn.Module, given: torch.Tensor) -> Reported:
    clocked = _Clocked(module).eval()
    profiler = import_module("moduleprofiler").ModuleProfiler()
    found = profiler.estimate_inference_time(clocked, given, num_iters=2, drop_first=1)
    seconds = {name: times["inference_time_ms"][-1] / 1e3 for name, times in found.items()}
    leaves = [name for name, inner in clocked.named_modules() if not list(inner.children())]
    parts = sum(seconds[name] for name in leaves)
    whole = clocked.steps[-1]
    return Reported(whole.processor, parts / whole.wall, seconds["inner"] / whole.wall)


class _Hooks:
    """nnprofiler's way: four hooks on every leaf, a stamp of the processor's clock in each, the last call of a module only.

    It is on no package index. It reports nothing without a backward; what its stamps say of a forward is taken all the same.
    """

    def __init__(self, module: nn.Module) -> None:
        self._handles: list[Any] = []
        self._stamps: list[dict[str, int]] = []
        for leaf in _leaves(module):
            stamps: dict[str, int] = {}
            self._stamps.append(stamps)
            self._handles += [
                leaf.register_forward_pre_hook(_stamp(stamps, "forward begin")),
                leaf.register_forward_hook(_stamp(stamps, "forward end")),
                leaf.register_full_backward_pre_hook(_stamp(stamps, "backward begin")),
                leaf.register_full_backward_hook(_stamp(stamps, "backward end")),
            ]

    def seconds(self, phase: str) -> float:
        """Of all leaves; one whose end is not after its beginning is left out."""
        spans = (stamps.get(f"{phase} end", 0) - stamps.get(f"{phase} begin", 0) for stamps in self._stamps)
        return sum(max(0, span) for span in spans) / 1e9

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _stamp(stamps: dict[str, int], name: str) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        stamps[name] = time.process_time_ns()

    return hook


def _by_hooks(phase: Phase, name: str, module: nn.Module, given: torch.Tensor) -> Reported:
    hooks = _Hooks(module)
    try:
        phase(module, given)
        whole = phase(module, given).processor
        return Reported(whole, hooks.seconds(name) / whole)
    finally:
        hooks.remove()


OURS = LayerProfiler("sweeprof", partial(_ours, "inference"), partial(_ours, "training"))


def _peer(name: str, module: str, step: Step) -> LayerProfiler:
    return LayerProfiler(name, partial(_in_turns, step, forward_s), module=module)


_FLOPS, _DEEPSPEED = "flops_profiler.profiler", "deepspeed.profiling.flops_profiler"
PEERS = (
    _peer("flops-profiler", _FLOPS, partial(_by_flops, _FLOPS)),
    _peer("DeepSpeed's profiler", _DEEPSPEED, partial(_by_flops, _DEEPSPEED)),
    _peer("moduleprofiler", "moduleprofiler", _by_moduleprofiler),
    LayerProfiler(
        "nnprofiler's hooks",
        partial(_in_turns, partial(_by_hooks, forward_s, "forward"), forward_s),
        partial(_in_turns, partial(_by_hooks, backward_s, "backward"), backward_s),
    ),
)
