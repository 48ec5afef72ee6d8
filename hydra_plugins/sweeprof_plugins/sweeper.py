"""The sweeper for Hydra, which accepts plugin classes only if they are defined in this namespace."""

from __future__ import annotations

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class SweeprofSweeper(Sweeper):
    """Hands the sweep to sweeprof."""

    def __init__(self, params: DictConfig | None = None) -> None:
        self._params = params

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._arguments = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> Any:
        # Hydra imports every plugin at each start, also for --help and for other applications.
        from sweeprof.run.sweeper import sweep

        return sweep(*self._arguments, self._params, arguments)
