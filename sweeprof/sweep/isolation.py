"""Where a trial runs: in a forked child (default), in a new interpreter, or right here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from sweeprof.sweep.template import Ending, Template, child_environment
from sweeprof.sweep.worker import Request, run_trial

EVERY_TRIAL = ("hydra.utils",)
"""Modules that the worker itself needs, whatever it measures."""


class Isolation(Protocol):
    """Runs trials; a context that leaves no process behind."""

    def __enter__(self) -> Isolation: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, request: Request) -> Ending:
        """Run the trial and wait for its end.

        Raises:
            WorkerError: no process for the trial could be had.
        """


class Fork:
    """A child per trial, forked from a template per framework."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._templates: dict[str, Template] = {}

    def __enter__(self) -> Fork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for template in self._templates.values():
            template.close()

    def run(self, request: Request) -> Ending:
        config = request.blank["config"]
        modules = preload(config, request.blank["pass"])
        key = json.dumps([modules, environment(config)], sort_keys=True)
        template = self._templates.pop(key, None)
        if template is not None and not template.alive:  # killed while it waited: no trial's fault
            template.close()
            template = None
        template = template or self._started(config, modules)
        try:
            ending = template.run(replace(request, asked=time.monotonic()))  # the import was no part of this trial
        except BaseException:
            template.close()
            raise
        self._templates[key] = template
        return ending

    def _started(self, config: Mapping[str, Any], modules: list[str]) -> Template:
        framework = config["backend"]["framework"]
        return Template(modules, environment(config), self._logs / f"template-{framework}.log")


class Spawn:
    """A new interpreter per trial: slower by the framework's import, free of anything shared."""

    def __enter__(self) -> Spawn:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing outlives a trial."""

    def run(self, request: Request) -> Ending:
        process = subprocess.Popen(
            [sys.executable, "-m", "sweeprof.sweep.worker"],
            stdin=subprocess.PIPE,
            env=child_environment(environment(request.blank["config"])),
            start_new_session=True,
            text=True,
        )
        timed_out = False
        try:
            process.communicate(json.dumps(asdict(request)), request.timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            with suppress(ProcessLookupError):  # the whole group may have ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return Ending(process.returncode, timed_out)


class Inline:
    """No isolation: the trial runs in this process."""

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to end."""

    def run(self, request: Request) -> Ending:
        run_trial(replace(request, memory=None))  # a limit would stay with this process
        return Ending(0)


def isolation(name: str, logs: Path) -> Isolation:
    """The isolation that the config key ``isolation`` names."""
    match name:
        case "spawn":
            return Spawn()
        case "inline":
            return Inline()
        case _:
            return Fork(logs)


def preload(config: Mapping[str, Any], pass_name: str) -> list[str]:
    """The modules that the template for this combination and pass imports."""
    backend, dataset = config["backend"], config["dataset"]
    special = backend.get("preload_for", {}).get(pass_name, [])
    return [*EVERY_TRIAL, *backend.get("preload", []), *special, *dataset.get("preload", [])]


def environment(config: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables that the backend asks for."""
    return {key: str(value) for key, value in (config["backend"].get("environment") or {}).items()}
