"""Runs of programs (backend=command): time, memory, and the numbers that the programs report."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from sweeprof.errors import Problem, Unsupported
from sweeprof.metrics.latency import Rounds, described_samples, over_rounds, single
from sweeprof.metrics.metric import Estimate, Metric, Missing, metric
from sweeprof.results.measurement import Better, MetricInfo
from sweeprof.results.observations import CommandRuns
from sweeprof.results.record import Json
from sweeprof.results.statistics import median_interval

REPORTED = "sweeprof.metrics.command.reported_metric"
"""In place of the dotted name of a function, in an entry of a metric set: a number that programs report."""


@metric(name="command/time", unit="s", better="lower")
def time(timing: Rounds) -> Estimate | Missing:
    """Wall time of one run of the program, from its start to its end; the median of the runs.

    Over rounds it is the geometric mean of their medians. With backend.shell=true the time of an empty shell is subtracted.
    """
    shells = [runs.shell_s for runs in _runs(timing)]
    for round, shell_s in zip(timing, shells, strict=True):
        if statistics.median(round.samples) <= 0:
            return Missing(f"it took no longer than an empty shell ({shell_s * 1000:.3g} ms), which is subtracted")
    estimate = over_rounds(timing, are_of_steps=False)
    if any(shells):
        estimate = replace(estimate, detail={**estimate.detail, "subtracted for the shell": statistics.fmean(shells)})
    return estimate


@metric(name="command/user_time", unit="s", better="lower")
def user_time(timing: Rounds) -> Estimate:
    """Processor time of one run in user mode, with the processes that the program waited for; the median of the runs."""
    return _over_runs(timing, [runs.user_s for runs in _runs(timing)])


@metric(name="command/system_time", unit="s", better="lower")
def system_time(timing: Rounds) -> Estimate:
    """Processor time of one run in the kernel, with the processes that the program waited for; the median of the runs."""
    return _over_runs(timing, [runs.system_s for runs in _runs(timing)])


@metric(name="command/memory", unit="B", better="lower")
def memory(timing: Rounds) -> Estimate | Missing:
    """Highest memory of the program and all processes that it started together, in one run that is not timed.

    Pages that several processes share count once. It is read every millisecond at first, later every 0.2 s.
    """
    peaks = [runs.memory_bytes for runs in _runs(timing)]
    return _peak(timing, peaks, "the program ended before its memory could be read")


@metric(name="command/server_memory", unit="B", better="lower")
def server_memory(timing: Rounds) -> Estimate | Missing:
    """Highest memory of the server and all processes that it started together, during the run in which command/memory is read."""
    peaks = [runs.server_memory_bytes for runs in _runs(timing)]
    return _peak(timing, peaks, "no server ran, or the program ended too soon")


@metric(name="command/exit_code", unit="abs", better=None)
def exit_code(timing: Rounds) -> Estimate | Missing:
    """Exit code of the program, if all runs had the same; another one than those of backend.success is a failure."""
    codes = sorted(set(chain.from_iterable(runs.exit_codes for runs in _runs(timing))))
    if len(codes) > 1:
        return Missing(f"runs had different exit codes: {', '.join(map(str, codes))}")
    return Estimate(codes[0], "exact")


def reported_metric(name: str, unit: str = "abs", better: Better = None) -> Metric:
    """Return the metric that reads the numbers that programs report as ``name``."""

    def reported(timing: Rounds) -> Estimate | Missing:
        by_round = []
        for runs in _runs(timing):
            if name not in runs.reported:
                return Missing(runs.missing.get(name, f"backend.metrics of this combination has no {name}"))
            by_round.append(runs.reported[name])
        return _over_runs(timing, by_round)

    definition = f"backend.metrics.{name} of the config, as the program reports it; the median of its numbers."
    return Metric(MetricInfo(f"command/{name}", unit, better, definition), reported, ("timing",), ())


def entries_of(backends: Iterable[Json]) -> list[str | Json]:
    """Return the entries of a metric set for the servers of some backends, and for the numbers that their programs report."""
    found: dict[str, str | Json] = {}
    for backend in backends:
        if backend.get("server"):
            found["server_memory"] = "command/server_memory"
        for entry in _reported(backend):
            found.setdefault(entry["name"], entry)
    return list(found.values())


def reported_problems(backends: Iterable[Json]) -> Iterator[Problem]:
    """Return the problems of numbers to which backends of one sweep give different units or directions."""
    found: dict[str, Json] = {}
    for backend in backends:
        for entry in _reported(backend):
            first = found.setdefault(entry["name"], entry)
            for key in ("unit", "better"):
                if entry[key] != first[key]:
                    message = (
                        f"differs from {first[key]!r} of another combination: a number has one unit and one direction in a sweep. "
                        "Convert it in the program, or give the two different names."
                    )
                    yield Problem(f"backend.metrics.{entry['name']}.{key}", entry[key], message)


def _reported(backend: Json) -> Iterator[Json]:
    """Yield the entries of a metric set for the numbers that the programs of a backend report."""
    metrics = backend.get("metrics")
    for name, spec in metrics.items() if isinstance(metrics, Mapping) else ():
        unit = spec.get("unit", "abs") if isinstance(spec, Mapping) else None
        if isinstance(name, str) and isinstance(unit, str):  # others are reported with the backend's other settings
            yield {"_target_": REPORTED, "name": name, "unit": unit, "better": spec.get("better")}


def _runs(timing: Rounds) -> list[CommandRuns]:
    """Return the runs of each round; raises :class:`Unsupported` if a step is no run of a program."""
    found = [round.command for round in timing if round.command is not None]
    if not found:
        raise Unsupported("mode=command is needed: no program was run")
    return found


def _peak(timing: Rounds, peaks: Sequence[int | None], reason: str) -> Estimate | Missing:
    known = [float(peak) for peak in peaks if peak is not None]
    return single(known, timing) if len(known) == len(peaks) else Missing(reason)


def _over_runs(timing: Rounds, by_round: Sequence[Sequence[float]]) -> Estimate:
    """Return the median of the samples of each round, over rounds their mean."""
    samples = list(chain.from_iterable(by_round))
    estimate = single([statistics.median(values) for values in by_round], timing, "median")
    if len(by_round) == 1:
        estimate = replace(estimate, interval=median_interval(samples))
    return replace(estimate, detail={**described_samples(samples), "mean": statistics.fmean(samples)})
