"""A folder as somebody has it who follows docs/scheduling.md: the recipes as they are, a model of the team's, and its nights."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.command import QUIET

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs" / "recipes"
SWEEP = (
    "model=fake model.fake._target_=team_model.build backend=fake dataset=synthetic batch_size=1,8 protocol=default "
    "protocol.min_s=0 protocol.warmup_s=0 metrics.select=[latency/forward,compute/macs]"
)
MODEL = """
from sweeprof.backends.fake import FakeModel
def build(step_s):
    return FakeModel(step_s=step_s, per_sample_s={per_sample_s})
"""


@dataclass(frozen=True)
class Bench:
    """The folder, with nightly.sh in it."""

    path: Path

    @property
    def environment(self) -> dict[str, str]:
        """What cron gives, and the settings that a crontab would have."""
        return {
            "HOME": str(self.path),
            "LOGNAME": "root",
            "SHELL": "/bin/sh",
            "PATH": "/usr/bin:/bin",
            # In place of .venv/bin/python: this interpreter with this checkout.
            "PYTHON": str(self.path / "python"),
            "SWEEP": SWEEP,
            # A scripted clock cannot be disturbed: these sweeps take no turns with those of other tests.
            "SWEEP_OPTIONS": f"limits.locks={self.path / 'locks'}",
            "KEEP": "2",
            "MPLCONFIGDIR": QUIET["MPLCONFIGDIR"],
        }

    @property
    def summary(self) -> str:
        """What the night says in summary.md."""
        return (self.path / "summary.md").read_text(encoding="utf-8")

    @property
    def log(self) -> str:
        """What the night's commands printed."""
        return (self.path / "outputs" / "nightly.log").read_text(encoding="utf-8")

    def sweeps(self) -> list[str]:
        """The nights on disk, the oldest first."""
        folder = self.path / "outputs" / "nightly"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def change_model(self, per_sample_s: float) -> None:
        """A commit to the team's model: the same model by name, that takes longer for each sample of a batch."""
        # Python takes a module's cached code for its own where size and second of the file are the same.
        shutil.rmtree(self.path / "__pycache__", ignore_errors=True)
        (self.path / "team_model.py").write_text(MODEL.format(per_sample_s=per_sample_s), encoding="utf-8")

    def night(self, **settings: str) -> subprocess.CompletedProcess[str]:
        """One night, begun as cron does it: by ``/bin/sh -c``, in another folder, with next to no environment."""
        return subprocess.run(
            ["/bin/sh", "-c", str(self.path / "nightly.sh")],
            cwd="/",
            env={**self.environment, **settings},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )


def new_bench(path: Path) -> Bench:
    """A bench in the folder ``path``, which is there, with a model that is as fast as ever."""
    for name in ("nightly.sh", "nightly.sbatch"):
        shutil.copy(RECIPES / name, path / name)
    python = path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    bench = Bench(path)
    bench.change_model(0)
    return bench
