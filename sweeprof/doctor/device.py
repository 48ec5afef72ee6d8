"""Which measurements of an accelerator work on this host, tried in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from sweeprof.backends import DeviceCheck
from sweeprof.backends.lookup import backend_named
from sweeprof.doctor.host import Finding, known
from sweeprof.processes import child_environment

PROBE_S = 120.0


@runtime_checkable
class ChecksDevices(Protocol):
    """A backend that can try the measurements of an accelerator."""

    def device_checks(self, device: str) -> Mapping[str, DeviceCheck]:
        """Return by name which measurements work."""


def device(name: str) -> Iterator[Finding]:
    """Yield which measurements of an accelerator work in PyTorch, with what was measured or the reason."""
    section = f"Device {name}"
    command = [sys.executable, "-m", "sweeprof.doctor.device", name]
    try:
        done = subprocess.run(
            command, env=child_environment({}), capture_output=True, text=True, timeout=PROBE_S, check=False
        )
    except subprocess.TimeoutExpired:
        yield known(section, "torch", None, f"did not answer within {PROBE_S:g} s")
        return
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
        yield known(section, "torch", None, f"cannot be used: {last}")
        return
    for title, check in json.loads(done.stdout.strip().splitlines()[-1]).items():
        yield known(section, title, check["value"], check["reason"] or "unknown")


def main() -> None:
    """``python -m sweeprof.doctor.device NAME``: try the measurements in this process and print what came out."""
    backend = backend_named("torch")
    assert isinstance(backend, ChecksDevices)
    print(json.dumps({name: dataclasses.asdict(check) for name, check in backend.device_checks(sys.argv[1]).items()}))


if __name__ == "__main__":
    main()
