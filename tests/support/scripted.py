"""Slurm's commands as scripts that answer what a test wrote down; the real scheduler has a suite of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweeprof.storage import Submission

SCRIPTS = {
    "sbatch": """
echo "$@" >> "$D/sbatch.log"
if [ -e "$D/refuse" ] && grep -q -e "$(head -1 "$D/refuse")" <<< "$*"; then tail -n +2 "$D/refuse" >&2; exit 1; fi
wc -l < "$D/sbatch.log" """,
    "squeue": """
echo "$@" >> "$D/squeue.log"; env | grep ^SQUEUE_ >> "$D/squeue.env"
if [ -e "$D/away" ]; then echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; fi
cat "$D/squeue" 2> /dev/null; true""",
    "sacct": """cat "$D/sacct" """,
    "scancel": """echo "$@" >> "$D/scancel.log"; rm -f "$D/squeue" """,
    "scontrol": """if [ -e "$D/partitions" ]; then cat "$D/partitions"; else echo "MaxArraySize = 1001"; fi""",
}


class ScriptedSlurm:
    """The scripts, first on PATH."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        commands = path / "bin"
        commands.mkdir(parents=True)
        for name, text in SCRIPTS.items():
            (commands / name).write_text(f"#!/bin/bash\nD='{path}'\n{text}\n")
            (commands / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")

    def queue(self, submission: Submission, *states: str, job: int = 1) -> None:
        """Let squeue tell the states of a submission's tasks, and nothing else."""
        lines = [f"{submission.name}|{n}|{job}|{state}|None|n{n}\n" for n, state in enumerate(states) if state]
        (self.path / "squeue").write_text("".join(lines))

    def account(self, submission: Submission, *states: str, job: int = 1) -> None:
        """Let sacct tell them."""
        lines = [f"{submission.name}|{job}_{n}|{state}|n{n}\n" for n, state in enumerate(states) if state]
        (self.path / "sacct").write_text("".join(lines))

    def refuse(self, what: str, said: str) -> None:
        """Let sbatch refuse commands with these words."""
        (self.path / "refuse").write_text(f"{what}\n{said}\n")

    def go_away(self) -> None:
        """Let squeue fail."""
        (self.path / "away").touch()

    def told(self, command: str) -> list[str]:
        """The arguments of each call."""
        log = self.path / f"{command}.log"
        return log.read_text().splitlines() if log.exists() else []
