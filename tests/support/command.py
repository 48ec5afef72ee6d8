"""The real command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONWARNINGS": "error::UserWarning:sweeprof"}


@dataclass(frozen=True)
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str
    cwd: Path

    def folder(self, name: str) -> Path:
        """The folder of the only sweep of that name."""
        (found,) = (self.cwd / "outputs" / name).iterdir()
        return found


Command = Callable[..., Ran]


def environment(home: Path) -> dict[str, str]:
    """A clean environment: nothing of the developer's home reaches the command."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "HYDRA_", "SWEEPROF_"))}
    return {**kept, **QUIET, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}


def command(cwd: Path, *arguments: str) -> list[str]:
    """``python -m sweeprof ARGUMENTS``.

    A scripted clock cannot be disturbed: its sweeps take no turns with those of other tests, which a hanging one would hold up.
    """
    apart = "backend=fake" in arguments and not any(argument.startswith("limits.locks=") for argument in arguments)
    return [sys.executable, "-m", "sweeprof", *arguments, *([f"limits.locks={cwd / 'locks'}"] if apart else [])]


def run_command(cwd: Path, *arguments: str, timeout: float = 280) -> Ran:
    """The command in ``cwd``, to its end."""
    done = subprocess.run(
        command(cwd, *arguments),
        cwd=cwd,
        env=environment(cwd),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr, cwd)


def start_command(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command, running."""
    return subprocess.Popen(
        command(cwd, *arguments),
        cwd=cwd,
        env=environment(cwd),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
