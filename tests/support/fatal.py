"""Models that end the job of a launcher, for sweeps in a folder of their own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

FATAL = """
import os, pathlib, psutil, time
from sweeprof.backends.fake import FakeModel

def model(step_s):
    once, healed = pathlib.Path("once"), pathlib.Path("healed")
    if (step_s == 0.002 and not once.exists()) or (step_s == 0.003 and not healed.exists()):
        once.touch() if step_s == 0.002 else None
        shard = psutil.Process(os.getppid()).parent()  # this process's fork server's parent
        if shard.name().startswith(("python", "ray::")):  # else it is dead already, and this is who adopted its children
            shard.kill()
        time.sleep(60)
    return FakeModel(step_s)
"""
"""One kills its job the first time, another each time until it is healed."""
ARGUMENTS = (
    *("model=fake", "backend=fake", "dataset=synthetic", "tracking=none", "metrics.select=[latency/forward]"),
    *("model.fake._target_=fatal.model", "model.fake.step_s=0.001,0.002,0.003,0.004,0.005,0.006"),
    *("compare.baseline={batch_size: 1}", "protocol.min_s=0"),
)


def write_fatal(cwd: Path) -> None:
    """Put the models where a sweep in ``cwd`` finds them."""
    (cwd / "fatal.py").write_text(FATAL)


def measured(folder: Path) -> Counter[str]:
    """How often each combination was measured to its end."""
    events = [json.loads(line) for path in (folder / "events").iterdir() for line in path.read_text().splitlines()]
    return Counter(event["combination_id"] for event in events if event["event"] == "end" and event["status"] == "ok")
