"""``python -m sweeprof.cluster.ray_process DESCRIPTOR ADDRESS``: the process that is connected to Ray."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError

from sweeprof.processes import Connection
from sweeprof.results.record import Json

NAMESPACE = "sweeprof"
CAUSES = {"killed by `ray.kill`": "CANCELLED", "its node has died": "NODE_FAIL", "memory": "OUT_OF_MEMORY"}
"""The state of a task by what Ray says of its actor's death."""
CONNECT_S = 10.0
RESTARTS = 1
"""How often Ray starts an actor again whose node died: also without a driver."""


def actor_class() -> Any:
    """Return the actor of a task, which holds its resources until its script has ended.

    It is defined here so that it is sent to the node by value: Ray's own Python there need not have sweeprof.
    """

    class RayTask:
        # All within the constructor: a call of a method ends with the process that made it, which is the driver.
        def __init__(self, script: str, log: str, cwd: str, job: str) -> None:
            from contextlib import suppress
            from pathlib import Path

            context = ray.get_runtime_context()
            variables = {
                "SWEEPROF_SCHEDULER": "ray",
                "SWEEPROF_JOB": job,
                "SWEEPROF_TASK": job.rpartition("_")[2],
                "SWEEPROF_NODE": f"{socket.gethostname()}:{context.get_node_id()[:8]}",
                "SWEEPROF_RESTARTS": str(int(context.was_current_actor_reconstructed)),
                "SWEEPROF_PARENT": str(os.getpid()),
            }
            with suppress(OSError):  # only root may
                os.nice(-os.nice(0))  # Ray's workers yield to everything else on the host
            try:
                with Path(log).open("ab") as output:
                    subprocess.run(
                        ["bash", script],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        env={**os.environ, **variables},
                        cwd=cwd,
                        check=False,
                    )
            finally:
                ray.actor.exit_actor()

    return RayTask


class Connected:
    """The actors of sweeps in a cluster."""

    def __init__(self, address: str) -> None:
        if re.fullmatch(r"[\w.-]+:\d+", address):  # Ray itself tries for more than a minute
            host, port = address.rsplit(":", 1)
            socket.create_connection((host, int(port)), CONNECT_S).close()
        ray.init(address or "auto", namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
        self._handles: dict[str, Any] = {}

    def submit(self, message: Json) -> None:
        """Create the actors of an array."""
        task = ray.remote(actor_class())
        for number, log in enumerate(message["logs"]):
            name = f"{message['submit']}_{number}"
            options = {"name": name, "lifetime": "detached", "max_restarts": RESTARTS, **message["options"]}
            self._handles[name] = task.options(**options).remote(message["script"], log, message["cwd"], name)

    def states(self, arrays: Mapping[str, Json]) -> dict[str, tuple[str, str]]:
        """Return the state of every actor that Ray lists or whose end is known, and why it waits."""
        nodes = [node for node in ray.nodes() if node["Alive"]]
        waits = {array: why_it_waits(options, nodes) for array, options in arrays.items()}
        found: dict[str, tuple[str, str]] = {}
        for name in ray.util.list_named_actors():
            array = name.rpartition("_")[0]
            if array in arrays:
                found[name] = "PENDING", waits[array]
                if name not in self._handles:
                    with suppress(ValueError):  # it has just ended
                        self._handles[name] = ray.get_actor(name)
        for name, handle in self._handles.items():
            if name not in found and name.rpartition("_")[0] in arrays:
                state = cause_of_death(handle)
                if state is not None:
                    found[name] = state, ""
        return found

    def cancel(self, arrays: list[str]) -> None:
        """Kill the actors of arrays."""
        for name in ray.util.list_named_actors():
            if name.rpartition("_")[0] in arrays:
                ray.kill(ray.get_actor(name))


def cause_of_death(handle: Any) -> str | None:
    """Return the state of a task whose actor has ended; None if its own note tells more."""
    try:
        ray.get(handle.__ray_ready__.remote(), timeout=0.1)
    except ActorDiedError as error:
        for text, state in CAUSES.items():
            if text in str(error):
                return state
    except (ActorUnavailableError, GetTimeoutError):
        pass
    return None


def why_it_waits(options: Json, nodes: list[Json]) -> str:
    """Return what no node of the cluster has; empty if a node fits."""
    wanted = {"CPU": options.get("num_cpus", 0), "GPU": options.get("num_gpus", 0), **options.get("resources", {})}
    if "memory" in options:
        wanted["memory"] = options["memory"]
    labels = {key: str(value) for key, value in options.get("label_selector", {}).items() if str(value).isalnum()}
    for node in nodes:
        has_all = all(node["Resources"].get(key, 0) >= count for key, count in wanted.items())
        if has_all and labels.items() <= node.get("Labels", {}).items():
            return ""
    named = [f"{key}={count:g}" for key, count in wanted.items() if count]
    named += map("=".join, labels.items())
    return f"no node has {', '.join(named)}"


def serve(connection: Connection, address: str) -> None:
    """Answer messages until the other side is gone."""
    connected: Connected | None = None
    for message in connection.messages():
        answer: Json = {}
        try:
            connected = connected or Connected(address)
            if "submit" in message:
                connected.submit(message)
            elif "states" in message:
                answer["states"] = connected.states(message["states"])
            else:
                connected.cancel(message["cancel"])
        except (ConnectionError, TimeoutError, socket.gaierror) as error:
            if "states" in message:  # no cluster, no actors
                answer["states"] = {}
            else:
                answer["error"] = (
                    f"no cluster answers ({str(error).splitlines()[0]}): ray start --head, or cluster.address"
                )
        except (RayError, ValueError, TypeError, RuntimeError) as error:
            answer["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        connection.send(answer)
    os.kill(os.getpid(), signal.SIGKILL)  # Ray's threads may wait for a cluster that is gone
