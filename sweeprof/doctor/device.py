"""Whether an accelerator of this host measures as the CPU does: the checks of :mod:`.conformance`, in a process of their own."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections import Counter
from collections.abc import Iterator

from sweeprof.doctor.host import Advice, Finding, known
from sweeprof.errors import UserError, choice_problem, nearest
from sweeprof.processes import child_environment, module_command

KINDS = ("cpu", "cuda", "hpu", "mps", "mtia", "xpu")
"""Kinds of devices of PyTorch; a package may bring others."""
LIMIT_S = 600.0


def device(name: str) -> Iterator[Finding]:
    """Yield what each check found on an accelerator, and where to send it.

    Raises:
        UserError: PyTorch has no such kind of device on any host.
    """
    section = f"Device {name}"
    command = [*module_command("sweeprof.doctor.conformance"), name]
    try:
        done = subprocess.run(
            command, env=child_environment({}), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        yield Finding(section, "torch", None, f"did not answer within {LIMIT_S:g} s", distorts=True)
        return
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
        yield Finding(section, "torch", None, f"cannot be used: {last}", distorts=True)
        return
    answers: dict[str, tuple[str, str]] = json.loads(done.stdout.strip().splitlines()[-1])
    if not answers:
        problem = choice_problem("device", name, "kind of device", KINDS)
        raise UserError([dataclasses.replace(problem, nearest=nearest(name.partition(":")[0], KINDS))])
    for title, (outcome, text) in answers.items():
        if outcome == "not possible":
            yield known(section, title, None, text)
        else:
            yield Finding(section, title, f"{outcome}: {text}", distorts=outcome == "failed")
    counts = Counter(outcome for outcome, _ in answers.values())
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    report = f"sweeprof doctor device={name} --json > report.json"
    advice = Advice("send this report, so that the page on hardware can list the device", report)
    yield Finding(section, "result", text, advice=advice)
