"""A pass that is added as one module, without changing another file: a sweep runs it, and a metric reads it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.command import run_command, values_of
from support.plans import read_records

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


FAKE = ("model=fake", "backend=fake", "dataset=synthetic", "tracking=none")


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of installed packages, one of which has two passes."""
    site = tmp_path / "site"
    files = {
        "answers-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: answers\nVersion: 1.0\n",
        "answers-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
        "answers_pass.py": ANSWERS,
        "soak_pass.py": SOAK,
        "answers_metrics.py": METRICS,
    }
    (site / "answers-1.0.dist-info").mkdir(parents=True)
    for name, text in files.items():
        (site / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.slow
def test_a_sweep_runs_a_new_pass_and_a_metric_reads_it(tmp_path: Path) -> None:
    own = "{_target_: answers_metrics.answered_twice},{_target_: answers_metrics.growth}"
    sizes = ("batch_size=2,4", "compare.baseline={batch_size: 2}")
    ran = run_command(tmp_path, *FAKE, *sizes, f"metrics.select=[compute/macs,{own}]")
    rows = [values_of(row) for row in ran.rows()]
    folder = ran.folder("adhoc")
    assert {(r.pass_name, r.status) for r in read_records(folder / "records")} == {
        ("analysis", "ok"),
        ("answers", "ok"),
    }
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert plan["passes"] == ["analysis", "answers"]
    assert [row["mine/answered"] for row in rows] == [4, 8]
    assert [row["mine/growth"] for row in rows] == [1, 2]


@pytest.mark.slow
def test_a_new_pass_may_be_measured_in_rounds_beside_others(tmp_path: Path) -> None:
    """One that needs no exclusive use of the host; the trials of the other passes are run all the same."""
    select = "metrics.select=[latency/forward,memory/rss_peak_bytes,{_target_: answers_metrics.soaked}]"
    ran = run_command(tmp_path, *FAKE, "protocol.rounds=2", select)
    assert ran.code == 0, ran.out + ran.err
    records = [(r.pass_name, r.round, r.status) for r in read_records(ran.folder("adhoc") / "records")]
    expected = [("memory", 0), ("soak", 0), ("soak", 1), ("timing", 0), ("timing", 1)]
    assert sorted(records) == [(name, number, "ok") for name, number in expected]
