"""A comparison as the quickstart leaves one, made without measuring anything."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from sweeprof.results.compared_rows import Comparison, Excluded, Row, compare_rows, find_baselines
from sweeprof.results.measurement import Measurement, MetricInfo, Number
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
        if broken and axes["backend"] == "tensorflow" and axes["batch_size"] == 64 and axes["model"] == models[0]:
            status, reason = "crashed", "timing: killed by SIGKILL (signal 9)"
        if broken and axes["backend"] == "tensorflow" and axes["model"] == models[-1] and axes["batch_size"] == 1:
            status, reason = "unsupported", "the model names no builder for tensorflow"
        known = _values(axes["model"], axes["backend"], axes["batch_size"])
        values[id] = {
            info.name: measurement(
                info, known[info.name] if status == "ok" else None, None if status == "ok" else reason
            )
            for info in METRICS
        }
        rows.append(
            Row(
                combination_id=id,
                axes=axes,
                status=status,
                reason=reason,
                cells={},
                baseline_id=bases[id],
                command="python -m sweeprof +sweep=quickstart "
                + " ".join(f"{key}={axes[key]}" for key in ("model", "backend", "batch_size")),
                warnings=(NOISY,) if axes == points[0] else (),
                wall_s=3.2,
            )
        )
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
