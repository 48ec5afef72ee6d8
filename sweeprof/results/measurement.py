"""A metric, its value for one combination, and the titles of metrics in tables; the file of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from sweeprof.display import Displayed
from sweeprof.errors import UnknownMetric, UserError, choice_problem
from sweeprof.results.record import Failure, Stored, Warning
from sweeprof.text import listed, stored

Better = Literal["lower", "higher"] | None
Number = int | float


NO_PROCESSOR = "processor"
"""Key of the detail of an energy or power without the processor's, with the reason: it is comparable with such others only."""


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """The description of a metric, without a value."""

    name: str
    """Canonical, e.g. ``latency/forward``."""
    unit: str
    """Base unit, e.g. ``s``, ``B``, ``MAC``, ``params``, ``ratio``."""
    better: Better
    """The direction of improvement; None where neither is better."""
    definition: str
    """One sentence."""


@dataclass(frozen=True, slots=True)
class Measurement(Displayed):
    """One metric of one combination. Either ``value`` or ``reason`` is given, never both."""

    name: str
    unit: str
    """Base unit; that of the metric, or another one where it depends on the workload."""
    better: Better
    value: Number | None
    """In the base unit."""
    reason: str | None = None
    """Why there is no value."""
    estimator: str = "exact"
    """How the value was made from the samples, e.g. ``median``."""
    interval: tuple[float, float] | None = None
    """95 % interval of the estimate: over the rounds, or of a value with one round within its process."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Further figures in the same unit (``min``, ``max``, ``p90`` …), or the reason why one is not given."""
    rounds: tuple[float, ...] = ()
    """One estimate per round, where the metric was measured in rounds; what a comparison pairs."""
    warnings: tuple[Warning, ...] = ()
    round_numbers: tuple[int, ...] = ()
    """Which rounds the estimates are of; a round that failed is not among them."""

    paired: tuple[float, ...] = ()
    """Of an interleaved run: for each of the same rounds the estimate that the pairs of samples give, which is the baseline's
    estimate of that round times the median of the paired ratios. A comparison with that baseline uses it in place of ``rounds``."""
    failure: Failure | None = None
    """The error in the metric's function because of which the value, or that of one round, is missing; the combination is then not
    fully measured."""

    def __post_init__(self) -> None:
        if self.reason is not None:
            object.__setattr__(self, "reason", stored(self.reason))

    @property
    def has_interval_within_process(self) -> bool:
        """True if the interval comes from the samples of a single process, so that it does not contain the differences between
        processes.
        """
        return self.interval is not None and len(self.rounds) < 2

    def by_round(self, which: Literal["rounds", "paired"] = "rounds") -> dict[int, float]:
        """Estimate by number of the round; of an interleaved run also the ``paired`` ones."""
        estimates = self.paired if which == "paired" else self.rounds
        return dict(zip(self.round_numbers or range(len(estimates)), estimates, strict=True))


def shown_names(
    names: Collection[str], order: str | Sequence[str] = (), exclude: str | Sequence[str] = ()
) -> list[str]:
    """Return the names of metrics in the order in which they are shown.

    Args:
        names: of the metrics.
        order: names, or patterns such as ``latency/*``, of those that come first; the others follow.
        exclude: names or patterns of those that are left out.

    Raises:
        UserError: a name or pattern fits no metric.
    """
    problems = []
    fitting: dict[str, dict[str, None]] = {"order": {}, "exclude": {}}
    for key, patterns in (("order", listed(order)), ("exclude", listed(exclude))):
        for pattern in patterns:
            found = [name for name in names if fnmatchcase(name, pattern)]
            if not found:
                problems.append(choice_problem(key, pattern, "metric that is shown", names))
            fitting[key].update(dict.fromkeys(found))
    if problems:
        raise UserError(problems)
    return [name for name in dict.fromkeys([*fitting["order"], *names]) if name not in fitting["exclude"]]


class Measurements(Displayed, dict[str, Measurement]):
    """Measurements by metric name; the error for an unknown name contains the closest one."""

    def __missing__(self, name: str) -> Measurement:
        raise UnknownMetric(name, self)


HEADLINE: dict[str, str] = {
    "latency/iteration": "training step",
    "latency/forward": "latency",
    "latency/backward": "backward",
    "latency/update": "update",
    "latency/device": "device time",
    "generation/latency": "generation latency",
    "generation/time_to_first_token": "first token",
    "generation/time_per_token": "time per token",
    "generation/decode_throughput": "decode",
    "generation/prefill_throughput": "prefill",
    "command/time": "time",
    "loading/samples_per_s": "loaded samples",
    "loading/first_batch": "first batch",
    "layers/slowest_self_s": "slowest layer",
    "quality/accuracy": "accuracy",
    "quality/top5": "top5 accuracy",
    "quality/topk": "topk accuracy",
    "quality/perplexity": "perplexity",
    "quality/miou": "mean IoU",
    "quality/mse": "mean squared error",
    "quality/mae": "mean absolute error",
    "quality/r2": "R2",
    "quality/loss": "loss",
    "compute/macs_per_sample": "MACs/sample",
    "compute/macs": "MACs",
    "params/total": "parameters",
    "throughput/samples_per_s": "throughput",
    "throughput/concurrent": "concurrent throughput",
    "memory/added_bytes": "added memory",
    "generation/kv_cache_bytes": "KV cache",
    "memory/cuda_allocated_peak_bytes": "peak GPU memory",
    "energy/per_token": "energy/token",
    "energy/per_sample": "energy/sample",
    "latency/p90": "p90 latency",
    "latency/p95": "p95 latency",
    "latency/p99": "p99 latency",
    "memory/process_peak_bytes": "peak memory",
    "memory/rss_peak_bytes": "peak memory",
    "command/memory": "peak memory",
    "command/server_memory": "server memory",
    "command/user_time": "user time",
    "command/system_time": "system time",
    "quality/agreement": "agreement",
    "memory/alloc_peak_bytes": "peak allocated",
    "generation/time_per_token_p90": "p90 per token",
    "generation/time_per_token_p95": "p95 per token",
    "generation/time_per_token_p99": "p99 per token",
    "generation/first_gap": "first gap",
    "rate/mfu": "share of peak FLOP/s",
    "rate/mfu_train": "training share of peak FLOP/s",
    "operators/self_s": "operator time",
    "compute/flops_per_sample": "FLOPs/sample",
    "memory/act_peak_live_bytes": "live activations",
    "memory/footprint_est_bytes": "footprint",
    "compute/flops_train": "training FLOPs",
    "memory/footprint_est_bytes_train": "training footprint",
}
"""Titles of the built-in metrics that a table shows, the most important first; a narrow terminal leaves out the last."""
FURTHER_TITLES = {
    "command/exit_code": "exit code",
    "latency/per_sample": "latency per sample",
    "latency/first_step": "first step",
    "latency/trace": "tracing",
    "latency/compile": "compilation",
    "latency/graph_breaks": "graph breaks",
    "latency/device_share": "device share",
    "latency/h2d": "host to device",
    "latency/d2h": "device to host",
    "energy/power": "power",
    "energy/per_step": "energy/step",
    "energy/utilization": "GPU utilization",
    "latency/total": "latency with transfers",
    "latency/evaluate": "evaluation",
    "rate/mfu_prefill": "prefill share of peak FLOP/s",
    "rate/mbu_decode": "decode share of bandwidth",
    "rate/flops_per_s": "FLOP/s",
    "rate/backward_flops_per_s": "backward FLOP/s",
    "rate/flops_per_s_train": "training FLOP/s",
    "compute/flops": "FLOPs",
    "compute/macs_prefill": "prefill MACs",
    "compute/macs_decode": "MACs/token",
    "params/trainable": "trainable",
    "operators/python_share": "outside operators",
    "operators/busy_share": "device busy",
    "memory/rss_step_bytes": "peak of the steps",
    "memory/allocated_per_step_bytes": "allocated per step",
    "memory/tensors_bytes": "live tensors",
    "memory/cuda_allocated_pre_bytes": "GPU memory before",
    "memory/cuda_allocated_post_bytes": "GPU memory after",
    "memory/cuda_reserved_peak_bytes": "peak reserved",
    "memory/cuda_process_peak_bytes": "peak of the process",
    "memory/cuda_device_peak_bytes": "peak of the GPU",
}
"""Of metrics that a table shows only where it would have next to nothing else."""


def plain_title(metric: str) -> str | None:
    """Return the title of a built-in metric in tables; None for any other metric."""
    return FURTHER_TITLES.get(metric) or HEADLINE.get(metric)


@dataclass(frozen=True, slots=True)
class Artifact(Stored):
    """The serialised model that a run-time loads."""

    bytes: int
    """Length of its file or files."""
    format: str
    """E.g. ``onnx``."""
