"""Which measurements of an accelerator work on this host, tried in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

from sweeprof.doctor.host import Advice, Finding, known
from sweeprof.errors import UserError, choice_problem, nearest
from sweeprof.processes import child_environment, module_command

KINDS = ("cpu", "cuda", "hpu", "mps", "mtia", "xpu")
"""Kinds of devices of PyTorch; a package may bring others."""
PROBE_S = 120.0
SUITE_S = 600.0
REPORT = "sweeprof doctor device={name} --json > report.json"


def device(name: str) -> Iterator[Finding]:
    """Yield which measurements of an accelerator work in PyTorch, with what was measured or the reason.

    Raises:
        UserError: PyTorch has no such kind of device on any host.
    """
    section = f"Device {name}"
    answer = _answer("sweeprof.backends.torch.device", name, PROBE_S)
    if isinstance(answer, str):
        yield Finding(section, "torch", None, answer, distorts=True)
        return
    if not answer:
        problem = choice_problem("device", name, "kind of device", KINDS)
        raise UserError([dataclasses.replace(problem, nearest=nearest(name.partition(":")[0], KINDS))])
    is_unusable = name != "cpu" and all(check["value"] is None for check in answer.values())
    for title, check in answer.items():
        finding = known(section, title, check["value"], check["reason"] or "unknown")
        yield dataclasses.replace(finding, distorts=is_unusable)


def conformance(name: str) -> Iterator[Finding]:
    """Run the conformance suite on an accelerator; yield what each check found, and where to send it."""
    section = f"Conformance of {name}"
    answer = _answer("sweeprof.doctor.conformance", name, SUITE_S)
    if isinstance(answer, str):
        yield known(section, "suite", None, answer)
        return
    for title, (outcome, text) in answer.items():
        if outcome == "not possible":
            yield known(section, title, None, text)
        else:
            yield Finding(section, title, f"{outcome}: {text}", distorts=outcome == "failed")
    counts = Counter(outcome for outcome, _ in answer.values())
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    advice = Advice("send this report, so that the page on hardware can list the device", REPORT.format(name=name))
    yield Finding(section, "result", text, advice=advice)


def _answer(module: str, name: str, limit_s: float) -> dict[str, Any] | str:
    """Return what a process of its own prints about a device, or why it printed nothing."""
    command = [*module_command(module), name]
    try:
        done = subprocess.run(
            command, env=child_environment({}), capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not answer within {limit_s:g} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
        return f"cannot be used: {last}"
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
