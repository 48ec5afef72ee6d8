"""What probes cost and what the times of the layers add up to, beside other profilers in the same run; and layers of Keras.

Every profiler has a model of its own, takes turns with the others, and each of its steps is compared with one beside it that has no
profiler, in processor time. Where others report leaves, ours reports what every call took itself.
"""

from __future__ import annotations

import copy
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from benchmarks.measured import is_importable, lasting, one_thread, quiet
from benchmarks.models import LAYERED, Layered
from keras import layers
from torch import nn

from sweeprof import Profiler
from sweeprof.backends.tensorflow.adapter import TensorflowBackend
from sweeprof.backends.tensorflow.model import ExecutionMode
from sweeprof.errors import UserError
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.results.layer_times import OUTSIDE, LayerTimes, Mode
from sweeprof.results.record import Protocol


class Spent(NamedTuple):
    """One phase of one step, in seconds of the wall's clock and of the processor's, which other programs hardly disturb."""

    wall: float
    processor: float


class Reported(NamedTuple):
    """One phase of one step with a profiler."""

    spent: float
    """With the probes, by a clock outside them, the one that times :attr:`Pair.plain`; seconds."""
    parts: float
    """The sum of what is reported for the parts that do not overlap, over what the phase took with the probes."""
    model: float | None = None
    """What is reported for the model, over the same; None where nothing is."""


class Pair(NamedTuple):
    """The same phase of two steps: without a profiler, in seconds, and with it."""

    plain: float
    reported: Reported


Watch = Callable[[nn.Module, torch.Tensor, int], list[Pair]]
"""Steps a model so many times with a profiler, which leaves it as it was, and as often without."""
Phase = Callable[[nn.Module, torch.Tensor], Spent]
"""A phase of one step."""
Step = Callable[[nn.Module, torch.Tensor], Reported]
"""A step to warm up, and one that counts, in one session of a profiler."""


class LayerProfiler(NamedTuple):
    """A profiler."""

    name: str
    forward: Watch
    """Of inference."""
    backward: Watch | None = None
    """The backward of training steps; None for one that does not time it."""
    module: str = "torch"
    """What must be importable."""


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


_HOOKS: dict[str, Callable[..., Any]] = {
    "forward begin": nn.Module.register_forward_pre_hook,
    "forward end": nn.Module.register_forward_hook,
    "backward begin": nn.Module.register_full_backward_pre_hook,
    "backward end": nn.Module.register_full_backward_hook,
}


def _stamp(stamps: dict[str, int], name: str) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        stamps[name] = time.process_time_ns()

    return hook


def _by_hooks(phase: Phase, name: str, module: nn.Module, given: torch.Tensor) -> Reported:
    """nnprofiler's way: four hooks on every leaf, a stamp of the processor's clock in each, the last call of a module only.

    It is on no package index. It reports nothing without a backward; what its stamps say of a forward is taken all the same.
    A leaf whose end is not after its beginning is left out.
    """
    handles: list[Any] = []
    leaves: list[dict[str, int]] = []
    for leaf in _leaves(module):
        leaves.append({})
        handles += [register(leaf, _stamp(leaves[-1], kind)) for kind, register in _HOOKS.items()]
    try:
        phase(module, given)
        whole = phase(module, given).processor
        spans = [stamps.get(f"{name} end", 0) - stamps.get(f"{name} begin", 0) for stamps in leaves]
        return Reported(whole, sum(max(0, span) for span in spans) / 1e9 / whole)
    finally:
        for handle in handles:
            handle.remove()


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


TURNS = 5


def _quick(seconds: Iterable[float]) -> float:
    """The lower quartile: other programs disturb it less than the median, and a single lucky step does not move it."""
    return statistics.quantiles(seconds, n=4)[0]


@dataclass(frozen=True)
class Ratios:
    """Each over what the same phase takes without a profiler."""

    whole: float
    """The phase with the probes: what they cost."""
    parts: float
    """The sum of what is reported for the parts."""
    model: float | None
    """What is reported for the model."""

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Ratios:
        reported = [pair.reported for pair in pairs]
        whole = _quick(each.spent for each in reported) / _quick(pair.plain for pair in pairs)
        models = [each.model for each in reported if each.model is not None]
        parts = statistics.median(each.parts for each in reported)
        return cls(whole, whole * parts, whole * statistics.median(models) if models else None)

    @property
    def error(self) -> float:
        return abs(self.parts - 1)


class Taken(NamedTuple):
    """A profiler with its model."""

    name: str
    watch: Watch
    module: nn.Module


@pytest.fixture
def alone() -> Iterator[None]:
    """One thread, and no warnings of DeepSpeed."""
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    with one_thread():
        yield


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("timed", LAYERED, ids=lambda timed: timed.name)
def test_forward(timed: Layered) -> None:
    installed = [peer for peer in PEERS if is_importable(peer.module)]
    missing = ", ".join(peer.name for peer in PEERS if peer not in installed) or "none"
    module = _made(timed, in_place=True).eval()
    taken = [Taken(each.name, each.forward, copy.deepcopy(module)) for each in (OURS, *installed)]
    with torch.inference_mode():
        _assert_ours_is_best(f"{timed.name}, inference; not installed: {missing}", _measured(timed, taken))


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("timed", LAYERED, ids=lambda timed: timed.name)
def test_backward(timed: Layered) -> None:
    taken, notes = [], ""
    for each in (OURS, *PEERS):
        if each.backward is None or not is_importable(each.module):
            continue
        in_place = _can_work_in_place(each, timed)
        taken.append(Taken(each.name, each.backward, _made(timed, in_place).train()))
        notes += (
            "" if in_place else f"; {each.name} raises where layers work in place and has a model whose layers do not"
        )
    _assert_ours_is_best(f"{timed.name}, backward{notes}", _measured(timed, taken))


def _made(timed: Layered, in_place: bool) -> nn.Module:
    torch.manual_seed(0)
    module = timed.make(in_place)
    assert sum(parameter.numel() for parameter in module.parameters()) == timed.params
    return module


def _can_work_in_place(profiler: LayerProfiler, timed: Layered) -> bool:
    assert profiler.backward is not None
    try:
        with quiet():
            profiler.backward(_made(timed, in_place=True).train(), torch.randn(timed.shape), 1)
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        return False
    return True


def _measured(timed: Layered, taken: Sequence[Taken]) -> dict[str, Ratios]:
    given = torch.randn(timed.shape)
    pairs: dict[str, list[Pair]] = {each.name: [] for each in taken}
    with quiet():
        for _ in range(TURNS):
            for each in taken:
                pairs[each.name] += each.watch(each.module, given, timed.steps)
    return {name: Ratios.of(found) for name, found in pairs.items()}


def _assert_ours_is_best(title: str, ratios: dict[str, Ratios]) -> None:
    print(f"\n{title}\n{'over without a profiler':<24}{'with probes':>14}{'sum of parts':>14}{'model':>14}")
    for name, found in ratios.items():
        model = "-" if found.model is None else f"{found.model:.3f}"
        print(f"{name:<24}{found.whole:>14.3f}{found.parts:>14.3f}{model:>14}", flush=True)
    ours = ratios[OURS.name]
    for name, theirs in ratios.items():
        if name != OURS.name:
            assert ours.whole < theirs.whole, f"our probes cost more than those of {name}"
            assert ours.error < theirs.error, f"our parts add up to the whole less well than those of {name}"


# Keras


# Both kinds of steps take turns. The bound is that of the layers of torch (tests/unit/backends/test_torch_layer_times.py): five per
# cent in each direction. It is asked of the best of several attempts, as nothing but the wall clock tells when a graph's operator
# ran, and another program may take the processor.
ATTEMPTS = 10
BOUND = 0.05
PROTOCOL = Protocol(warmup_steps=3, warmup_s=0.5, min_samples=30, min_s=1.0, max_s=20.0)


@pytest.fixture(autouse=True, scope="module")
def few_threads() -> None:
    """Where TensorFlow has not run yet in this process; else it stays with the threads that it has."""
    with suppress(UserError):
        TensorflowBackend().configure(seed=0)


def lenet5() -> Any:
    convolution, pooling = partial(layers.Conv2D, activation="tanh"), layers.AveragePooling2D
    features = [convolution(6, 5, padding="same"), pooling(2), convolution(16, 5), pooling(2), layers.Flatten()]
    dense = [layers.Dense(units, activation="tanh") for units in (120, 84)]
    return keras.Sequential([keras.Input((28, 28, 1)), *features, *dense, layers.Dense(10)])


def mobilenet() -> Any:
    return keras.applications.MobileNetV2((96, 96, 3), weights=None, classes=10)


def lstm() -> Any:
    recurrent = [layers.LSTM(64, return_sequences=True), layers.LSTM(64)]
    return keras.Sequential(
        [keras.Input((20,), dtype="int32"), layers.Embedding(100, 64), *recurrent, layers.Dense(10)]
    )


def vit() -> Any:
    inputs = keras.Input((32, 32, 3))
    x = layers.Reshape((64, 64))(layers.Conv2D(64, 4, 4)(inputs))
    for _ in range(4):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 16)(y, y)])
        y = layers.Dense(64)(layers.Dense(256, activation="gelu")(layers.LayerNormalization()(x)))
        x = layers.Add()([x, y])
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


class Timed(NamedTuple):
    """A model and one batch."""

    make: Callable[[], Any]
    shape: tuple[int, ...]
    dtype: str = "float32"


MODELS = {
    "LeNet-5": Timed(lenet5, (32, 28, 28, 1)),
    "MobileNetV2": Timed(mobilenet, (4, 96, 96, 3)),
    "LSTM": Timed(lstm, (32, 20), "int32"),
    "ViT": Timed(vit, (8, 32, 32, 3)),
}


def layer_times(
    timed: Timed, mode: ExecutionMode, trains: bool, attempts: int
) -> tuple[LayerTimes, list[tuple[float, ...]]]:
    """The last times, and the sums over the whole of each attempt: forward and, where it trains, backward."""
    backend = TensorflowBackend(mode=mode)
    model = backend.load(timed.make, "cpu", None)
    batch = model.put(Inputs.of(np.random.default_rng(0).integers(0, 2, timed.shape).astype(timed.dtype)))
    work, seen = Work(batch, None, TrainingConfig("none", "mean") if trains else None), []
    for _ in range(attempts):
        times = backend.layer_times(model, work, PROTOCOL)
        covered = [times.forward_covered, *([times.backward_covered] if trains else [])]
        seen.append(tuple(each for each in covered if each is not None))
        if all(abs(each - 1) <= BOUND for each in seen[-1]):
            break
    return times, seen


@pytest.mark.timeout(900)
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mode", ["function", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_the_layers_add_up_to_the_step(name: str, mode: ExecutionMode, trains: bool) -> None:
    times, seen = layer_times(MODELS[name], mode, trains, ATTEMPTS)
    best = min(seen, key=lambda each: max(abs(part - 1) for part in each))
    overhead = [part.overhead for part in (times.summary.forward, times.summary.backward) if part is not None]
    outside = times.summary.forward.outside_s / (times.summary.forward.plain_s or 1.0)
    print(
        f"\n{name:<12} {mode:<9} {'training' if trains else 'inference':<10} {len(times.calls) - 1:>4} calls"
        f"  sum over whole {' '.join(f'{part:.3f}' for part in best)}  with probes {' '.join(f'{o or 0:.3f}' for o in overhead)}"
        f"  outside layers {outside:.2f}  attempts {len(seen)}"
        f"  threads {tf.config.threading.get_intra_op_parallelism_threads()}  load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    assert all(abs(part - 1) <= BOUND for part in best), f"forward and backward: {seen}"


REPEATED = 3
"""Calls of a layer in one graph."""


@pytest.mark.timeout(300)
def test_layers_take_as_long_as_when_they_run_alone() -> None:
    """Alone a layer finds its inputs and its weights in the caches; the quickest of many calls each, whatever else runs."""
    timed = MODELS["LeNet-5"]._replace(shape=(64, 28, 28, 1))
    times, _ = layer_times(timed, "function", trains=False, attempts=3)
    model = timed.make()
    shapes = {layer.name: (timed.shape[0], *layer.input.shape[1:]) for layer in model.layers}
    order = [call for call in times.calls if call.path not in (OUTSIDE, times.calls[1].path)]
    ratios = {}
    for call, layer in zip(order, model.layers, strict=True):
        inside = min(call.forward[times.warmup :])
        ratios[call.path] = (inside, _alone(layer, tf.ones(shapes[layer.name])))
    print()
    for path, (inside, alone) in ratios.items():
        print(
            f"{path:<24} in the model {inside * 1e6:8.1f} µs, alone {alone * 1e6:8.1f} µs, ratio {inside / alone:.2f}"
        )
    heavy = [pair for pair in ratios.values() if pair[0] > 5e-5]
    assert heavy
    assert 0.75 < sum(inside for inside, _ in heavy) / sum(alone for _, alone in heavy) < 2


def _alone(layer: Any, given: Any) -> float:
    """Seconds of one call, from a graph that calls the layer again and again, without what calling a graph takes."""

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def graph(x: Any, count: int) -> Any:
        ends: list[Any] = []
        for _ in range(count):
            with tf.control_dependencies(ends[-1:]):
                given = tf.identity(x)
            # Of each call one number is returned: what is not needed is not computed, and what waits is not fused.
            ends.append(tf.reshape(layer(given), [-1])[:1])
        return ends

    many, one = _quickest(lambda: graph(given, REPEATED)), _quickest(lambda: graph(given, 1))
    return (many - one) / (REPEATED - 1)


def _quickest(step: Callable[[], object]) -> float:
    step()
    return min(lasting(step) for _ in range(300))
