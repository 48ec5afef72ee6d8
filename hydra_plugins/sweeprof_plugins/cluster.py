"""The launcher of clusters for Hydra, which accepts plugin classes only if they are defined in this namespace."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class ClusterLauncher(Launcher):
    """Hands shards to a cluster as tasks; these read the sweep's folder, so nothing is pickled or composed again."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        # Hydra imports every plugin at each start, also for --help and for other applications.
        from sweeprof.cluster.job_tracker import launch

        launch(self._config.hydra.sweep.dir)
        return []
