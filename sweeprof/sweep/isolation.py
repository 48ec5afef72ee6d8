"""Where a trial runs: in a forked child (default), in a new interpreter, or right here."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from sweeprof.errors import WorkerError
from sweeprof.metrics.select import FAMILIES
from sweeprof.sweep.template import Ending, Template
from sweeprof.sweep.worker import Request, run_trial

EVERY_TRIAL = (
    "hydra.utils",
    *(f"sweeprof.metrics.{family}" for family in FAMILIES),
    "sweeprof.datasets.synthetic",
    "sweeprof.zoo.loading",
)
"""Modules that the worker needs whatever it measures, or that so many need that each trial would import them anew."""


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


class _Templated:
    """Runs one trial at a time, which another thread may end by leaving the context."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._idle: dict[str, Template] = {}
        self._running: Template | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        for template in (*self._idle.values(), self._running):
            if template is not None:
                template.close()

    def _run_in(self, template: Template, request: Request, keep_as: str | None = None) -> Ending:
        """Run the trial; the template is then closed, or kept under a name."""
        self._running = template  # before the look at the flag: who leaves the context sets that, and then looks here
        try:
            if self._is_closed:
                raise WorkerError("the sweep ends")
            ending = template.run(request)
        except BaseException:
            template.close()
            raise
        else:
            if keep_as is None:
                template.close()
            else:
                self._idle[keep_as] = template
            return ending
        finally:
            self._running = None


class Fork(_Templated):
    """A child per trial, forked from a template per framework."""

    def run(self, request: Request) -> Ending:
        config = request.blank["config"]
        modules = preload(config, request.blank["pass"])
        variables = {**environment(config, request.blank["pass"]), **request.environment}
        key = json.dumps([modules, variables], sort_keys=True)
        template = self._idle.pop(key, None)
        if template is not None and not template.alive:  # killed while it waited: no trial's fault
            template.close()
            template = None
        template = template or self._started(config, modules, variables)
        # The import was no part of this trial.
        return self._run_in(template, replace(request, asked=time.monotonic()), keep_as=key)

    def _started(self, config: Mapping[str, Any], modules: list[str], variables: Mapping[str, str]) -> Template:
        framework = config["backend"]["framework"]
        return Template(modules, variables, self._logs / f"template-{framework}.log")


class Spawn(_Templated):
    """A new interpreter per trial, which has imported nothing: slower by the framework's import, free of anything shared."""

    def run(self, request: Request) -> Ending:
        variables = {**environment(request.blank["config"], request.blank["pass"]), **request.environment}
        return self._run_in(Template([], variables, self._logs / "template-spawn.log"), request)


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
            return Spawn(logs)
        case "inline":
            return Inline()
        case _:
            return Fork(logs)


def preload(config: Mapping[str, Any], pass_name: str) -> list[str]:
    """The modules that the template for this combination and pass imports."""
    backend, dataset = config["backend"], config["dataset"]
    special = backend.get("preload_for", {}).get(pass_name, [])
    return [*EVERY_TRIAL, *backend.get("preload", []), *special, *dataset.get("preload", [])]


def environment(config: Mapping[str, Any], pass_name: str = "") -> dict[str, str]:
    """The environment variables that the backend asks for, those for one pass among them."""
    backend = config["backend"]
    asked = {**(backend.get("environment") or {}), **backend.get("environment_for", {}).get(pass_name, {})}
    return {key: str(value) for key, value in asked.items()}
