"""``sweeprof.profile``: one model, one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeprof.counting.formulas import Formula
from sweeprof.metrics.select import Entry, mode_of
from sweeprof.passes.session import Strict
from sweeprof.profiling.profiler import Profiler
from sweeprof.report.units import scaled
from sweeprof.results.layer_times import Mode
from sweeprof.results.measurement import Measurement, Measurements
from sweeprof.results.protocol import Protocol
from sweeprof.results.verdicts import Difference, differences

if TYPE_CHECKING:
    import pandas

    from sweeprof.profiling.layers import Layers


PLACES = ("layer", "line", "operator")
"""Details that say where a value was found."""


@dataclass(frozen=True, slots=True, repr=False)
class Profile(Mapping[str, Measurement]):
    """Measurements by metric name, and the layers behind them."""

    measurements: Measurements
    profiler: Profiler

    @property
    def layers(self) -> Layers:
        """The layers of the model, with the ways to look at them."""
        return self.profiler.layers

    def __getitem__(self, name: str) -> Measurement:
        return self.measurements[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.measurements)

    def __len__(self) -> int:
        return len(self.measurements)

    def __repr__(self) -> str:
        return f"<Profile of {len(self)} metrics>"

    def __str__(self) -> str:
        """One line per metric: value with its unit, or the reason why there is none."""
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:<{width}}  {_shown(m)}" for name, m in self.items())

    def to_frame(self) -> pandas.DataFrame:
        """One line per metric: value in its base unit, or the reason why there is none."""
        import pandas

        columns = ("name", "value", "unit", "estimator", "reason")
        lines = [{column: getattr(m, column) for column in columns} for m in self.measurements.values()]
        return pandas.DataFrame(lines, columns=columns, dtype=object)  # counts stay whole, what is missing stays None


def _shown(measurement: Measurement) -> str:
    if measurement.value is None:
        return f"– ({measurement.reason})"
    text = scaled(measurement.value, measurement.unit)
    place = next((found for key in PLACES if (found := measurement.detail.get(key))), None)
    return f"{text} at {place}" if place else text


def profile(  # noqa: PLR0913  # one argument for each thing a caller may know
    model: Any,
    inputs: Any,
    metrics: str | Sequence[Entry] = "static",
    *,
    formulas: Mapping[Any, Formula] | None = None,
    strict: Strict = "warn",
    backend: Any = "auto",
    device: str | None = None,
    forward: Callable[..., Any] | None = None,
    mode: Mode | None = None,
    optimizer: str | Callable[[Any], Any] = "sgd",
    loss: str | Callable[[Any, Any], Any] = "mean",
    protocol: Protocol | None = None,
    functions: Sequence[str] = (),
) -> Profile:
    """The metrics of ``model`` called with ``inputs``; the model is left exactly as it was found.

    Args:
        model: a model of a framework that sweeprof knows; it may be on the meta device, where nothing is allocated.
        inputs: a tensor; a tuple of positional arguments; a mapping of keyword arguments; a shape, ``(1, 3, 224, 224)``;
            or :class:`sweeprof.Inputs`. Tensors may be on the meta device.
        metrics: a metric set by name (``static``: all that shapes tell; ``full``: times and the rest too) or a list of metrics.
        formulas: by module type or operator, for this model alone.
        strict: what an operator without a formula does: ``error``, ``warn`` or ``ignore``.
        backend: name or object; ``auto`` takes the framework of the model.
        device: where to run; None where the model is.
        forward: ``forward(model, *args, **kwargs)`` where a step is more than calling the model.
        mode: whether a step is a forward (``inference``) or a whole training step (``training``); None: as the metric set says,
            which ``training`` does, else ``inference``.
        optimizer: of training steps: a name, or a function from the parameters to an optimizer.
        loss: of training steps: a name, a function of outputs and targets, or a class of such.
        protocol: how long and how often to measure.
        functions: whose source lines are watched, by their dotted names; none: the model's own forward.

    Raises:
        UserError: a name is not known, or ``mode`` is not that of the metric set.
        Uncounted: an operator has no formula, and ``strict`` is ``error``.
        Exception: whatever the model raised.

    Example:
        >>> r = sweeprof.profile(model, torch.randn(1, 3, 224, 224))
        >>> r["compute/macs"].value
        1814073344
        >>> print(r.layers.tree(depth=1))
    """
    profiler = Profiler(
        model,
        inputs=inputs,
        backend=backend,
        device=device,
        protocol=protocol,
        forward=forward,
        formulas=formulas,
        strict=strict,
        mode=mode or (mode_of(metrics) if isinstance(metrics, str) else None) or "inference",
        optimizer=optimizer,
        loss=loss,
        functions=functions,
    )
    return Profile(profiler.compute_all(metrics), profiler)


def compare(
    baseline: Mapping[str, Measurement] | Profiler, candidate: Mapping[str, Measurement] | Profiler
) -> list[Difference]:
    """Every metric of two profiles side by side, in base units; which of them is the baseline is said, never guessed.

    A metric that only one of them has keeps its row, with a reason.
    """
    return differences(_status(baseline), _status(candidate))


def _status(given: Mapping[str, Measurement] | Profiler) -> Mapping[str, Measurement]:
    return given.status if isinstance(given, Profiler) else given
