"""What probes cost and what the times of the layers add up to, beside other profilers in the same run; and layers of Keras.

Every profiler has a model of its own, takes turns with the others, and each of its steps is compared with one beside it that has no
profiler, in processor time. Where others report leaves, ours reports what every call took itself.
"""

from __future__ import annotations

import copy
import logging
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import torch
from benchmarks.measured import is_importable, one_thread, quiet
from benchmarks.models import LAYERED, Made
from keras import layers
from torch import nn

from sweeprof import Profiler
from sweeprof.backends.tensorflow.adapter import TensorflowBackend
from sweeprof.errors import UserError
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.results.layer_times import LayerTimes, Mode
from sweeprof.results.record import Protocol
from sweeprof.zoo import lenet5

TURNS = 5


class Pair(NamedTuple):
    """The same phase of two steps, without a profiler and with it."""

    plain: float
    """Processor seconds, which other programs hardly disturb."""
    probed: float
    """The same with the profiler, by a clock outside it."""
    parts: float
    """The sum of what it reports for parts that do not overlap, over what the phase took with it."""


Watch = Callable[[nn.Module, torch.Tensor, int], list[Pair]]
"""Steps a model so many times with a profiler, which leaves it as it was, and as often without."""
Phase = Callable[[nn.Module, torch.Tensor], tuple[float, float]]
"""A phase of one step; returns seconds of the wall's clock, and of the processor's."""
Step = Callable[[nn.Module, torch.Tensor], tuple[float, float]]
"""A step to warm up, and one that counts, in one session of a profiler; returns a pair's ``probed`` and ``parts``."""


def timed(run: Callable[[], object]) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - processor


def forward_s(module: nn.Module, given: torch.Tensor) -> tuple[float, float]:
    return timed(lambda: module(given))


def backward_s(module: nn.Module, given: torch.Tensor) -> tuple[float, float]:
    loss = module(given).mean()
    module.zero_grad()
    return timed(loss.backward)


def ours(mode: Mode, module: nn.Module, given: torch.Tensor, steps: int) -> list[Pair]:
    """It takes both steps of a pair itself; its parts are every call's own time, and what runs outside any module."""
    noted: dict[bool, list[float]] = {True: [], False: []}
    """Processor seconds of the phase in steps with probes and without."""

    def note(begin: float) -> None:
        noted["forward" in vars(module)].append(time.process_time() - begin)

    def forward(module: nn.Module, given: torch.Tensor) -> Any:
        if mode == "training":
            module.zero_grad()
            return module(given)
        begin = time.process_time()
        outputs = module(given)
        note(begin)
        return outputs

    def backward_begins(_gradient: torch.Tensor) -> None:
        begin = time.process_time()
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: note(begin))

    def loss(outputs: torch.Tensor, _targets: None) -> torch.Tensor:
        mean = outputs.mean()
        mean.register_hook(backward_begins)  # type: ignore[no-untyped-call]
        return mean

    protocol = Protocol(min_samples=steps, min_s=0, max_s=600)
    options: dict[str, Any] = {"mode": mode, "optimizer": "none", "loss": loss, "forward": forward}
    times = Profiler(module, inputs=given, protocol=protocol, **options).seen("layer_times")
    assert isinstance(times, LayerTimes)
    phase = times.forward if mode == "inference" else times.backward
    assert phase is not None
    calls = [call.forward if mode == "inference" else call.backward for call in times.calls]
    sums = [sum(repeats) for repeats in zip(*(call for call in calls if call), strict=True)]
    columns = (noted[False], noted[True], phase.probed, sums)
    rows = zip(*(column[-steps:] for column in columns), strict=True)
    return [Pair(plain, probed, total / whole) for plain, probed, whole, total in rows]


def in_turns(step: Step, phase: Phase, module: nn.Module, given: torch.Tensor, steps: int) -> list[Pair]:
    pairs = []
    for _ in range(steps):
        phase(module, given)
        pairs.append(Pair(phase(module, given)[1], *step(module, given)))
    return pairs


def leaves(module: nn.Module) -> dict[str, nn.Module]:
    return {name: inner for name, inner in module.named_modules() if not list(inner.children())}


def by_flops(package: str, module: nn.Module, given: torch.Tensor) -> tuple[float, float]:
    """flops-profiler, and the one it was made from; they time modules while they count."""
    session = import_module(package).FlopsProfiler(module)
    bmm = torch.bmm  # flops-profiler leaves ``torch.matmul`` in its place
    session.start_profile()
    try:
        module(given)
        session.reset_profile()
        wall, processor = forward_s(module, given)
        return processor, sum(vars(leaf)["__duration__"] for leaf in leaves(module).values()) / wall
    finally:
        session.end_profile()
        torch.bmm = bmm


class Clocked(nn.Module):
    """A model around a model that notes how long its steps take: for a profiler that makes them itself."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, given: torch.Tensor) -> None:
        self.last = forward_s(self.inner, given)


def by_moduleprofiler(module: nn.Module, given: torch.Tensor) -> tuple[float, float]:
    clocked = Clocked(module).eval()
    profiler = import_module("moduleprofiler").ModuleProfiler()
    found = profiler.estimate_inference_time(clocked, given, num_iters=2, drop_first=1)
    parts = sum(found[name]["inference_time_ms"][-1] / 1e3 for name in leaves(clocked))
    wall, processor = clocked.last
    return processor, parts / wall


def by_hooks(phase: Phase, name: str, module: nn.Module, given: torch.Tensor) -> tuple[float, float]:
    """nnprofiler's way: four hooks on every leaf, a stamp of the processor's clock in each, the last call of a module only.

    It is on no package index. It reports nothing without a backward; what its stamps say of a forward is taken all the same.
    A leaf whose end is not after its beginning is left out.
    """
    stamps: dict[tuple[str, str], float] = {}
    handles: list[Any] = []

    def stamp(*key: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            stamps[key[0], key[1]] = time.process_time()

        return hook

    for path, leaf in leaves(module).items():
        handles.append(leaf.register_forward_pre_hook(stamp(path, "forward begin")))
        handles.append(leaf.register_forward_hook(stamp(path, "forward end")))
        handles.append(leaf.register_full_backward_pre_hook(stamp(path, "backward begin")))
        handles.append(leaf.register_full_backward_hook(stamp(path, "backward end")))
    try:
        phase(module, given)
        processor = phase(module, given)[1]
    finally:
        for handle in handles:
            handle.remove()
    parts = 0.0
    for path in leaves(module):
        parts += max(0.0, stamps.get((path, f"{name} end"), 0) - stamps.get((path, f"{name} begin"), 0))
    return processor, parts / processor


FLOPS, DEEPSPEED = "flops_profiler.profiler", "deepspeed.profiling.flops_profiler"
PROFILERS: dict[str, dict[str, tuple[str, Watch]]] = {
    "forward": {
        "sweeprof": ("torch", partial(ours, "inference")),
        "flops-profiler": (FLOPS, partial(in_turns, partial(by_flops, FLOPS), forward_s)),
        "DeepSpeed's profiler": (DEEPSPEED, partial(in_turns, partial(by_flops, DEEPSPEED), forward_s)),
        "moduleprofiler": ("moduleprofiler", partial(in_turns, by_moduleprofiler, forward_s)),
        "nnprofiler's hooks": ("torch", partial(in_turns, partial(by_hooks, forward_s, "forward"), forward_s)),
    },
    "backward": {
        "sweeprof": ("torch", partial(ours, "training")),
        "nnprofiler's hooks": ("torch", partial(in_turns, partial(by_hooks, backward_s, "backward"), backward_s)),
    },
}
"""By the phase that they time, of inference and of training steps: what must be importable, and how they watch it."""


def quick(seconds: Iterable[float]) -> float:
    """The lower quartile: other programs disturb it less than the median, and a single lucky step does not move it."""
    return statistics.quantiles(seconds, n=4)[0]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize(("made", "steps"), LAYERED)
def test_our_probes_cost_least_and_our_parts_add_up_best(made: Made, steps: int, phase: str) -> None:
    """A forward in inference and the backward of training, over the same without a profiler."""
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    given = torch.randn(made.shape)
    pairs: dict[str, list[Pair]] = {}
    with one_thread(), quiet(), torch.set_grad_enabled(phase == "backward"):
        taken = {name: watch for name, (package, watch) in PROFILERS[phase].items() if is_importable(package)}
        module = made.make().train(phase == "backward")
        models = {name: copy.deepcopy(module) for name in taken}
        for _ in range(TURNS):
            for name, watch in list(taken.items()):
                try:
                    pairs.setdefault(name, []).extend(watch(models[name], given, steps))
                except TypeError as error:  # moduleprofiler, of a model with a module that is never called
                    print(f"\n{name} fails: {error}")
                    del taken[name], pairs[name]
    print(f"\n{made.name}, {phase} over that without a profiler{'with probes':>14}{'sum of parts':>14}")
    whole: dict[str, float] = {}
    parts: dict[str, float] = {}
    for name, found in pairs.items():
        whole[name] = quick(pair.probed for pair in found) / quick(pair.plain for pair in found)
        parts[name] = whole[name] * statistics.median(pair.parts for pair in found)
        print(f"{name:<24}{whole[name]:>14.3f}{parts[name]:>14.3f}", flush=True)
    for name in pairs.keys() - {"sweeprof"}:
        assert whole["sweeprof"] < whole[name], name
        assert abs(parts["sweeprof"] - 1) < max(0.01, abs(parts[name] - 1)), name


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


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...], str]] = {
    "LeNet-5": (lenet5.keras_model, (32, 32, 32, 1), "float32"),
    "MobileNetV2": (mobilenet, (4, 96, 96, 3), "float32"),
    "LSTM": (lstm, (32, 20), "int32"),
    "ViT": (vit, (8, 32, 32, 3), "float32"),
}
"""What makes a model, and the shape and the type of a batch."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_the_layers_add_up_to_the_step(name: str, trains: bool) -> None:
    make, shape, dtype = MODELS[name]
    backend = TensorflowBackend(mode="function")
    model = backend.load(make, "cpu", None)
    batch = model.put(Inputs.of(np.random.default_rng(0).integers(0, 2, shape).astype(dtype)))
    work = Work(batch, None, TrainingConfig("none", "mean") if trains else None)
    seen: list[list[float]] = []
    for _ in range(ATTEMPTS):
        times = backend.layer_times(model, work, PROTOCOL)
        covered = [times.forward_covered, *([times.backward_covered] if trains else [])]
        seen.append([each for each in covered if each is not None])
        if all(abs(each - 1) <= BOUND for each in seen[-1]):
            break
    best = min(seen, key=lambda each: max(abs(part - 1) for part in each))
    print(f"\n{name:<12} {'training' if trains else 'inference':<10} sum over whole", *(f"{part:.3f}" for part in best))
    assert all(abs(part - 1) <= BOUND for part in best), f"forward and backward: {seen}"
