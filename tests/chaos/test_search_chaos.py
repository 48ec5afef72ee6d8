"""A search, and a sweep with a budget, that are killed at random moments and resumed: the answer is that of an undisturbed one."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.command import run_command, start_command
from support.processes import left_after
from sweeprof.report.answer import answer
from sweeprof.results.compared_rows import Comparison

pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("CHAOS_SEEDS", "1"))
KILLS = 3
ALWAYS = (
    "model=fake",
    "backend=fake",
    "model.fake.per_sample_s=0.0001",
    "model.fake.step_s=0.001,0.002,0.003,0.004",
    "metrics=latency",
    "protocol=short",
    "tracking=none",
)
SEARCH = (
    "batch_size=doubling(1,64)",
    "search.maximize=throughput",
    "search.subject_to=['latency < 5 ms']",
    "search.trials=14",
    "search.sampler=TPESampler",
)
BUDGET = ("batch_size=1,2,4", "compare.baseline={model.fake.step_s: 0.001}", "budget=10min")


@pytest.mark.timeout(280)
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
@pytest.mark.parametrize("own", [SEARCH, BUDGET], ids=["search", "budget"])
def test_a_killed_sweep_reaches_the_same_answer(tmp_path: Path, own: Sequence[str], seed: int) -> None:
    (tmp_path / "quiet").mkdir()
    quiet = run_command(tmp_path / "quiet", *ALWAYS, *own)
    assert quiet.code == 0, quiet.err
    expected = Comparison.read(quiet.folder("adhoc"))
    home = tmp_path / "killed"
    home.mkdir()
    chance = random.Random(seed)
    for _ in range(KILLS):
        is_begun = any(home.glob("outputs/*/*/plan.json"))
        process = start_command(home, *(["resume=last"] if is_begun else [*ALWAYS, *own]))
        before, more = events(home), chance.randint(2, 12)
        while process.poll() is None and events(home) < before + more:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        process.communicate(timeout=60)
        assert left_after(home, 15) == []
    resumed = run_command(home, "resume=last")
    assert resumed.code == 0, (resumed.out, resumed.err)
    found = Comparison.read(resumed.folder("adhoc"))
    assert {row.combination_id for row in found.rows} == {row.combination_id for row in expected.rows}
    assert answer(found).finding == answer(expected).finding
    assert answer(found).counts == answer(expected).counts


def events(home: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in home.glob("outputs/*/*/events/*.jsonl"))
