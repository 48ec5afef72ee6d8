"""Runs of programs (backend=command): time, memory, and the numbers that the programs report."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sweeprof.metrics.latency import Rounds, described_samples, over_rounds, single
from sweeprof.metrics.metric import Estimate, Metric, Missing, metric
from sweeprof.results.measurement import Better, MetricInfo
from sweeprof.results.observations import CommandRuns
from sweeprof.results.record import Json
from sweeprof.results.statistics import mean_interval, median_interval

NOT_RUN = Missing("mode=command is needed: no program was run")
REPORTED = "sweeprof.metrics.command.reported_metric"
"""In place of the dotted name of a function, in an entry of a metric set: a number that programs report."""


@metric(name="command/time", unit="s", better="lower")
def time(timing: Rounds) -> Estimate | Missing:
    """Wall time of one run of the program, from its start to its end; the median of the runs.

    Over rounds it is the geometric mean of their medians. With backend.shell=true the time of an empty shell is subtracted.
    """
    shell_s = []
    for round in timing:
        if round.command is None:
            return NOT_RUN
        if statistics.median(round.samples) <= 0:
            return Missing(
                f"it took no longer than an empty shell ({round.command.shell_s * 1000:.3g} ms), which is subtracted"
            )
        shell_s.append(round.command.shell_s)
    estimate = over_rounds(timing, are_of_steps=False)
    if any(shell_s):
        estimate = replace(estimate, detail={**estimate.detail, "subtracted for the shell": statistics.fmean(shell_s)})
    return estimate


@metric(name="command/user_time", unit="s", better="lower")
def user_time(timing: Rounds) -> Estimate | Missing:
    """Processor time of one run in user mode, with the processes that the program waited for; the median of the runs."""
    return _over_runs(timing, lambda runs: runs.user_s)


@metric(name="command/system_time", unit="s", better="lower")
def system_time(timing: Rounds) -> Estimate | Missing:
    """Processor time of one run in the kernel, with the processes that the program waited for; the median of the runs."""
    return _over_runs(timing, lambda runs: runs.system_s)


@metric(name="command/memory", unit="B", better="lower")
def memory(timing: Rounds) -> Estimate | Missing:
    """Highest memory of the program and all processes that it started together, in one run that is not timed.

    Pages that several processes share count once. It is read every millisecond at first, later every 0.2 s.
    """
    return _peak(timing, lambda runs: runs.memory_bytes, "the program ended before its memory could be read")


@metric(name="command/server_memory", unit="B", better="lower")
def server_memory(timing: Rounds) -> Estimate | Missing:
    """Highest memory of the server and all processes that it started together, during the run in which command/memory is read."""
    return _peak(timing, lambda runs: runs.server_memory_bytes, "no server ran, or the program ended too soon")


@metric(name="command/exit_code", unit="abs", better=None)
def exit_code(timing: Rounds) -> Estimate | Missing:
    """Exit code of the program, if all runs had the same; another one than those of backend.success is a failure."""
    codes: list[int] = []
    for round in timing:
        if round.command is None:
            return NOT_RUN
        codes += round.command.exit_codes
    if len(set(codes)) > 1:
        return Missing(f"runs had different exit codes: {', '.join(map(str, sorted(set(codes))))}")
    return Estimate(codes[0], "exact")


def reported_metric(name: str, unit: str = "abs", better: Better = None) -> Metric:
    """Return the metric that reads the numbers that programs report as ``name``."""

    def reported(timing: Rounds) -> Estimate | Missing:
        for round in timing:
            if round.command is None:
                return NOT_RUN
            if name in round.command.missing:
                return Missing(round.command.missing[name])
            if name not in round.command.reported:
                return Missing(f"backend.metrics of this combination has no {name}")
        return _over_runs(timing, lambda runs: runs.reported[name])

    definition = f"backend.metrics.{name} of the config, as the program reports it; the median of its numbers."
    return Metric(MetricInfo(f"command/{name}", unit, better, definition), reported, ("timing",), ())


def entries_of(backends: Iterable[Json]) -> list[str | Json]:
    """Return the entries of a metric set for the servers of some backends, and for the numbers that their programs report."""
    found: dict[str, str | Json] = {}
    for backend in backends:
        if backend.get("server"):
            found["server_memory"] = "command/server_memory"
        for name, spec in (backend.get("metrics") or {}).items():
            entry = {"_target_": REPORTED, "name": name, "unit": spec.get("unit", "abs"), "better": spec.get("better")}
            found.setdefault(name, entry)
    return list(found.values())


def _peak(timing: Rounds, bytes_of: Callable[[CommandRuns], int | None], reason: str) -> Estimate | Missing:
    found = []
    for round in timing:
        if round.command is None:
            return NOT_RUN
        peak = bytes_of(round.command)
        if peak is None:
            return Missing(reason)
        found.append(float(peak))
    return single(found, timing)


def _over_runs(timing: Rounds, samples_of: Callable[[CommandRuns], Sequence[float]]) -> Estimate | Missing:
    """Return the median of the samples of each round, over rounds their mean: the geometric one, if all are above 0."""
    by_round: list[Sequence[float]] = []
    for round in timing:
        if round.command is None:
            return NOT_RUN
        by_round.append(samples_of(round.command))
    samples = [value for values in by_round for value in values]
    medians = [statistics.median(values) for values in by_round]
    interval = median_interval(samples)
    if min(medians) > 0:
        estimate = single(medians, timing, "median")
    else:
        estimate = Estimate(
            statistics.fmean(medians), "median" if len(medians) == 1 else f"mean of {len(medians)} rounds"
        )
    if len(medians) > 1:
        interval = estimate.interval or mean_interval(medians)
    detail = {**described_samples(samples), "mean": statistics.fmean(samples)}
    return replace(estimate, interval=interval, detail=detail)
