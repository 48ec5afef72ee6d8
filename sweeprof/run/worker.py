"""The process of one trial: run the pass, write a record, end."""

from __future__ import annotations

import faulthandler
import os
import random
import re
import resource
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from sweeprof.datasets.arrays import Digits
from sweeprof.errors import CommandError, Unsupported, described, formatted, location_of, original
from sweeprof.measuring import nvml
from sweeprof.passes.registry import PassResult, exclusive_passes, pass_named
from sweeprof.profiling.profiler import Profiler
from sweeprof.results import environment
from sweeprof.results.compared_rows import warnings_of
from sweeprof.results.environment import load
from sweeprof.results.files import write_bytes
from sweeprof.results.record import Json, Record, Status, TrialGpu, Warning
from sweeprof.run.interleave import InterleavedParticipant, Request, joined
from sweeprof.run.trial_limits import excess_reason, shared_bytes
from sweeprof.storage import Folder
from sweeprof.text import LONGEST_TRACEBACK, open_closed_descriptors, stored

DEFAULT_DATASET = f"{Digits.__module__}.{Digits.__qualname__}"
LIMITS = (
    resource.RLIMIT_CPU,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_AS,
    resource.RLIMIT_DATA,
    resource.RLIMIT_STACK,
)
"""Limits that can keep a record from being written."""


def run_trial(request: Request) -> None:
    """Run the trial in this process and write its record."""
    with joined(request.interleaved, request.blank["combination_id"]) as participant:
        _run(request, participant)


def _run(request: Request, participant: InterleavedParticipant | None) -> None:
    costs = {"fork": time.monotonic() - request.asked}
    started = datetime.now(UTC).isoformat(timespec="seconds")
    blank = Record.from_dict(request.blank)
    log, folder = Path(request.log), Folder(Path(request.records).parent)
    profiler: Profiler | None = None
    interference = Interference(blank, request.family)
    warnings: list[Warning] = []
    result: Any = None
    status: Status = "ok"
    reason: str | None = None
    trace: str | None = None
    location: str | None = None
    before = _ProcessState()
    try:
        if request.memory is not None:  # beyond which allocations fail, and the pass raises
            limit = psutil.Process().memory_info().data + request.memory
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        # User code may draw from these generators beside the framework's, before anything is built.
        random.seed(blank.config["seed"]["weights"])
        np.random.seed(blank.config["seed"]["weights"])
        profiler = Profiler.from_config(blank.config)
        profiler.session.participant, profiler.session.server = participant, request.server
        found = profiler.run(blank.pass_name)
        result = _plain(found)
        if request.memory is not None and shared_bytes() > request.memory:  # before the fork server has seen it
            raise MemoryError(excess_reason(shared_bytes(), request.memory))
        for name, content in getattr(found, "files", {}).items():
            write_bytes(folder.path / "artifacts" / blank.combination_id / name, content)
        warnings += getattr(found, "warnings", ())
        for trace_of_metric in getattr(found, "tracebacks", ()):
            _log(log, trace_of_metric)
    except Exception as error:
        status, reason, trace = _outcome(error, profiler, blank.config)
        if profiler is not None and profiler.session.partial is not None:
            result = _plain(profiler.session.partial)
        if trace:
            location = location_of(error)
            _log(log, trace)
    others, disturbed = interference.observed()
    deviating: Sequence[Warning] = ()
    if profiler is not None:
        costs |= profiler.session.costs
        warnings += profiler.session.warnings
        deviating = warnings_of(profiler.session.settings.deviations)
    if participant and "measure" in costs:  # without the turns of the other participants
        costs["measure"] -= participant.waited_s
        costs["wait"] = participant.waited_s
    before.restore()
    repaired = folder.repair(blank.combination_id)
    if repaired:
        text = f"The folder of the sweep was changed: {'; '.join(repaired)}."
        warnings.append(Warning("folder_changed", text, "Keep the model's code from changing the folder of the sweep."))
    replace(
        blank,
        status=status,
        reason=reason,
        traceback=trace,
        location=location,
        observations=result,
        warnings=tuple(dict.fromkeys((*disturbed, *warnings, *deviating))),
        started=started,
        wall_s=time.monotonic() - request.asked,
        costs=costs,
        environment={**blank.environment, "load": load(), **_settings(blank, profiler), **others},
    ).write(Path(request.records))


class _ProcessState:
    """What a model may change in its process, and would keep the record from being written."""

    def __init__(self) -> None:
        self._limits = {which: resource.getrlimit(which)[0] for which in LIMITS}
        self._umask = os.umask(0o022)
        os.umask(self._umask)

    def restore(self) -> None:
        """Restore the mask of new files and the standard streams, and the limits as far as the model left that possible."""
        for which, before in self._limits.items():
            hard = resource.getrlimit(which)[1]
            if before == resource.RLIM_INFINITY:
                soft = hard
            elif hard == resource.RLIM_INFINITY:
                soft = before
            else:
                soft = min(before, hard)
            resource.setrlimit(which, (soft, hard))
        os.umask(self._umask)
        open_closed_descriptors()


class Interference:
    """The load by other processes during a trial, and the state of its GPU; observed before and after it, and not in between."""

    def __init__(self, blank: Record, family: int) -> None:
        self._environment, self._family = blank.environment, family or os.getpid()
        self._gpu: str | None = None
        """The GPU's name; None: the trial measures none."""
        device = str(blank.config["device"]["type"])
        # NVML has a thread, and a process with threads cannot have the child in which a pass measures something first.
        is_timed = blank.pass_name in exclusive_passes() and pass_named(blank.pass_name).first is None
        if is_timed and device.partition(":")[0] in nvml.CUDA_DEVICES:
            self._gpu = device
            self._gpu_before = nvml.state_of(device)
        self._began = time.time()
        self._before = environment.look() if blank.pass_name in exclusive_passes() else None

    def observed(self) -> tuple[Json, list[Warning]]:
        """Return the entries of the record's environment, and the warnings for them.

        ``ran``: from when to when, in seconds since the epoch; ``others``: only for passes that measure; ``gpu``: with its state.
        """
        ran = [self._began, time.time()]
        if self._before is None:
            return {"ran": ran}, []
        seen: dict[str, Any] = environment.between(self._before, environment.look(), self._family)
        warnings = [*environment.warnings_of(seen), *environment.governor_warnings()]
        seen["trials"] = self._environment.get("others", {}).get("trials", [])
        if self._gpu is None:
            return {"ran": ran, "others": seen}, warnings
        before, after = self._gpu_before, nvml.state_of(self._gpu)
        own = {os.getpid()}
        with suppress(psutil.Error):
            own.update(process.pid for process in psutil.Process(self._family).children(recursive=True))
        others = nvml.others_of(before, after, own)
        warnings += nvml.trial_warnings(before, after, others, ran[1] - ran[0])
        seen["gpu"] = {"processes": others}
        if after.processes is None:
            seen["gpu"] = {"processes": None, "reason": after.reason or after.reasons["processes"]}
        gpu: TrialGpu = {"driver": after.driver, "power_limit_w": after.power_limit_w}
        gpu |= {"before": before.to_dict(), "after": after.to_dict()}
        return {"ran": ran, "others": seen, "gpu": {**self._environment.get("gpu", {}), **gpu}}, warnings


def _plain(found: PassResult) -> Json:
    """Return the result of a pass as JSON data."""
    data: Json = found.to_dict() if hasattr(found, "to_dict") else asdict(found)
    return data


def _settings(blank: Record, profiler: Profiler | None) -> Json:
    """Return the settings that were in effect while the model ran, and where they were not as requested."""
    found: Json = {"threads": blank.config["backend"].get("threads")}
    if profiler is not None and profiler.session.settings.in_effect:
        settings = profiler.session.settings
        found["settings"] = dict(settings.in_effect)
        found["threads"] = settings.in_effect.get("threads", found["threads"])
        if settings.deviations:
            found["deviations"] = {name: list(values) for name, values in settings.deviations.items()}
    return found


def _outcome(error: Exception, profiler: Profiler | None, config: Json) -> tuple[Status, str, str | None]:
    """Return status, reason and traceback of a trial that raised."""
    cause = original(error)
    if isinstance(cause, Unsupported):
        return "unsupported", _with_dataset_advice(str(cause), config), None
    if isinstance(cause, CommandError):
        return cause.status, str(cause), None
    status: Status = "failed"
    if isinstance(cause, MemoryError) or (profiler and profiler.session.backend.is_out_of_memory(cause)):
        status = "oom"
    return status, _with_dataset_advice(described(error), config), formatted(error)


_SHAPES = re.compile(r"\b(?:shape|size|channel|dim|dimension|ax[ie]s|rank)s?\b", re.IGNORECASE)


def _with_dataset_advice(reason: str, config: Json) -> str:
    """Return the reason of a failure; if it is about shapes and the dataset is the default one, with another dataset."""
    if config["dataset"]["_target_"] != DEFAULT_DATASET or not _SHAPES.search(reason):
        return reason
    shape = "×".join(map(str, Digits.sample_shape))
    return f"{reason}. The samples of dataset=digits are {shape}; for others, add dataset=synthetic 'dataset.shape=[3,224,224]'"


def _log(log: Path, trace: str) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(stored(trace, LONGEST_TRACEBACK))


def redirect_output(log: Path) -> None:
    """Send everything this process prints, also from C, to ``log``, and a traceback of every thread if it crashes."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable(file=2)
