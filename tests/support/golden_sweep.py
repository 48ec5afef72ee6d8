"""The records of ``tests/golden/sweep-v2``: a small sweep with all that reports are made of, every value written down.

``python -m support.golden_sweep FOLDER`` writes it (with ``tests`` on the path). The folder in ``tests/golden`` stands for what
sweeps of its schema version left; it is written anew only where records themselves have changed.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sweeprof.config.schema import LimitSettings
from sweeprof.measuring.timing import Timing
from sweeprof.passes.memory import Memory
from sweeprof.passes.quality import Quality
from sweeprof.plan.plan import Combination, ComparisonSettings, Plan
from sweeprof.results.compared_rows import Excluded
from sweeprof.results.environment import Peaks
from sweeprof.results.files import write_json
from sweeprof.results.layer_times import CallTime, LayerTimes, PhaseTimes
from sweeprof.results.layers import LayerRow, LayerTable, Liveness
from sweeprof.results.observations import Allocations, LayerMemory, Moment, OperatorRow, Operators, TensorRow
from sweeprof.results.record import PassName, Record, Status, Warning

SWEEP_ID = "s20261122060000golden"
CREATED = "2026-11-22T06:00:00+00:00"
COMMAND = "python -m sweeprof +sweep=golden protocol=default"
PASSES: tuple[PassName, ...] = (
    *("analysis", "peaks", "quality", "timing", "memory", "layer_times", "operators", "allocations"),
)
DETAILED: tuple[PassName, ...] = ("peaks", "layer_times", "operators", "allocations")
ROUNDS = 3
BATCHES = (1, 8, 64)
METRICS = (
    *("latency/forward", "latency/per_sample", "latency/first_step", "throughput/samples_per_s"),
    *("memory/rss_peak_bytes", "memory/alloc_peak_bytes", "quality/accuracy", "quality/agreement"),
    *("compute/macs_per_sample", "params/total", "layers/slowest_self_s", "operators/self_s"),
)
WIDTHS = {"cnn": 16, "mlp & co": 64}
SPREAD = (1.0, 1.012, 0.994, 1.003, 1.041, 0.998, 1.006, 0.991)
"""Of the samples of a round."""
DRIFT = (1.0, 1.02, 0.985)
"""Of the rounds, which both backends share."""
JITTER = (1.0, 1.003, 0.998)
"""Of tensorflow alone."""
FACTORS = {
    ("cnn", 1): 1.31,
    ("cnn", 8): 1.01,
    ("cnn", 64): 1.0,
    ("mlp & co", 1): 0.83,
    ("mlp & co", 8): 1.05,
    ("mlp & co", 64): 1.2,
}
"""What tensorflow takes of torch's time: worse, the same, not there; better, unclear, crashed."""
NOISY = Warning("spread_high", "IQR is 31 % of the median", "close other programs, or use protocol=default")
ENVIRONMENT: dict[str, Any] = {
    "host": "node1",
    "os": "Linux 6.1",
    "python": "3.11.7",
    "cpu": {"model": "AMD EPYC", "logical": 2, "physical": 1, "available": 2, "governor": None, "quota": None},
    "memory_bytes": 25_000_000_000,
    "gpus": [],
    "load": [0.4, 0.3, 0.2],
    "versions": {"sweeprof": "0.1.0", "torch": "2.13.0+cpu", "tensorflow": "2.21.0"},
    "git": {"revision": "abc1234", "dirty": False},
}


def write(folder: Path) -> None:
    """Write plan, environment and records into ``folder``."""
    combinations = tuple(_combinations())
    plan = Plan(
        sweep_id=SWEEP_ID,
        name="golden",
        created=CREATED,
        command=COMMAND,
        axes={
            "model": list(WIDTHS),
            "backend": ["torch", "tensorflow"],
            "device": ["cpu"],
            "batch_size": list(BATCHES),
        },
        baseline={"backend": "torch"},
        combinations=combinations,
        excluded=(Excluded({"model": "cnn", "batch_size": 512}, "exclude: model=cnn batch_size=512"),),
        shards=(tuple(c.id for c in combinations if c.unsupported is None),),
        passes=PASSES,
        metrics=list(METRICS),
        threshold=0.05,
        limits=LimitSettings(timeout_s=300, memory=None),
        isolation="fork",
        compare=ComparisonSettings(pareto=["latency/forward", "quality/accuracy"], constraints=["latency < 5 ms"]),
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "plan.json", json.loads(json.dumps(plan.to_dict())))
    write_json(folder / "environment.json", ENVIRONMENT)
    for combination in combinations:
        for record in _records(combination) if combination.unsupported is None else ():
            write_json(folder / "records" / record.file_name, record.to_dict(), compact=True)


def _combinations() -> Iterator[Combination]:
    points = itertools.product(WIDTHS, ("torch", "tensorflow"), BATCHES)
    for number, (model, backend, batch) in enumerate(points):
        axes = {"model": model, "backend": backend, "device": "cpu", "batch_size": batch}
        config = {
            "model": {backend: {"_target_": "nets.Net", "width": WIDTHS[model]}},
            "dataset": {"_target_": "data.Digits", "shape": [1, 8, 8]},
            "backend": {"framework": backend, "threads": 2},
            "device": {"type": "cpu"},
            "batch_size": batch,
            "mode": "inference",
            "metrics": {"select": list(METRICS)},
            "protocol": {"rounds": ROUNDS, "threshold": 0.05, "interleave": "rounds"},
            "seed": {"weights": 0},
        }
        command = f"python -m sweeprof 'model={model}' backend={backend} batch_size={batch} protocol=default"
        missing = (model, backend, batch) == ("cnn", "tensorflow", 64)
        reason = "the model names no builder for tensorflow at this size" if missing else None
        yield Combination(f"c{number:012x}", axes, config, command, reason)


def _records(combination: Combination) -> Iterator[Record]:
    model, backend, _, batch = combination.axes.values()
    for pass_name in PASSES:
        for number in range(ROUNDS if pass_name == "timing" else 1):
            # Two combinations with pictures show all that there is to draw.
            if pass_name in DETAILED and (backend, batch) != ("torch", 8):
                yield _record(combination, pass_name, 0, "unsupported", f"not implemented: {pass_name} by this backend")
            elif (model, backend, batch, pass_name, number) == ("mlp & co", "tensorflow", 64, "timing", 1):
                yield _record(combination, pass_name, number, "crashed", "killed by SIGKILL (signal 9)")
            else:
                yield _record(combination, pass_name, number, "ok", None)


def _record(combination: Combination, pass_name: PassName, number: int, status: Status, reason: str | None) -> Record:
    is_noisy = pass_name == "timing" and number == 0 and combination.id.endswith("00")
    return Record(
        SWEEP_ID,
        combination.id,
        pass_name,
        status,
        reason,
        number,
        axes=combination.axes,
        config=combination.config,
        command=combination.command,
        observations=_observations(combination, pass_name, number) if status == "ok" else None,
        warnings=(NOISY,) if is_noisy else (),
        traceback="Traceback (most recent call last):\n  …\n" if status == "crashed" else None,
        started="2026-11-22T06:00:01+00:00",
        wall_s=1.5,
        costs={"fork": 0.004, "build": 0.1, "measure": 1.2},
        environment={**ENVIRONMENT, "threads": 2, "session": "first"},
    )


def _observations(combination: Combination, pass_name: PassName, number: int) -> dict[str, Any]:
    axes = combination.axes
    model, backend, batch = axes["model"], axes["backend"], axes["batch_size"]
    if pass_name == "timing":
        own = JITTER[number] if backend == "tensorflow" else 1.0
        return _timing(_seconds(model, backend, batch) * own, number).to_dict()
    if pass_name == "memory":
        peak = 310_000_000 if backend == "torch" else 520_000_000
        memory = Memory(180_000_000, 250_000_000, peak + batch * 4096, 20, peak)
        return {spec.name: getattr(memory, spec.name) for spec in dataclasses.fields(memory)}
    if pass_name == "quality":
        return _quality(0.0 if backend == "torch" else 2e-6).to_dict()
    if pass_name == "peaks":
        return Peaks(4e10, 1.2e10, "float32", "cpu", 2).to_dict()
    kinds: dict[str, Any] = {
        "analysis": _layers,
        "layer_times": _layer_times,
        "operators": _operators,
        "allocations": _allocations,
    }
    found: dict[str, Any] = kinds[pass_name](WIDTHS[model], batch).to_dict()
    return found


def _seconds(model: str, backend: str, batch: int) -> float:
    own = (120e-6 + WIDTHS[model] * batch * 4e-6) * (FACTORS[model, batch] if backend == "tensorflow" else 1.0)
    return round(own, 9)


def _timing(seconds: float, number: int) -> Timing:
    samples = tuple(round(seconds * DRIFT[number] * factor, 9) for factor in SPREAD)
    return Timing(round(seconds * 20, 9), 50, 4, samples, round=number)


def _quality(shift: float) -> Quality:
    targets = np.arange(12) % 3
    outputs = np.eye(3, dtype=np.float32)[targets]
    outputs[0] = (0.2, 0.7, 0.1)  # one of twelve is wrong
    return Quality.of((outputs + np.float32(shift)).astype(np.float32), targets)


def _layers(width: int, batch: int) -> LayerTable:
    hidden, pixels = 8 * 8 * width, 8 * 8

    def row(path: str, type: str, depth: int, parent: int | None, params: int, macs: int, shapes: Any) -> LayerRow:
        given, made = shapes
        return LayerRow(
            *(path, type, depth, 0, params, params, 4 * params, 0, macs * batch),
            input_shapes=((batch, *given),),
            output_shapes=((batch, *made),),
            flops=2 * macs * batch,
            act_bytes=0 if path == "__root__" else 4 * batch * int(np.prod(made)),
            input_dtypes=("float32",),
            output_dtypes=("float32",),
            parent=parent,
        )

    image, maps = (1, 8, 8), (width, 8, 8)
    rows = (
        row("__root__", "Net", 0, None, 0, 0, (image, (3,))),
        row("features", "Sequential", 1, 0, 0, 0, (image, maps)),
        row("features.conv", "Conv2d", 2, 1, 10 * width, 9 * width * pixels, (image, maps)),
        row("features.act", "ReLU", 2, 1, 0, 0, (maps, maps)),
        row("head", "Linear", 1, 0, 3 * hidden + 3, 3 * hidden, ((hidden,), (3,))),
    )
    return LayerTable(
        rows, {"aten::relu": 1}, "shapes", 4, Liveness(8 * batch * hidden, "features.act", 4 * batch * pixels)
    )


def _layer_times(width: int, batch: int) -> LayerTimes:
    places: tuple[tuple[str, str, int | None], ...] = (
        *(("__root__", "Net", None), ("features", "Sequential", 0), ("features.conv", "Conv2d", 1)),
        *(("features.act", "ReLU", 1), ("head", "Linear", 0)),
    )
    shares, whole = (0.04, 0.02, 0.7, 0.09, 0.15), 120e-6 + width * batch * 4e-6
    repeats = (1.3, 1.0, 1.01, 0.99)
    calls = tuple(
        CallTime(path, type, 0, parent, tuple(round(whole * share * factor, 9) for factor in repeats))
        for (path, type, parent), share in zip(places, shares, strict=True)
    )
    plain = tuple(round(whole * factor, 9) for factor in repeats)
    return LayerTimes("inference", calls, 1, PhaseTimes(plain, tuple(round(1.05 * s, 9) for s in plain)))


def _operators(width: int, batch: int) -> Operators:
    whole = 120e-6 + width * batch * 4e-6
    spent = (("features.conv", "aten::conv2d", 0.7), ("features.act", "aten::relu", 0.1), ("head", "aten::addmm", 0.15))
    rows = tuple(
        OperatorRow(
            *(path, operator, "forward", 1.0, round(whole * share, 9), round(whole * share * 1.1, 9), None, None),
            flops=18 * width * 64 * batch if operator == "aten::conv2d" else None,
            allocated_bytes=4 * batch * 64 * width,
            input_shapes=((batch, 1, 8, 8), (width, 1, 3, 3)) if operator == "aten::conv2d" else ((batch, 64 * width),),
        )
        for path, operator, share in spent
    )
    return Operators("inference", rows, 5, round(whole * 1.3, 9))


def _allocations(width: int, batch: int) -> Allocations:
    size = 4 * batch * 64 * width
    timeline = (
        Moment(0.0, 0, "__root__"),
        Moment(2e-5, size, "features.conv"),
        Moment(9e-5, 2 * size, "features.act"),
        Moment(1.1e-4, size, "features.act"),
        Moment(1.3e-4, size + 12 * batch, "head"),
        Moment(1.4e-4, 12 * batch, "__outside__"),
    )
    by_layer = (
        LayerMemory("features.conv", size, size, 0, size),
        LayerMemory("features.act", 2 * size, size, 0, size),
        LayerMemory("head", size + 12 * batch, 12 * batch, 12 * batch),
    )
    tensors = (
        TensorRow(("head.weight",), "parameter", (3, 64 * width), "float32", "cpu", 12 * 64 * width),
        TensorRow(("features.conv.weight",), "parameter", (width, 1, 3, 3), "float32", "cpu", 36 * width),
        TensorRow((), "other", (batch, 3), "float32", "cpu", 12 * batch),
    )
    return Allocations("inference", 1, 2 * size, "features.act", timeline, by_layer, tensors, {}, (2 * size,), 3 * size)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
