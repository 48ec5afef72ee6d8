"""What planning ten thousand combinations costs the driver: processor seconds and memory, for values and for config groups."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, resource, sys, time
from pathlib import Path
from support.planning import composer
begin = time.process_time()
plan = composer(sys.argv[2:], Path(sys.argv[1])).plan()
seconds = time.process_time() - begin
text = json.dumps(plan.to_dict())
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([len(plan.combinations), seconds, rss, len(text) / 1e6]))
"""
VALUES = ("model=fake", "backend.slowdown=1.0,2.0,3.0,4.0", "model.fake.step_s=range(0.001,0.0255,0.001)")
GROUPS = (f"model={','.join(f'm{i}' for i in range(25))}", "backend.slowdown=1.0,2.0,3.0,4.0")
BOTH = (GROUPS[0], "backend=b0,b1,b2,b3")


@pytest.mark.parametrize(
    ("kind", "axes"), [("values", VALUES), ("a group of 25", GROUPS), ("groups of 25 and 4", BOTH)]
)
def test_planning_ten_thousand(tmp_path: Path, kind: str, axes: tuple[str, ...]) -> None:
    for group in ("model", "backend"):
        (tmp_path / group).mkdir()
    for i in range(25):
        text = f"fake:\n  _target_: sweeprof.backends.fake.FakeModel\n  step_s: 0.{i:03d}1\n"
        (tmp_path / "model" / f"m{i}.yaml").write_text(text)
    for i in range(4):
        (tmp_path / "backend" / f"b{i}.yaml").write_text(f"defaults: [fake]\nslowdown: {i + 1}.0\n")
    arguments = [str(tmp_path), "backend=fake", "dataset=synthetic", "tracking=none", "batch_size=range(1,101)", *axes]
    path = f"{ROOT}:{ROOT / 'tests'}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": path},
    )
    count, seconds, rss, written = json.loads(done.stdout)
    print(f"\n{count:,} combinations over {kind}: {seconds:.1f} s, {rss:.0f} MB, plan.json {written:.1f} MB")
    assert count == 10_000
    assert rss < 500
