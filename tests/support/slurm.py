"""The real Slurm of the tests in ``tests/cluster``: several nodes on this machine, each with a hostname of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "cluster" / "lab.sh"
LOGS = Path("/var/spool/sweeprof-lab/log")
NEEDED = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd")
_FRESH = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_")
"""What a developer's shell may have set for another cluster, or pytest have inherited from a job that it runs in."""


def missing() -> str:
    """Why no lab can run here, in words; empty when one can."""
    absent = [program for program in NEEDED if shutil.which(program) is None]
    if absent:
        return f"no {', '.join(absent)} here: make slurm installs what these tests need, on Debian, as root"
    return (
        "" if os.geteuid() == 0 else "a Slurm of several nodes needs root, as in a container that make slurm prepared"
    )


class Lab:
    """A running cluster. Settings are those of ``lab.sh``, such as ``NODES`` or ``ACCT``.

    Tasks go by Slurm's ids: ``"12"`` for a plain job, ``"12_3"`` for an element of an array.
    """

    arguments = ("cluster=slurm", "cluster.poll_s=0.5", "cluster.memory=300MiB")
    """The arguments of a sweep on it whose tasks take little memory."""

    def __init__(self, settings: Mapping[str, int]) -> None:
        self.settings = dict(settings)
        self._dead: set[str] = set()

    def start(self) -> None:
        """An empty cluster, whatever ran before; its nodes are idle."""
        _script(["start"], {name: str(value) for name, value in self.settings.items()})
        self._dead.clear()

    def stop(self) -> None:
        """Nothing of it is left."""
        _script(["stop"], {})

    def sbatch(self, script: str, *options: str, cwd: Path) -> str:
        """Submit a shell command as a batch job; its id. Outputs are in ``cwd``, one ``ID.out`` per task."""
        output = "--output=%A_%a.out" if any(option.startswith("--array") for option in options) else "--output=%j.out"
        return _ask("sbatch", "--parsable", output, *options, "--wrap", script, cwd=cwd).strip()

    def states(self, job: str) -> dict[str, str]:
        """The state of every task of a job that Slurm still knows, finished ones for at least ``MIN_JOB_AGE`` seconds.

        A task that is cancelled while it waits leaves at once and is not among them.
        """
        return {task: state for task, (state, _) in self._tasks(f"--jobs={job}").items()}

    def jobs(self, name_prefix: str) -> dict[str, str]:
        """The states of all tasks whose job's name starts so."""
        return {task: state for task, (state, name) in self._tasks().items() if name.startswith(name_prefix)}

    def _tasks(self, *options: str) -> dict[str, tuple[str, str]]:
        # --array: one line per waiting task, not one `12_[3-8%2]` for all. A job that is forgotten is an error to squeue.
        lines = _ask("squeue", "--array", "--noheader", "--states=all", "--format=%i|%T|%j", *options, check=False)
        found = [line.split("|", 2) for line in lines.splitlines()]
        return {task: (state, name) for task, state, name in found}

    def details(self, task: str) -> dict[str, str]:
        """What ``scontrol show job`` says of one task, such as ``Restarts``, ``BatchHost`` or ``Reason``."""
        words = self.scontrol("show", "job", "--oneliner", task).split()
        return {key: value for key, found, value in (word.partition("=") for word in words) if found}

    def scontrol(self, *words: str) -> str:
        """Run scontrol; what it prints."""
        return _ask("scontrol", *words)

    def scancel(self, *words: str) -> None:
        """Run scancel; to end what has ended is no error."""
        _ask("scancel", *words)

    def wait_until(self, predicate: Callable[[], object], timeout_s: float, said: str) -> None:
        """Wait for something to come true; else fail with what was awaited and what the cluster looks like."""
        deadline = time.monotonic() + timeout_s
        while not predicate():
            assert time.monotonic() < deadline, f"not in {timeout_s} s: {said}\n{self.logs()}"
            time.sleep(0.1)

    def kill_node(self, name: str) -> None:
        """A power cut: every process of the node is gone, and Slurm has yet to notice."""
        self._dead.add(name)
        _script(["kill", name], {})

    def revive(self, name: str) -> None:
        """Boot a node anew."""
        _script(["revive", name], {})
        self._dead.discard(name)

    def node_states(self) -> dict[str, str]:
        """The state of every node: ``idle``, ``mixed``, ``allocated``, ``down*`` …"""
        lines = _ask("sinfo", "--noheader", "--Node", "--partition=debug", "--format=%N|%T").splitlines()
        return {node: state for node, _, state in (line.partition("|") for line in lines)}

    def idle(self) -> None:
        """End all jobs and bring all nodes back."""
        for name in sorted(self._dead):
            self.revive(name)
        self.wait_until(self._cleared, 30, "idle nodes and no jobs")

    def _cleared(self) -> bool:
        jobs = set(
            _ask("squeue", "--noheader", "--array", "--format=%i").split()
        )  # an element by its array: its own number may be none
        if jobs:
            self.scancel(*jobs)
        resting = {"idle", "mixed", "allocated", "completing"}
        nodes = self.node_states()
        for name in sorted(name for name, state in nodes.items() if state not in resting):
            _ask(
                "scontrol", "update", f"nodename={name}", "state=resume", check=False
            )  # refused where it is not needed
        return not jobs and set(nodes.values()) == {"idle"}

    def logs(self) -> str:
        """What one wants to see when something went wrong."""
        parts = [_ask("squeue", "--array", "--states=all", check=False), _ask("sinfo", "--Node", "--long", check=False)]
        for path in sorted(LOGS.glob("*.log")):
            last = path.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
            parts.append("\n".join([f"== {path.name}", *last]))
        return "\n".join(parts)


def clean_environment() -> dict[str, str]:
    """The environment of a login shell: nothing of a job or of settings for another cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_FRESH)}


def _script(words: list[str], settings: dict[str, str]) -> None:
    done = subprocess.run(
        [SCRIPT, *words],
        env={**clean_environment(), **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"lab.sh {' '.join(words)}:\n{done.stdout}{done.stderr}"


def _ask(*words: str, cwd: Path | None = None, check: bool = True) -> str:
    done = subprocess.run(
        words, cwd=cwd, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 or not check, f"{' '.join(words)}: {done.stderr}"
    return done.stdout
