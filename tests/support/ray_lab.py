"""A real Ray cluster of three nodes on this machine, with different resources and labels."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

NODES: dict[str, dict[str, Any]] = {
    "a": {"num_cpus": 2},
    "b": {"num_cpus": 2, "resources": {"fast_disk": 1}},
    "c": {"num_cpus": 4},
}
"""By the value of their label ``zone``."""
QUIET = {"include_dashboard": False, "object_store_memory": 80 << 20}
NOTICES = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 10}
"""A dead node is noticed after 10 s; less, and a busy machine has dead nodes."""
KILL = "import sys, ray; ray.init(sys.argv[1], namespace='sweeprof', log_to_driver=False); ray.kill(ray.get_actor(sys.argv[2]))"


class RayLab:
    """A running cluster; its head node runs no tasks."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "_system_config": NOTICES, **QUIET}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: dict[str, Any] = {}
        self.revive()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return str(self._cluster.address)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of a sweep on it."""
        return ("cluster=ray", f"cluster.address={self.address}", "cluster.poll_s=0.5")

    def zone(self, node: str) -> str:
        """Return the zone of a node by the name that records have for it."""
        return next(zone for zone, one in self._nodes.items() if node.endswith(f":{one.node_id[:8]}"))

    def kill_node(self, zone: str) -> None:
        """Kill every process of Ray on a node; nothing on it ends in an orderly way."""
        node = self._nodes.pop(zone)
        own = [psutil.Process(info.process.pid) for infos in node.all_processes.values() for info in infos]
        for process in [child for one in own for child in one.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._cluster.remove_node(node, allow_graceful=False)

    def revive(self) -> None:
        """Start the nodes that do not run."""
        for zone in NODES.keys() - self._nodes.keys():
            self._nodes[zone] = self._cluster.add_node(labels={"zone": zone}, **NODES[zone], **QUIET)

    def kill_task(self, task: str) -> None:
        """Kill the actor of a task."""
        subprocess.run([sys.executable, "-c", KILL, self.address, task], check=True, capture_output=True, timeout=60)

    def stop(self) -> None:
        """End all of its processes."""
        self._cluster.shutdown()

    def wait_until(self, predicate: Callable[[], object], timeout_s: float, what: str) -> None:
        """Wait until the predicate is true; else fail with what was awaited."""
        deadline = time.monotonic() + timeout_s
        while not predicate():
            assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
            time.sleep(0.1)
