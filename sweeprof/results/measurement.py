"""A metric's value for one combination, with all one needs to judge it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from sweeprof.display import Displayed
from sweeprof.errors import UnknownMetric, UserError, choice_problem
from sweeprof.results.record import Failure, Warning
from sweeprof.text import listed, stored

Better = Literal["lower", "higher"] | None
Number = int | float


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
    """The error in the metric's function because of which there is no value, or none of one round: the combination is not fully
    measured then."""

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
    order, exclude = listed(order), listed(exclude)
    for key, patterns in (("order", order), ("exclude", exclude)):
        unknown = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
        problems += [choice_problem(key, pattern, "metric that is shown", names) for pattern in unknown]
    if problems:
        raise UserError(problems)
    first = [name for pattern in order for name in names if fnmatchcase(name, pattern)]
    arranged = dict.fromkeys([*first, *names])
    return [name for name in arranged if not any(fnmatchcase(name, pattern) for pattern in exclude)]


class Measurements(Displayed, dict[str, Measurement]):
    """Measurements by metric name; a name that is not among them is an error that names the closest one."""

    def __missing__(self, name: str) -> Measurement:
        raise UnknownMetric(name, self)
