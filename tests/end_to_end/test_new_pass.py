"""A pass that is added as one module, without changing another file: a sweep runs it, and a metric reads it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.command import run_command
from support.records import read_records

ANSWERS = '''
"""The sum of the outputs of one forward."""

from dataclasses import dataclass

import numpy as np

from sweeprof.backends import LoadedModel
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.results.files import validated


@dataclass(frozen=True)
class Answers:
    total: float
    samples: int

    @classmethod
    def from_dict(cls, data):
        return validated(cls, data)


def run(session, backend):
    with session.working() as (model, work), model.stepping(work.batch) as step:
        outputs = model.host_outputs(step())
    return Answers(float(np.abs(outputs).sum()), len(outputs))


PASS = Pass(
    name="answers",
    order=15,
    run=run,
    read=Answers.from_dict,
    kind="exact",
    provides=(
        Parameter("answers"),
        Parameter("answered", lambda answers: answers.samples),
        Parameter("baseline_answers", source="baseline"),
    ),
)
'''
SOAK = '''
"""The sum of the outputs again in every round, beside other trials."""

from dataclasses import dataclass

from answers_pass import run as answer

from sweeprof.passes.registry import Parameter, Pass
from sweeprof.results.files import validated


@dataclass(frozen=True)
class Soak:
    total: float
    round: int = 0
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data):
        return validated(cls, data)


def run(session, backend):
    return Soak(answer(session, backend).total)


PASS = Pass(name="soak", order=140, run=run, read=Soak.from_dict, kind="rounds", provides=(Parameter("soaks"),))
'''
METRICS = '''
import sweeprof


@sweeprof.metric(name="mine/answered", unit="samples", better="higher")
def answered_twice(answers, answered, batch_size):
    """Samples that were answered."""
    assert answers.samples == answered == batch_size
    return 2 * answered


@sweeprof.metric(name="mine/growth", unit="×", better="higher")
def growth(answers, baseline_answers):
    """Samples that were answered, over those of the baseline."""
    return answers.samples / baseline_answers.samples


@sweeprof.metric(name="mine/soaked", unit="rounds", better="higher")
def soaked(soaks):
    """Rounds that were measured."""
    return float(len(soaks))
'''
ENTRY_POINTS = "[sweeprof.passes]\nanswers = answers_pass\nsoak = soak_pass\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, one of which has a pass."""
    site = tmp_path / "site"
    described = site / "answers-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: answers\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(ENTRY_POINTS)
    (site / "answers_pass.py").write_text(ANSWERS)
    (site / "soak_pass.py").write_text(SOAK)
    (site / "answers_metrics.py").write_text(METRICS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    return site


def test_a_sweep_runs_a_new_pass_and_a_metric_reads_it(tmp_path: Path, site: Path) -> None:
    assert site.is_dir()
    ran = run_command(
        tmp_path,
        *("name=new_pass", "model=fake", "backend=fake", "dataset=synthetic", "tracking=none", "batch_size=2,4"),
        *(
            "compare.baseline={batch_size: 2}",
            "metrics.select=[compute/macs,{_target_: answers_metrics.answered_twice},{_target_: answers_metrics.growth}]",
        ),
    )
    assert ran.code == 0, ran.err
    folder = ran.folder("new_pass")
    assert {(r.pass_name, r.status) for r in read_records(folder / "records")} == {
        ("analysis", "ok"),
        ("answers", "ok"),
    }
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert plan["passes"] == ["analysis", "answers"]
    rows = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["rows"]
    values = [row["cells"]["mine/answered"]["measurement"]["value"] for row in rows]
    assert values == [4, 8]
    assert [row["cells"]["mine/growth"]["measurement"]["value"] for row in rows] == [1, 2]


@pytest.mark.slow
def test_a_new_pass_may_be_measured_in_rounds_beside_others(tmp_path: Path, site: Path) -> None:
    """One that needs no exclusive use of the host; the trials of the other passes are run all the same."""
    assert site.is_dir()
    ran = run_command(
        tmp_path,
        *("name=soak", "model=fake", "backend=fake", "dataset=synthetic", "tracking=none", "protocol.rounds=2"),
        "metrics.select=[latency/forward,memory/rss_peak_bytes,{_target_: answers_metrics.soaked}]",
    )
    assert ran.code == 0, ran.out + ran.err
    records = [(r.pass_name, r.round, r.status) for r in read_records(ran.folder("soak") / "records")]
    assert sorted(records) == [
        *(("memory", 0, "ok"), ("soak", 0, "ok"), ("soak", 1, "ok"), ("timing", 0, "ok"), ("timing", 1, "ok")),
    ]
