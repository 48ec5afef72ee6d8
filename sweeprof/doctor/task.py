"""What a task of a cluster gets: a probe is submitted as a sweep submits its tasks, and reports from its node.

``python -m sweeprof.doctor.task FOLDER TOKEN`` is the probe.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

import sweeprof
from sweeprof.cluster.job_tracker import INHERITED
from sweeprof.cluster.lookup import scheduler_of
from sweeprof.cluster.scheduler import LIVE, Scheduler, TaskState, prelude
from sweeprof.config.schema import RESOURCES
from sweeprof.config.units import parse_size
from sweeprof.doctor.host import Advice, Finding, known
from sweeprof.errors import Damaged
from sweeprof.plan.shards import needed_memory
from sweeprof.results import environment
from sweeprof.results.files import read_json, write_json
from sweeprof.results.record import Json
from sweeprof.storage.jobs import Jobs, Submission

MODULE = "sweeprof.doctor.task"
NOTICE_S = 10.0
"""How long the files of a task may take to be visible here after its end, as on NFS."""
FRAMEWORK = "torch"
"""A task of this framework is requested, unless the settings name a memory."""


def task(settings: Json, output: Path, wait_s: float) -> Iterator[Finding]:
    """Submit a probe with the settings of a cluster; yield what it gets, or why it did not run.

    Args:
        settings: ``cluster`` in the config.
        output: the folder of all sweeps, in a subfolder of which the probe's files are.
        wait_s: how long it may wait and run.

    Raises:
        ClusterError: the scheduler refused, or does not answer.
        UserError: this host lacks what submits to it.
    """
    folder = (output / "doctor" / time.strftime("%Y-%m-%d_%H-%M-%S", time.gmtime())).absolute()
    jobs = Jobs(folder)
    scheduler = scheduler_of(settings, jobs)
    scheduler.check_installed()
    section = f"Task on {scheduler.title}"
    resources = {key: settings.get(key) for key in RESOURCES}
    resources |= {"cpus": settings["cpus"] or 1, "gpus": settings["gpus"] or 0}
    resources["needed_memory"] = needed_memory([FRAMEWORK])
    submission = jobs.new("sweeprof-doctor", [0], resources)
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    command = [sys.executable, "-m", MODULE, str(folder), submission.token]
    jobs.keep(submission, prelude(settings, inherited) + f"exec {shlex.join(command)}\n")
    began = time.monotonic()
    job = scheduler.submit(submission, settings, jobs)
    state = _ended(scheduler, submission, jobs, settings["poll_s"], wait_s)
    yield known(section, "job", f"{job} ({time.monotonic() - began:.0f} s in the queue and running)")
    answer = _answer(jobs, submission)
    if answer is not None:
        yield from findings(section, answer, resources)
        yield known(section, "files", str(folder))
        return
    yield Finding(section, "result", None, *_reason(submission, jobs, state, wait_s))
    if state is not None and state.is_live:
        scheduler.cancel([job])


def _ended(scheduler: Scheduler, submission: Submission, jobs: Jobs, poll_s: float, wait_s: float) -> TaskState | None:
    """Wait for the answer of the probe or its end; return the last state that the scheduler listed."""
    end = time.monotonic() + wait_s
    seen: TaskState | None = None
    while time.monotonic() < end and _answer(jobs, submission) is None:
        state = scheduler.states([submission.name]).get((submission.name, 0))
        if state is None or not state.is_live:
            seen = state or seen
            end = min(end, time.monotonic() + NOTICE_S)
        else:
            seen = state
        time.sleep(min(1.0, poll_s))
    return seen


def _answer(jobs: Jobs, submission: Submission) -> Json | None:
    with suppress(OSError, Damaged):
        answer: Json = read_json(jobs.path / f"{submission.token}-answer.json")
        return answer
    return None


def _reason(submission: Submission, jobs: Jobs, state: TaskState | None, wait_s: float) -> tuple[str, Advice | None]:
    """Return why there is no answer, and what to do."""
    if state is not None and state.name in LIVE:
        why = f" ({state.reason})" if state.reason else ""
        advice = Advice("wait longer", "sweeprof doctor cluster=… --wait 3600")
        return f"{state.name.lower()}{why} after {wait_s:g} s; it was cancelled", advice
    ended = f"it ended as {state.name}" if state else "it is no longer listed"
    try:
        lines = jobs.log(submission.token, 0).read_text(errors="replace").strip().splitlines()
    except OSError:
        advice = Advice("choose a folder that the nodes share", "--output /shared/folder")
        return f"{ended}, and its output is not visible in {jobs.logs}: is this folder shared with the nodes?", advice
    advice = Advice("check cluster.setup", "sweeprof doctor cluster=…")
    return f"{ended}: {lines[-1] if lines else 'without output'}", advice


def findings(section: str, answer: Json, resources: Json) -> Iterator[Finding]:
    """Yield what a probe reports."""
    yield known(section, "node", answer["node"])
    cpus = Finding(section, "processors", f"{answer['cpus']} usable, {resources['cpus']} requested")
    if answer["cpus"] > resources["cpus"]:
        text = "a task may run on all processors of its node, also on those of other jobs"
        cpus = Finding(section, "processors", cpus.value, advice=Advice(text, "++cluster.options.exclusive=true"))
    yield cpus
    limit, needed = answer["memory"], resources["needed_memory"]
    memory = known(section, "memory limit", f"{limit / 2**30:.2f} GiB" if limit else None, "none is known")
    if limit and limit < needed:
        text = f"a task with {FRAMEWORK} needs about {needed / 2**30:.1f} GiB"
        advice = Advice(text, f"cluster.memory={needed / 2**30:.1f}GiB")
        memory = Finding(section, "memory limit", memory.value, advice=advice, distorts=True)
    yield memory
    yield known(section, "memory of the node", f"{answer['node_memory'] / 2**30:.1f} GiB")
    yield known(section, "time limit", answer["time"], "the scheduler does not report it to its tasks")
    yield known(section, "partition", answer["partition"], "the scheduler has none")
    yield known(section, "GPUs", answer["gpus"], "none")
    yield known(section, "python", answer["python"])
    yield known(section, "sweeprof", answer["sweeprof"])
    yield known(section, "sweep folder", "visible here and on the node")
    yield known(section, "locks", answer["locks"])


def main(arguments: list[str]) -> int:
    """Write what this task gets; returns the exit code."""
    jobs, token = Jobs(Path(arguments[0])), arguments[1]
    place = environment.scheduler() or {}
    job = _job_of_slurm()
    answer = {
        "node": f"{place.get('node') or socket.gethostname()} ({socket.gethostname()})",
        "cpus": len(os.sched_getaffinity(0)),
        "memory": _memory_limit(job),
        "node_memory": psutil.virtual_memory().total,
        "time": job.get("TimeLimit"),
        "partition": place.get("partition"),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES") or None,
        "python": f"{sys.version.split()[0]} ({sys.executable})",
        "sweeprof": f"{sweeprof.__version__} ({Path(sweeprof.__file__).parent})",
        "locks": "/tmp is private to the job: set limits.locks" if _has_private_tmp() else "in /tmp of the node",
    }
    write_json(jobs.path / f"{token}-answer.json", answer)
    return 0


def _job_of_slurm() -> dict[str, str]:
    """Return what Slurm's controller knows of this job."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or shutil.which("scontrol") is None:
        return {}
    command = ["scontrol", "--oneliner", "show", "job", job]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return dict(word.partition("=")[::2] for word in done.stdout.split())


def _memory_limit(job: dict[str, str]) -> int | None:
    """Return the smaller of the scheduler's limit and that of the control group."""
    limits = [environment.memory_limit()]
    for key, count in (("MinMemoryNode", 1), ("MinMemoryCPU", int(job.get("NumCPUs", 1)))):
        match = re.fullmatch(r"([\d.]+)([KMGT]?)", job.get(key, ""))
        if match and float(match[1]):
            limits.append((parse_size(f"{match[1]}{match[2] or 'M'}iB") or 0) * count)
    return min((limit for limit in limits if limit), default=None)


def _has_private_tmp() -> bool:
    """True if /tmp is a folder of another file system, as Slurm's job_container/tmpfs and pam_namespace mount one for each job."""
    mounts = environment.text(Path("/proc/self/mountinfo")) or ""
    return bool(re.search(r"^\S+ \S+ \S+ /\S+ /tmp ", mounts, re.MULTILINE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
