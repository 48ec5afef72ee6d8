"""A backend whose clock and memory are scripted: tests of statistics and of endings take milliseconds and have exact answers.

Public, so that users can test their own metrics, sweeps and trackers with it too.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from sweeprof.backends import AnyArray, Backend, Build, Gap, LoadedModel
from sweeprof.counting.formulas import Formulas
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import GenerationConfig, TrainingConfig
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable

Fault = Literal["raise", "memory_error", "exit", "segfault", "kill", "hang", "allocate"]
NOT_RUN = (
    *("analyze_training", "analyze_generation", "graph", "watch", "operators", "allocations"),
    *("peaks", "lines"),
)
"""Capabilities for which something would have to run."""
ALLOCATED_AT_MOST = 2**32
"""``allocate`` gives up here where no limit stops it."""


@dataclass(frozen=True, slots=True)
class FakeModel:
    """A linear classifier that takes as long, and as much memory, as it is told to."""

    step_s: float | Sequence[float] = 0.001
    """Seconds of one step; a list is repeated from its beginning."""
    first_step_s: float | None = None
    backward_s: float = 0.002
    update_s: float = 0.0005
    """Seconds of the other phases of a training step."""
    prefill_s: float = 0.004
    token_s: float | Sequence[float] = 0.001
    """Seconds of a generation up to its first token, and of each further token; a list is repeated from its beginning."""
    transfer_s: float | None = None
    """Seconds of bringing inputs to the device, and outputs back; None: it runs on the host."""
    compiles: bool = False
    per_sample_s: float = 0.0
    """Seconds added for each sample of the batch."""
    classes: int = 10
    offset: float = 0.0
    """Added to every output, to make outputs disagree."""
    params: int = 1000
    bytes: int = 1 << 20
    """Resident bytes that the loaded model takes."""
    on_build: Fault | None = None
    on_step: Fault | None = None
    """The fault that really happens when the model is built or stepped."""
    calm_steps: int = 0
    """Steps before ``on_step`` happens."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that every step changes, e.g. ``{"threads": 2}``, as a model does that calls ``torch.set_num_threads``."""


class FakeClock:
    """A clock that stands still until it is told to advance."""

    resolution = 1e-9

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    mark = now

    def between(self, begin: float, end: float) -> float:
        return end - begin

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds``."""
        self._now += seconds


class FakeMemory:
    """A meter whose peak is what was allocated through it."""

    def __init__(self, baseline: int) -> None:
        self._rss = self._peak = baseline

    def allocate(self, size: int) -> None:
        """Grow the resident set by ``size`` bytes."""
        self._rss += size
        self._peak = max(self._peak, self._rss)

    def reset_peak(self) -> None:
        self._peak = self._rss

    def rss(self) -> int:
        return self._rss

    def rss_peak(self) -> int:
        return self._peak

    own, own_peak = rss, rss_peak

    def give_back_freed(self) -> None:
        """Nothing: what is freed is not told to this meter."""


@dataclass(frozen=True, slots=True)
class FakeBackend(Backend):
    """Runs :class:`FakeModel`: steps, training steps, generations, memory and counts, all as scripted."""

    gaps: ClassVar[Mapping[str, Gap]] = {
        **dict.fromkeys(NOT_RUN, Gap("not applicable", "a fake model runs nothing")),
        "own_counts": Gap("not applicable", "there is no framework that could count"),
        "artifact": Gap("not applicable", "a fake model has no file"),
        "layer_times": Gap("not applicable", "a fake model is one layer"),
    }
    threads: int = 1
    slowdown: float = 1.0
    """Factor on every step, so that two variants of this backend can be compared."""
    baseline_bytes: int = 100 << 20
    clock: FakeClock = field(init=False, repr=False, default_factory=FakeClock)
    memory: FakeMemory = field(init=False, repr=False)
    settings: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", FakeMemory(self.baseline_bytes))
        object.__setattr__(self, "settings", {"threads": self.threads})

    def take(self, seconds: float) -> None:
        """Let the clock advance by so many seconds of a variant without slowdown."""
        self.clock.advance(seconds * self.slowdown)

    def settings_in_effect(self, model: FakeLoaded | None = None) -> Mapping[str, Any]:
        return dict(self.settings)

    def load(self, build: Build, device: str, channel_axis: int | None) -> FakeLoaded:
        model = _built(build)
        self.memory.allocate(model.bytes)
        return FakeLoaded(model, self)

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        model, (batch,) = _built(build), inputs.args
        macs = math.prod(batch.shape) * model.classes
        shapes = (tuple(batch.shape),), ((batch.shape[0], model.classes),)
        return LayerTable(
            (LayerRow(ROOT, "FakeModel", 0, 0, model.params, model.params, 4 * model.params, 0, macs, *shapes),)
        )

    @contextmanager
    def training(
        self, model: FakeLoaded, batch: AnyArray, targets: object, config: TrainingConfig
    ) -> Iterator[FakeTraining]:
        with model.stepping(batch) as step:
            yield FakeTraining(step, model.native, self.take)

    def generating(
        self, model: FakeLoaded, batch: AnyArray, config: GenerationConfig
    ) -> AbstractContextManager[FakeGeneration]:
        return nullcontext(FakeGeneration(model.native, batch, config, self.take))

    def memory_meter(self) -> FakeMemory:
        return self.memory


class FakeTraining:
    """A training step that takes as long as the model says."""

    def __init__(self, step: Callable[[], object], model: FakeModel, take: Callable[[float], None]) -> None:
        self.forward = step
        self._model, self._take = model, take

    def backward(self, loss: object) -> None:
        self._take(self._model.backward_s)

    def update(self) -> None:
        self._take(self._model.update_s)


class FakeGeneration:
    """A generation whose tokens take as long as the model says; a sample of the batch is a prompt."""

    sequences_per_prompt = 1

    def __init__(
        self, model: FakeModel, batch: AnyArray, config: GenerationConfig, take: Callable[[float], None]
    ) -> None:
        self.prompt_tokens = math.prod(batch.shape[1:])
        self.new_tokens = config.new_tokens
        self._model, self._sequences, self._take, self._tokens = model, len(batch), take, repeated(model.token_s)

    def generate(self, on_token: Callable[[], object]) -> None:
        happen(self._model.on_step)
        self._take(self._model.prefill_s)
        on_token()
        for _ in range(self.new_tokens - 1):
            self._take(next(self._tokens))
            on_token()

    def cache_bytes(self) -> int:
        return 8 * self._sequences * (self.prompt_tokens + self.new_tokens - 1)


def repeated(seconds: float | Sequence[float]) -> Iterator[float]:
    """Return durations without end, those of a list from its beginning again and again."""
    if isinstance(seconds, int | float):
        return itertools.repeat(seconds)
    return itertools.cycle(seconds)


class FakeLoaded(LoadedModel):
    """A fake model on its fake device."""

    native: FakeModel

    def __init__(self, model: FakeModel, backend: FakeBackend) -> None:
        self.native = model
        self._backend = backend
        first = () if model.first_step_s is None else (model.first_step_s,)
        self._durations = itertools.chain(first, repeated(model.step_s))
        self._steps = itertools.count()

    @property
    def compiles(self) -> bool:
        return self.native.compiles

    def clock(self) -> FakeClock:
        return self._backend.clock

    def put(self, inputs: Inputs) -> AnyArray:
        batch: AnyArray = inputs.args[0]
        self._backend.memory.allocate(batch.nbytes)
        return batch

    @contextmanager
    def stepping(self, batch: AnyArray) -> Iterator[Callable[[], object]]:
        flat = batch.reshape(len(batch), -1)
        weights = np.linspace(-1, 1, flat.shape[1] * self.native.classes).reshape(flat.shape[1], -1)
        outputs = (flat @ weights + self.native.offset).astype(np.float32)

        def step() -> AnyArray:
            if next(self._steps) >= self.native.calm_steps:
                happen(self.native.on_step)
            self._backend.settings.update(self.native.changes)
            self._backend.take(next(self._durations) + self.native.per_sample_s * len(batch))
            return outputs

        yield step

    def transfers(self, inputs: Inputs, outputs: object) -> Mapping[str, Callable[[], object]]:
        seconds = self.native.transfer_s
        if seconds is None:
            return {}
        return {name: lambda: self._backend.clock.advance(seconds) for name in ("h2d", "d2h")}

    def host_outputs(self, outputs: Any) -> npt.NDArray[np.float32]:
        answer: npt.NDArray[np.float32] = outputs
        return answer


def _built(build: Build) -> FakeModel:
    model = build()
    if not isinstance(model, FakeModel):
        raise TypeError(f"the model's builder returned a {type(model).__name__}, not a FakeModel")
    happen(model.on_build)
    return model


def happen(event: Fault | None) -> None:
    """Let ``event`` happen to this process."""
    match event:
        case None:
            return
        case "raise":
            raise ValueError("the fake model was told to raise")
        case "memory_error":
            raise MemoryError("the fake model was told to run out of memory")
        case "exit":
            os._exit(3)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            while True:
                time.sleep(3600)
        case "allocate":
            [bytearray(1 << 24) for _ in range(ALLOCATED_AT_MOST >> 24)]
