"""The times of every call of every module, as measured, and of a step of a training loop; and data frames of both."""

from __future__ import annotations

import dataclasses
import math
import operator
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from sweeprof.display import Displayed
from sweeprof.errors import Problem, UserError
from sweeprof.results.files import damaged, validated
from sweeprof.results.record import Json, Stored, Warning

if TYPE_CHECKING:
    import pandas


Host = Mapping[str, str | int]
"""Columns that describe a host, as :func:`sweeprof.results.environment.host_columns` returns them."""

_NAMES = {"path": str, "type": str, "call": int, "repeats": int, "repeat": int, "warmup": bool, "reason": str}


def with_host(frame: pandas.DataFrame, host: Host, is_wanted: bool) -> pandas.DataFrame:
    """Return the frame, also with columns that describe the host if these are wanted.

    Raises:
        UserError: they are wanted, and the host is not known.
    """
    if not is_wanted:
        return frame
    if not host:
        message = "needs a known host: a result that was read from a file has none."
        raise UserError([Problem("host", True, message)])
    return frame.assign(**host)


def repeat_lines(
    warmup: int, named: Json, phases: Mapping[str, Sequence[float]], aggr: bool, reasons: Sequence[str] = ()
) -> list[Json]:
    """Return the lines of a frame of seconds: with ``aggr`` one line of statistics, else one for each repeat.

    Args:
        warmup: number of repeats at the beginning that are for warming up; statistics leave them out, other lines mark them.
        named: the first columns.
        phases: seconds by name, one per repeat; empty where they are not known.
        aggr: whether to aggregate.
        reasons: why values are missing.
    """
    count = max(map(len, phases.values()))
    if not aggr:
        lines = []
        for repeat in range(count):
            line = {**named, "repeat": repeat, "warmup": repeat < warmup}
            for name, values in phases.items():
                line[f"{name}_s"] = values[repeat] if values else None
            lines.append({**line, "reason": "; ".join(reasons) or None})
        return lines
    line = {**named, "repeats": count - warmup}
    for name, values in phases.items():
        kept = values[warmup:]
        figures: dict[str, float | None] = dict.fromkeys(("mean", "max", "min", "std", "median"))
        if kept:
            figures.update(mean=statistics.fmean(kept), max=max(kept), min=min(kept), median=statistics.median(kept))
        if len(kept) > 1:
            figures["std"] = statistics.stdev(kept)  # with n − 1
        for figure, seconds in figures.items():
            line[f"{name}_{figure}_s"] = seconds
    if count - warmup == 1:
        reasons = [*reasons, "one repeat has no standard deviation"]
    return [{**line, "reason": "; ".join(reasons) or None}]


def number_frame(lines: list[Json], columns: list[str], numbers: Iterable[str]) -> pandas.DataFrame:
    """Return lines as a frame in which ``numbers`` are columns of numbers.

    A column with unknown values holds objects, so that they stay None and do not turn into NaN.
    """
    import pandas

    frame: pandas.DataFrame = pandas.DataFrame(lines, columns=columns, dtype=object)
    for name in numbers:
        if lines and all(line[name] is not None for line in lines):
            frame[name] = frame[name].astype(type(lines[0][name]))
    return frame


def repeat_frame(lines: Sequence[Json]) -> pandas.DataFrame:
    """Return the lines of :func:`repeat_lines` as a frame.

    A column with unknown values holds objects, so that they stay None and do not turn into NaN.
    """
    import pandas

    frame = pandas.DataFrame(lines, dtype=object)
    known = [name for name in frame.columns if all(line[name] is not None for line in lines)]
    return frame.astype({name: _NAMES.get(name, float) for name in known})


ROOT = "__root__"
"""The model itself."""
OUTSIDE = "__outside__"
"""The path of code that runs outside any module."""


def is_below(path: str, other: str) -> bool:
    """True if a module is inside another one."""
    return path.startswith(f"{other}.") or (other == ROOT and path not in (ROOT, OUTSIDE))


def above(path: str) -> list[str]:
    """Return the modules that one is inside of, outermost first: ``__root__``, ``a`` and ``a.b`` for ``a.b.c``."""
    if path in (ROOT, OUTSIDE):
        return []
    parts = path.split(".")
    return [ROOT, *(".".join(parts[:end]) for end in range(1, len(parts)))]


Mode = Literal["inference", "training", "generation", "loading", "command"]
PhaseName = Literal["forward", "backward"]
TOLERANCE = 0.1
"""How far the calls may add up to more or less than the step before their times are marked as doubtful; a share of the step."""


def disagreement(whole: Sequence[float], parts: Sequence[float]) -> float | None:
    """Return the sum of the parts as a share of the whole, if it is off by more than :data:`TOLERANCE`; else None.

    Both the medians, as a table shows them, and the pairs of one repeat are compared: the larger difference counts.

    Args:
        whole: seconds of a step, one value per repeat.
        parts: seconds of all its calls together, one value per repeat.
    """
    of_medians = _share(statistics.median(parts), statistics.median(whole))
    of_pairs = statistics.median(map(_share, parts, whole))
    ratio = max(of_medians, of_pairs, key=lambda share: abs(share - 1))
    if abs(ratio - 1) <= TOLERANCE:
        return None
    return ratio


def _added(first: Sequence[float], second: Sequence[float]) -> tuple[float, ...]:
    """Return the sums of two calls' seconds by repeat; a call without seconds adds nothing."""
    if not first or not second:
        return tuple(first or second)
    return tuple(map(operator.add, first, second))


def _share(part: float, whole: float) -> float:
    if whole > 0:
        return part / whole
    return math.inf if part > 0 else 1.0


@dataclass(frozen=True, slots=True)
class CallTime:
    """One call of one module: seconds of its own, without the calls within it, one value per repeat."""

    path: str
    type: str
    call: int
    """0 for the first call of this module in a step, 1 for the second …"""
    parent: int | None
    """Index of the call this one was made in; None for the root and for what runs outside any module."""
    forward: tuple[float, ...]
    backward: tuple[float, ...] = ()
    """Empty where the backward was not measured, or cannot be known."""
    reason: str | None = None
    """Why there is no backward."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of a call and the calls within it, and of the call alone."""

    forward: float
    forward_self: float
    backward: float | None
    backward_self: float | None
    reason: str | None
    """Why there is no backward."""


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Seconds of one whole phase of a step, one value per repeat."""

    plain: tuple[float, ...]
    """Without the probes; empty where every step had them, as in a loop of the user's."""
    probed: tuple[float, ...]
    """With the probes, their cost included."""

    @property
    def overhead(self) -> float | None:
        """Time with the probes over time without: the median over the repeats, in which both follow each other; None where there
        were no steps without.
        """
        if not self.plain:
            return None
        return statistics.median(probed / plain for plain, probed in zip(self.plain, self.probed, strict=True))


@dataclass(frozen=True, slots=True)
class PhaseSummary:
    """One phase of a step as a whole, and how well the rows of a layer table account for it."""

    plain_s: float | None
    """Median without the probes, in seconds; None if every step had probes, as are the figures that are compared with it."""
    covered: float | None
    """The sum of all calls' own times over the adjacent step without probes, the median over the repeats; 1 is right."""
    overhead: float | None
    """Time with the probes over time without, the median over the repeats."""
    outside_s: float = 0.0
    """Seconds that were covered outside any module, e.g. in the loss."""
    doubt: str | None = None
    """Why the times of this phase may be wrong by more than :data:`TOLERANCE`; None if the calls add up to the step."""


@dataclass(frozen=True, slots=True)
class TimingSummary:
    """Figures that show how accurate the times of a layer table are."""

    mode: Mode
    repeats: int
    """Those that count, without the ones for warming up."""
    forward: PhaseSummary
    backward: PhaseSummary | None = None
    unplaced: tuple[str, ...] = ()
    """Paths of calls that were timed, but have no row: the analysis did not see them."""


@dataclass(frozen=True)
class LayerTimes(Stored):
    """The times of every call of a layer, in the order of the calls, and how accurate they are."""

    NOT_STORED: ClassVar[tuple[str, ...]] = ("host",)

    mode: Mode
    calls: tuple[CallTime, ...]
    warmup: int
    """Number of warm-up repeats at the beginning; only the raw rows include them."""
    forward: PhaseTimes
    backward: PhaseTimes | None = None
    probe_s: Mapping[str, float] = field(default_factory=dict)
    """The cost of a probe in seconds, as calibrated and subtracted: ``inside`` the window of a call, ``outside`` it, and
    ``backward`` for a node of the autograd graph."""
    unmet: tuple[str, ...] = ()
    """Conditions of the protocol that its longest time cut short."""
    host: Host = field(default_factory=dict, repr=False, compare=False)
    """The host on which they were measured, by the columns of :meth:`to_frame`; empty if it is not known."""

    @cached_property
    def seconds(self) -> tuple[Seconds, ...]:
        """One per call: medians over the repeats, scaled by one factor per phase so that they add up to the median of their sum.

        Noise is skewed, and the medians of hundreds of calls come to several per cent less than the median of what the calls took
        together. Means would add up, but a single stall would show as a slow layer.
        """
        forward, backward = self._self_seconds("forward"), self._self_seconds("backward")
        forward_totals, backward_totals = list(forward), list(backward)
        for totals in (forward_totals, backward_totals):
            for index, call in reversed(list(enumerate(self.calls))):  # a call comes after the one it was made in
                seconds = totals[index]
                if call.parent is not None and seconds is not None:
                    totals[call.parent] = (totals[call.parent] or 0.0) + seconds
        found = []
        for index, call in enumerate(self.calls):
            total, own = forward_totals[index] or 0.0, forward[index] or 0.0
            found.append(Seconds(total, own, backward_totals[index], backward[index], call.reason))
        return tuple(found)

    def below(self, path: str) -> Seconds | None:
        """Return the seconds of all calls below a module that is never called itself, such as a list; None without calls."""
        forward, backward, reason = [], [], None
        for call, seconds in zip(self.calls, self.seconds, strict=True):
            if not call.path.startswith(f"{path}."):
                continue
            forward.append(seconds.forward_self)
            if seconds.backward_self is not None:
                backward.append(seconds.backward_self)
            reason = reason or seconds.reason
        if not forward:
            return None
        if backward:
            return Seconds(sum(forward), 0.0, sum(backward), 0.0, None)
        return Seconds(sum(forward), 0.0, None, None, reason)

    @property
    def repeats(self) -> int:
        """Number of repeats, including warm-up."""
        if not self.calls:
            return self.warmup
        return len(self.calls[0].forward)

    @property
    def summary(self) -> TimingSummary:
        """Figures that show how accurate the seconds are."""
        backward = None if self.backward is None else self._summary("backward", self.backward)
        return TimingSummary(self.mode, self.repeats - self.warmup, self._summary("forward", self.forward), backward)

    def _summary(self, name: PhaseName, phase: PhaseTimes) -> PhaseSummary:
        kept = PhaseTimes(phase.plain[self.warmup :], phase.probed[self.warmup :])
        outside = 0.0
        for call, seconds in zip(self.calls, self._self_seconds(name), strict=True):
            if call.path == OUTSIDE:
                outside += seconds or 0.0
        plain = statistics.median(kept.plain) if kept.plain else None
        return PhaseSummary(plain, self._covered(name), kept.overhead, outside, self._doubt(name, kept))

    def _doubt(self, name: PhaseName, phase: PhaseTimes) -> str | None:
        parts = self._totals(name)
        ratio = disagreement(phase.plain or phase.probed, parts) if parts else None
        if ratio is None:
            return None
        share = "more than 1000%" if ratio > 10 else f"{100 * ratio:.0f}%"
        text = f"the times of the calls add up to {share} of the {name}"
        if phase.plain:
            return f"{text} without probes"
        return (
            f"{text} with probes; the rest is what probes are estimated to cost, which no step without probes confirms"
        )

    @property
    def warnings(self) -> tuple[Warning, ...]:
        """One for each phase whose calls do not add up to the step."""
        found = []
        for phase in (self.summary.forward, self.summary.backward):
            if phase is None or phase.doubt is None:
                continue
            advice = "use sweeprof.Profiler or metrics=layers, which also run steps without probes"
            if phase.plain_s is not None:
                advice = "measure on an idle machine, or raise protocol.min_samples"
            found.append(Warning("layer_times_off", phase.doubt, advice))
        return tuple(found)

    def without(self, excluded: Collection[str]) -> LayerTimes:
        """Return the times without the calls of these paths: their seconds are part of the calls around them.

        Seconds of a call that no other one is around become part of what runs outside any module.
        """
        position: dict[int | None, int | None] = {None: None}  # by place of a kept call, its place in the result
        outside = None
        calls: list[CallTime] = []
        for place, call in enumerate(self.calls):
            if call.path == OUTSIDE or call.path not in excluded:
                position[place] = len(calls)
                calls.append(call)
                if call.path == OUTSIDE and outside is None:
                    outside = position[place]
        for place, call in enumerate(self.calls):
            owner = call.parent
            while owner is not None and owner not in position:
                owner = self.calls[owner].parent
            around, kept = position[owner], position.get(place)
            if kept is not None:
                calls[kept] = dataclasses.replace(calls[kept], parent=around)
                continue
            around = outside if around is None else around
            if around is not None:
                total = calls[around]
                forward, backward = _added(total.forward, call.forward), _added(total.backward, call.backward)
                reason = None if backward else total.reason
                calls[around] = dataclasses.replace(total, forward=forward, backward=backward, reason=reason)
        return dataclasses.replace(self, calls=tuple(calls))

    def with_warmup(self, drop_first: int) -> LayerTimes:
        """The same measurements, of which the first ``drop_first`` repeats are for warming up.

        Raises:
            UserError: no repeat would be left, or it is negative.
        """
        if not 0 <= drop_first < self.repeats:
            allowed = f"must be at least 0 and less than the {self.repeats} repeats, or none is left."
            raise UserError([Problem("drop_first", drop_first, allowed)])
        return dataclasses.replace(self, warmup=drop_first)

    def to_frame(self, aggr: bool = True, inclusive: bool = True, host: bool = False) -> pandas.DataFrame:
        """Return the seconds of every call of every module, in the order of the calls.

        With ``aggr`` one line per call: ``path type call repeats``, then ``forward_mean_s``, ``_max_s``, ``_min_s``, ``_std_s``
        (n − 1) and ``_median_s`` over the repeats that count, the same of ``backward``, and ``reason``, why a value is missing.
        Without, one line per call and repeat: ``path type call repeat warmup forward_s backward_s reason``; the repeats for
        warming up are among them, and marked.

        Args:
            aggr: whether to aggregate.
            inclusive: whether seconds are those of a call with the calls within it, or its own.
            host: also columns that describe the host.

        Example:
            >>> frame = times.with_warmup(100).to_frame()
            >>> frame.to_csv(), frame.to_html(), frame.to_latex(), frame.to_dict("records")
        """
        forward, backward = [call.forward for call in self.calls], [call.backward for call in self.calls]
        if inclusive:
            for index, call in reversed(list(enumerate(self.calls))):  # a call comes after the one it was made in
                if call.parent is not None:
                    forward[call.parent] = _added(forward[call.parent], forward[index])
                    backward[call.parent] = _added(backward[call.parent], backward[index])
        lines: list[Json] = []
        for index, call in enumerate(self.calls):
            named = {"path": call.path, "type": call.type, "call": call.call}
            phases = {"forward": forward[index], "backward": backward[index]}
            reasons = [] if backward[index] else [call.reason or "the backward was not measured"]
            lines += repeat_lines(self.warmup, named, phases, aggr, reasons)
        return with_host(repeat_frame(lines), self.host, host)

    def total_frame(self, aggr: bool = True, host: bool = False) -> pandas.DataFrame:
        """Return the seconds of whole forwards, and backwards where measured, without any probes; columns as in :meth:`to_frame`.

        Raises:
            UserError: every step had probes.
        """
        if not self.forward.plain:
            raise UserError("every step had probes, so that there are no seconds without them")
        phases = {"forward": self.forward.plain}
        if self.backward:
            phases["backward"] = self.backward.plain
        return with_host(repeat_frame(repeat_lines(self.warmup, {}, phases, aggr)), self.host, host)

    @property
    def forward_covered(self) -> float | None:
        """The sum of all calls' own times, over the time of the adjacent forward without probes: the median over the repeats; None
        if every step had probes.
        """
        return self._covered("forward")

    @property
    def backward_covered(self) -> float | None:
        """The same of the backward; None where it was not measured."""
        return self._covered("backward")

    def _covered(self, name: PhaseName) -> float | None:
        phase: PhaseTimes | None = getattr(self, name)
        if phase is None or not phase.plain:
            return None
        pairs = zip(self._totals(name), phase.plain[self.warmup :], strict=True)
        return statistics.median(total / plain for total, plain in pairs)

    def _totals(self, phase: PhaseName) -> list[float]:
        """Return the sum of all calls' own times, for each repeat that counts."""
        known = [getattr(call, phase)[self.warmup :] for call in self.calls if getattr(call, phase)]
        return list(map(sum, zip(*known, strict=True)))

    def _self_seconds(self, phase: PhaseName) -> list[float | None]:
        """Return per call the scaled median of its own seconds; None where there are none."""
        medians: list[float | None] = []
        for call in self.calls:
            seconds = getattr(call, phase)
            medians.append(statistics.median(seconds[self.warmup :]) if seconds else None)
        together = sum(filter(None, medians))
        factor = statistics.median(self._totals(phase)) / together if together else 1.0
        return [None if median is None else median * factor for median in medians]

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> LayerTimes:
        """Return the times whose data :meth:`to_dict` returned."""
        times = validated(cls, data)
        for place, call in enumerate(times.calls):
            if call.parent is not None and not 0 <= call.parent < place:
                raise damaged(call.parent, "the position of an earlier call", ["calls", place, "parent"])
        phases: dict[PhaseName, PhaseTimes | None] = {"forward": times.forward, "backward": times.backward}
        for name, phase in phases.items():
            repeats = 0
            if phase is not None:
                repeats = len(phase.plain)
                if len(phase.probed) != repeats or not 0 <= times.warmup < repeats:
                    raise damaged(repeats, "a number of repeats that fits the others", [name, "plain"])
            for place, call in enumerate(times.calls):
                if len(getattr(call, name)) not in (0, repeats):
                    raise damaged(len(getattr(call, name)), f"the number of repeats, {repeats}", ["calls", place, name])
        return times


@dataclass(frozen=True, slots=True)
class Iteration(Displayed):
    """The duration of one step and its phases, in seconds. A phase that did not take place is None."""

    iteration_s: float
    """From the beginning to the end of the step, whatever the loop does in between; as forward and backward with what the probes
    cost, a few per cent of a large model and more of a small one."""
    forward_s: float | None
    """The model's calls, those that were differentiated where any were."""
    backward_s: float | None
    """From the first gradient of the model's outputs to the end of the backward, of all backwards."""
    update_s: float | None
    """The optimizers' steps."""
    batch_size: int | None = None
    """Length of the first axis of the first tensor that the model was called with, all calls together."""

    def samples_per_s(self, replicas: int = 1) -> float | None:
        """Samples in a second, of all ``replicas`` of the model that train on a batch of this size each."""
        return None if self.batch_size is None else self.batch_size * replicas / self.iteration_s
