"""Comparisons made without measuring anything: as the quickstart leaves one, odd ones, and random ones."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping
from typing import Any

from sweeprof.results.compared_rows import DEVIATION, Comparison, Excluded, Row, compare_rows, find_baselines
from sweeprof.results.differences import Cell
from sweeprof.results.measurement import Better, Measurement, MetricInfo, Number
from sweeprof.results.record import Record, Status, Warning

METRICS: tuple[MetricInfo, ...] = (
    MetricInfo("params/total", "params", "lower", "Unique parameters, trainable and frozen."),
    MetricInfo("params/trainable", "params", "lower", "Parameters that training changes."),
    MetricInfo("params/frozen", "params", None, "Parameters that training leaves alone."),
    MetricInfo("size/params_bytes", "B", "lower", "Bytes of all parameters."),
    MetricInfo("compute/macs", "MAC", "lower", "Multiply-accumulates of one forward of the whole batch."),
    MetricInfo("compute/macs_per_sample", "MAC", "lower", "Multiply-accumulates per sample."),
    MetricInfo("latency/forward", "s", "lower", "Wall time of one synchronised forward of the whole batch."),
    MetricInfo("latency/first_step", "s", "lower", "Wall time of the very first forward."),
    MetricInfo("latency/per_sample", "s", "lower", "Forward latency over batch size."),
    MetricInfo("throughput/samples_per_s", "samples/s", "higher", "Batch size over the median latency."),
    MetricInfo("memory/rss_peak_bytes", "B", "lower", "Peak resident set of a process of its own."),
    MetricInfo("quality/accuracy", "ratio", "higher", "Share of the test split classified correctly."),
    MetricInfo("quality/agreement", "abs", "lower", "Largest absolute difference of the outputs to the baseline's."),
)

NOISY = Warning("spread_high", "IQR is 31 % of the median", "close other programs, or use protocol=default")


def _values(model: str, backend: str, batch: int) -> dict[str, Number]:
    macs = {"lenet5": 416_520, "mlp": 139_904, "digits_resnet": 6_400_000}[model]
    params = {"lenet5": 61_706, "mlp": 140_106, "digits_resnet": 78_042}[model]
    forward = (120e-6 + macs * batch * 2e-11) * (1.9 if backend == "tensorflow" else 1.0)
    return {
        "params/total": params,
        "params/trainable": params,
        "params/frozen": 0,
        "size/params_bytes": params * 4,
        "compute/macs": macs * batch,
        "compute/macs_per_sample": macs,
        "latency/forward": forward,
        "latency/first_step": forward * 20,
        "latency/per_sample": forward / batch,
        "throughput/samples_per_s": batch / forward,
        "memory/rss_peak_bytes": 310_000_000 if backend == "torch" else 520_000_000,
        "quality/accuracy": {"lenet5": 0.9889, "mlp": 0.9694, "digits_resnet": 0.9917}[model],
        "quality/agreement": 0.0 if backend == "torch" else 3.1e-6,
    }


def measurement(info: MetricInfo, value: Number | None, reason: str | None = None) -> Measurement:
    """A measurement of ``info``; latencies and throughput come with an interval and details, as measured ones do."""
    timed = info.name.startswith(("latency/", "throughput/")) and info.name != "latency/first_step"
    if value is None or not timed:
        return Measurement(info.name, info.unit, info.better, value, reason)
    detail: dict[str, Any] = {
        "min": value * 0.95,
        "max": value * 1.4,
        "spread": 0.08,
        "n": 31,
        "p90": value * 1.2,
        "p99": "n<299",
    }
    return Measurement(
        info.name, info.unit, info.better, value, None, "median", (value * 0.98, value * 1.03), detail, (float(value),)
    )


def comparison(models: tuple[str, ...] = ("lenet5", "mlp", "digits_resnet"), broken: bool = True) -> Comparison:
    """Models × torch, tensorflow × batch sizes 1, 8, 64; with ``broken`` one row crashed and one is unsupported."""
    points: list[dict[str, Any]] = [
        {"model": m, "backend": b, "device": "cpu", "batch_size": n}
        for m, b, n in itertools.product(models, ("torch", "tensorflow"), (1, 8, 64))
    ]
    ids = {f"c{i:012x}": point for i, point in enumerate(points)}
    bases = find_baselines({"backend": "torch"}, ids)
    rows, values = [], {}
    for id, axes in ids.items():
        status: Status = "ok"
        reason: str | None = None
        model, backend, size = axes["model"], axes["backend"], axes["batch_size"]
        if broken and (model, backend, size) == (models[0], "tensorflow", 64):
            status, reason = "crashed", "timing: killed by SIGKILL (signal 9)"
        if broken and (model, backend, size) == (models[-1], "tensorflow", 1):
            status, reason = "unsupported", "the model names no builder for tensorflow"
        known: dict[str, Number] = _values(model, backend, size) if status == "ok" else {}
        values[id] = {info.name: measurement(info, known.get(info.name), reason) for info in METRICS}
        command = f"python -m sweeprof +sweep=quickstart model={model} backend={backend} batch_size={size}"
        warnings = (NOISY,) if axes == points[0] else ()
        rows.append(Row(id, axes, status, reason, {}, bases[id], command, warnings=warnings, wall_s=3.2))
    return Comparison(
        sweep_id="s0123456789ab",
        name="quickstart",
        created="2026-11-21T00:30:00+00:00",
        command="python -m sweeprof +sweep=quickstart",
        axes=("model", "backend", "device", "batch_size"),
        metrics=METRICS,
        baseline={"backend": "torch"},
        rows=compare_rows(rows, values, None),
        environment={
            "host": "node1",
            "os": "Linux 6.1",
            "python": "3.11.7",
            "cpu": {"model": "AMD EPYC", "logical": 2, "physical": 1, "governor": None, "quota": None},
            "memory_bytes": 25_000_000_000,
            "gpus": [],
            "load": [0.4, 0.3, 0.2],
            "versions": {"sweeprof": "0.1.0", "torch": "2.13.0+cpu", "tensorflow": "2.21.0", "keras": "3.15.1"},
            "git": {"revision": "abc1234", "dirty": False},
        },
        excluded=(Excluded({"model": "mlp", "batch_size": 512}, "exclude: model=mlp batch_size=512"),),
    )


def records(of: Comparison) -> list[Record]:
    """One timing record per row."""
    return [
        Record(
            sweep_id=of.sweep_id,
            combination_id=row.combination_id,
            pass_name="timing",
            status=row.status,
            reason=row.reason,
            axes=row.axes,
            config={"batch_size": row.axes["batch_size"], "model": {"torch": {"_target_": "x.y"}}},
            command=row.command,
            started="2026-11-21T00:30:01+00:00",
            wall_s=row.wall_s,
            environment=of.environment,
        )
        for row in of.rows
    ]


def with_added_memory(of: Comparison) -> Comparison:
    """``of`` with its memory under the name of the one that the tables of a sweep show."""
    old, new = "memory/rss_peak_bytes", "memory/added_bytes"
    metrics = tuple(dataclasses.replace(info, name=info.name.replace(old, new)) for info in of.metrics)
    rows = []
    for row in of.rows:
        cells = {name.replace(old, new): cell for name, cell in row.cells.items()}
        cells[new] = dataclasses.replace(cells[new], measurement=dataclasses.replace(cells[new].measurement, name=new))
        rows.append(dataclasses.replace(row, cells=cells))
    return dataclasses.replace(of, metrics=metrics, rows=tuple(rows))


# Comparisons that are unlike the quickstart's: hostile names, other axes, a user's own metrics

SCRIPT = "<script>alert(1)</script>"
LONG = "very-long-model-name-" * 15


def build(
    points: list[dict[str, Any]],
    metrics: dict[str, tuple[str, Better]],
    values: list[dict[str, Number]],
    **fields: Any,
) -> Comparison:
    """A comparison without baselines: one row per point with its values; a metric that is not given has a reason."""
    infos = tuple(MetricInfo(name, unit, better, f"What {name} is.") for name, (unit, better) in metrics.items())
    rows = []
    for number, (point, known) in enumerate(zip(points, values, strict=True)):
        status: Status = "ok" if known else "failed"
        reason = None if known else "ValueError: no\nluck"
        cells = {}
        for info in infos:
            missing = None if info.name in known else "not measured"
            cells[info.name] = Cell(Measurement(info.name, info.unit, info.better, known.get(info.name), missing))
        rows.append(Row(f"c{number}", point, status, reason, cells, None, "python -m sweeprof"))
    axes = tuple(dict.fromkeys(axis for point in points for axis in point))
    return Comparison(
        "s1", "odd", "2026-11-21T00:30:00+00:00", "python -m sweeprof", axes, infos, {}, tuple(rows), **fields
    )


def renamed(*models: str) -> Comparison:
    """The quickstart with other names for its models, in their order."""
    full = comparison()
    names = dict(zip(("lenet5", "mlp", "digits_resnet"), models, strict=False))
    rows = tuple(
        dataclasses.replace(row, axes={**row.axes, "model": names.get(row.axes["model"], row.axes["model"])})
        for row in full.rows
    )
    return dataclasses.replace(full, rows=rows)


def hostile() -> Comparison:
    """The quickstart with model names that try to break out of every format."""
    return renamed(f"{SCRIPT}|`*_$\n\x1b[31m", LONG, '"><img src=x onerror=alert(2)>')


def with_cells(of: Comparison, metric: str, **changes: Any) -> Comparison:
    """``of`` with fields of the cells of one metric replaced."""
    rows = tuple(
        dataclasses.replace(row, cells={**row.cells, metric: dataclasses.replace(row.cells[metric], **changes)})
        for row in of.rows
    )
    return dataclasses.replace(of, rows=rows)


# Random sweeps with everything that decides a verdict: missing rounds, interleaved runs, other hosts, interruptions

DRAWN_METRICS = (
    MetricInfo("latency/forward", "s", "lower", "Wall time of a forward."),
    MetricInfo("throughput/samples_per_s", "samples/s", "higher", "Samples per second."),
    MetricInfo("mine/jitter", "s", None, "Neither direction is better."),
    MetricInfo("params/total", "params", "lower", "Parameters."),
    MetricInfo("quality/accuracy", "ratio", "higher", "Accuracy."),
    MetricInfo("memory/rss_peak_bytes", "B", "lower", "Peak."),
)
PLANNED = {"backend": "b0"}
THRESHOLD, THRESHOLDS = 0.05, {"throughput/samples_per_s": 0.2}


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A sweep of which any baseline can be chosen."""

    rows: tuple[Row, ...]
    measured: Mapping[str, Mapping[str, Measurement]]

    def against(self, baseline: Mapping[str, Any]) -> tuple[Row, ...]:
        """What Python makes of it with this baseline."""
        axes = {row.combination_id: row.axes for row in self.rows}
        planned, bases = find_baselines(PLANNED, axes), find_baselines(baseline, axes)
        rows = [dataclasses.replace(row, baseline_id=bases[row.combination_id]) for row in self.rows]
        # The pairs of an interleaved run are with the planned baseline alone.
        kept = {
            id: {
                name: one if bases[id] == planned[id] else dataclasses.replace(one, paired=())
                for name, one in own.items()
            }
            for id, own in self.measured.items()
        }
        return compare_rows(rows, kept, THRESHOLD, THRESHOLDS)

    def comparison(self) -> Comparison:
        """As it was swept."""
        return Comparison(
            *(
                "s1",
                "drawn",
                "2026-11-22T00:00:00+00:00",
                "",
                ("model", "backend", "batch_size"),
                DRAWN_METRICS,
                PLANNED,
            ),
            self.against(PLANNED),
            threshold=THRESHOLD,
            thresholds=THRESHOLDS,
        )


def drawn(seed: int, models: int = 2, sizes: int = 3) -> Drawn:
    """A sweep of nearly all of models × 3 backends × sizes; of seeds every third is interleaved, every fourth was interrupted, and
    every fourth moved to other hosts. Half of what failed has its values all the same."""
    chance = random.Random(seed)
    points = [
        {"model": f"m{m}", "backend": f"b{b}", "batch_size": 8**n}
        for m, b, n in itertools.product(range(models), range(3), range(sizes))
        if chance.random() < 0.9 or models > 2
    ]
    rows, measured = [], {}
    for number, point in enumerate(points):
        id = f"c{number}"
        is_ok = chance.random() < 0.9
        numbers = tuple(sorted(chance.sample(range(6), chance.choice([2, 3, 4, 5, 6, 6]))))
        measured[id] = {info.name: _measured(info, numbers, is_ok, seed, chance) for info in DRAWN_METRICS}
        if not is_ok and number % 2:  # a pass that failed leaves what the others measured
            apart = random.Random(f"{seed} {number}")
            measured[id] = {info.name: _measured(info, numbers, True, seed, apart) for info in DRAWN_METRICS}
        host = {"host": chance.choice(["h0", "h0", "h1"]), "governor": "powersave"} if seed % 4 == 1 else {}
        if random.Random(f"settings {seed} {number}").random() < 0.05:
            host = {**host, DEVIATION: "threads 2 instead of 1"}
        sessions = tuple(chance.choice(["s0", "s0", "s1"]) if n in numbers else None for n in range(6))
        row = Row(
            *(id, point, "ok" if is_ok else "failed", None if is_ok else "no\nluck", {}, None),
            command="python -m sweeprof " + " ".join(f"{axis}={value}" for axis, value in point.items()),
            environment=host,
        )
        rows.append(dataclasses.replace(row, sessions=sessions) if seed % 4 == 2 else row)
    return Drawn(tuple(rows), measured)


def _measured(info: MetricInfo, numbers: tuple[int, ...], is_ok: bool, seed: int, chance: random.Random) -> Measurement:
    if not is_ok:
        return Measurement(info.name, info.unit, info.better, None, "no luck")
    if info.name == "params/total":
        counted = chance.choice([61_706_123, 61_706_124, 0])
        estimator = "lower bound" if counted == 61_706_124 else "exact"
        return Measurement(info.name, info.unit, info.better, counted, estimator=estimator)
    if info.name == "quality/accuracy":
        return Measurement(info.name, info.unit, info.better, chance.choice([0.9889, 0.9889, 0.97]))
    if info.name == "memory/rss_peak_bytes":
        return Measurement(info.name, info.unit, info.better, chance.randrange(10**8, 10**9), estimator="max")
    centre = chance.choice([1e-3, 1.02e-3, 1.2e-3, 3e-3])
    spread = chance.choice([0.001, 0.01, 0.1])
    rounds = tuple(centre * chance.lognormvariate(0, spread) for _ in numbers)
    if chance.random() < 0.05:
        rounds = (0.0, *rounds[1:])
    has_pairs = seed % 3 == 0 and info.unit == "s"
    value = sorted(rounds)[len(rounds) // 2]
    return Measurement(
        *(info.name, info.unit, info.better, value),
        estimator="median",
        interval=(value * 0.99, value * 1.01),
        rounds=rounds,
        round_numbers=numbers,
        paired=tuple(one * chance.lognormvariate(0, 0.002) for one in rounds) if has_pairs else (),
    )


# Comparisons of which every format is a golden file

TRAINING_METRICS: dict[str, tuple[str, Better]] = {
    "latency/iteration": ("s", "lower"),
    "latency/forward": ("s", "lower"),
    "latency/per_sample": ("s", "lower"),
    "throughput/samples_per_s": ("samples/s", "higher"),
    "quality/accuracy": ("ratio", "higher"),
}


def training_values(forward: float, step: float | None, accuracy: float) -> dict[str, Number]:
    """Of a row that takes so long for a forward, and for a step if it trains."""
    known: dict[str, Number] = {"latency/forward": forward, "latency/per_sample": forward, "quality/accuracy": accuracy}
    known["throughput/samples_per_s"] = 1 / (step or forward)
    return known if step is None else {**known, "latency/iteration": step}


def trained(*modes: str) -> Comparison:
    """Two numbers of threads per mode, each compared with the smaller; the forward of training is the fastest of all."""
    points: list[dict[str, Any]] = [{"mode": mode, "threads": n} for mode in modes for n in (1, 2)]
    found = []
    for place, point in enumerate(points):
        forward, step = (1e-3, 4e-3 * point["threads"]) if point["mode"] == "training" else (5e-3, None)
        found.append(training_values(forward * point["threads"], step, 0.9 + place / 100))
    plain = build(points, TRAINING_METRICS, found)
    ids = [row.combination_id for row in plain.rows]
    rows = [dataclasses.replace(row, baseline_id=ids[place - place % 2]) for place, row in enumerate(plain.rows)]
    measured = {row.combination_id: {name: cell.measurement for name, cell in row.cells.items()} for row in rows}
    return dataclasses.replace(plain, rows=compare_rows(rows, measured, 0.05), baseline={"threads": 1})


def chosen() -> Comparison:
    """Fast and poor, slow and good, and one that both beat; then one that failed and one without an accuracy."""
    points = [{"model": name} for name in ("fast", "good", "beaten", "failed", "blind")]
    metrics: dict[str, tuple[str, Better]] = {
        "latency/forward": ("s", "lower"),
        "quality/accuracy": ("ratio", "higher"),
        "params/total": ("params", "lower"),
        "mine/colour": ("", None),
    }
    values: list[dict[str, Number]] = [
        {"latency/forward": 0.001, "quality/accuracy": 0.9, "params/total": 10, "mine/colour": 3},
        {"latency/forward": 0.004, "quality/accuracy": 0.99, "params/total": 20, "mine/colour": 3},
        {"latency/forward": 0.008, "quality/accuracy": 0.9, "params/total": 30, "mine/colour": 3},
        {},
        {"latency/forward": 0.0005, "params/total": 10, "mine/colour": 3},
    ]
    return build(points, metrics, values)


def worse() -> Comparison:
    """The quickstart with every latency called worse."""
    rows = []
    for row in comparison().rows:
        cell = row.cells["latency/forward"]
        if cell.ratio is not None:
            cell = dataclasses.replace(cell, ratio_interval=(1.85, 1.95), verdict="worse", verdict_reason=None)
        rows.append(dataclasses.replace(row, cells={**row.cells, "latency/forward": cell}))
    return dataclasses.replace(comparison(), rows=tuple(rows))


def furlongs() -> Comparison:
    """Of a user's own metric in a unit of its own, without a model's axis."""
    points = [{"threads": 4, "fused": True}, {"threads": 1, "fused": False}]
    return build(points, {"speed/walk": ("furlongs", None)}, [{"speed/walk": 12.25}, {"speed/walk": 3}])
