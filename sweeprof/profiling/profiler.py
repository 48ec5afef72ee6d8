"""Profiler: one model, one backend, one batch size, in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sweeprof.backends import Analyzes, Backend, Build, LoadedModel, MeasuresMemory
from sweeprof.datasets import Dataset, batch_of
from sweeprof.errors import Unsupported
from sweeprof.profiling import residency
from sweeprof.profiling.build import builder, instantiate
from sweeprof.profiling.layers import LayerTable
from sweeprof.profiling.memory import Memory
from sweeprof.profiling.quality import Quality, batches
from sweeprof.profiling.timing import Protocol, Timing, measure
from sweeprof.results.record import PassName

MEMORY_STEPS = 5
"""Enough for allocators to reach their high-water mark."""

Observations = LayerTable | Timing | Memory | Quality


@dataclass(slots=True)
class Profiler:
    """Runs passes over a model; each pass belongs in a fresh process, which the sweep's worker provides.

    Example:
        >>> profiler = Profiler(backend, build=MyNet, dataset=Digits(), batch_size=8)
        >>> profiler.run("timing").median_s
    """

    backend: Backend
    build: Build
    dataset: Dataset
    batch_size: int = 1
    device: str = "cpu"
    protocol: Protocol = field(default_factory=Protocol)
    seed: int = 0
    """Seed of the weights and of whatever the framework draws."""
    costs: dict[str, float] = field(default_factory=dict)
    """Seconds spent per activity (``build``, ``measure``), filled in by :meth:`run`."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Profiler:
        """The profiler of a combination's resolved config.

        Raises:
            Unsupported: the model names no builder for the backend's framework.
        """
        backend, model = config["backend"], config["model"]
        node = model.get(backend["framework"])
        if node is None:
            raise Unsupported(f"the model names no builder for {backend['framework']}")
        return cls(
            backend=instantiate(backend),
            build=builder(node),
            dataset=instantiate(config["dataset"]),
            batch_size=config["batch_size"],
            device=config["device"]["type"],
            protocol=Protocol(**config["protocol"]),
            seed=config["seed"]["weights"],
        )

    def run(self, pass_name: PassName) -> Observations:
        """What the pass saw.

        Raises:
            Unsupported: the backend lacks the capability.
            Exception: whatever the model raised.
        """
        self.backend.configure(self.seed)
        match pass_name:
            case "analysis":
                return self._analysis()
            case "timing":
                return self._timing()
            case "memory":
                return self._memory()
            case "quality":
                return self._quality()

    def _analysis(self) -> LayerTable:
        if not isinstance(self.backend, Analyzes):
            raise Unsupported("this backend cannot count layers")
        with _Stopwatch(self.costs, "measure"):
            return self.backend.analyze(self.build, batch_of(self.dataset, self.batch_size), self.dataset.channel_axis)

    def _timing(self) -> Timing:
        model = self._load()
        batch = model.put(batch_of(self.dataset, self.batch_size))
        with model.stepping(batch) as step, _Stopwatch(self.costs, "measure"):
            return measure(step, self.protocol, self.backend.clock())

    def _memory(self) -> Memory:
        if not isinstance(self.backend, MeasuresMemory):
            raise Unsupported("this backend cannot measure memory")
        inputs = batch_of(self.dataset, self.batch_size)
        meter = self.backend.memory_meter()
        residency.restore()
        baseline = meter.rss()
        meter.reset_peak()
        model = self._load()
        batch = model.put(inputs)
        loaded = meter.rss()
        with model.stepping(batch) as step, _Stopwatch(self.costs, "measure"):
            for _ in range(MEMORY_STEPS):
                step()
        return Memory(baseline, loaded, meter.rss_peak(), MEMORY_STEPS)

    def _quality(self) -> Quality:
        test = self.dataset.split("test")
        model = self._load()
        answers = []
        with _Stopwatch(self.costs, "measure"):
            for inputs in batches(test.inputs, self.batch_size):
                with model.stepping(model.put(inputs)) as step:
                    answers.append(model.host_outputs(step()))
        return Quality.of(np.concatenate(answers), test.targets)

    def _load(self) -> LoadedModel:
        with _Stopwatch(self.costs, "build"):
            return self.backend.load(self.build, self.device, self.dataset.channel_axis)


class _Stopwatch:
    """Adds the seconds spent within it to ``costs[key]``, also when it is left by an exception."""

    def __init__(self, costs: dict[str, float], key: str) -> None:
        self._costs, self._key = costs, key

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._costs[self._key] = self._costs.get(self._key, 0.0) + time.perf_counter() - self._begin
