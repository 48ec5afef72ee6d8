"""The detailed passes in one real sweep of the command: records, and files beside the report; new passes."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from support.command import FAKE, Ran, run_command, values_of
from support.plans import read_records

pytestmark = pytest.mark.slow

PASSES = {"analysis", "training", "peaks", "timing", "layer_times", "operators", "allocations", "lines"}
METRICS = (
    "compute/macs compute/macs_backward rate/mfu layers/slowest_self_s operators/self_s memory/alloc_peak_bytes lines"
).split()
LEFT = {"trace.json.gz", "lines_time.txt", "lines_memory.txt"}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    short = ("protocol=quick", "protocol.min_s=0.02", "protocol.warmup_s=0.02", "tracking=none")
    model = ("name=passes", "model=lenet5", "batch_size=8", "mode=inference,training")
    return run_command(tmp_path_factory.mktemp("passes"), *model, *short, f"metrics.select=[{','.join(METRICS)}]")


@pytest.fixture(scope="module")
def folder(ran: Ran) -> Path:
    return ran.folder("passes")


@pytest.fixture(scope="module")
def ids(ran: Ran) -> dict[str, str]:
    """Combination id by mode."""
    return {row["axes"]["mode"]: row["combination_id"] for row in ran.rows("passes")}


def test_every_pass_of_both_modes_is_measured(ran: Ran, folder: Path, ids: dict[str, str]) -> None:
    assert set(ids) == {"inference", "training"}
    found = {(record.combination_id, record.pass_name): record for record in read_records(folder / "records")}
    assert set(found) == {(id, name) for id in ids.values() for name in PASSES}
    assert {key: record.reason for key, record in found.items() if record.status != "ok"} == {}


def test_every_metric_has_a_value(ran: Ran) -> None:
    for row in ran.rows("passes"):
        assert set(row["cells"]) == set(METRICS) - {"lines"}
        assert None not in values_of(row).values(), row


def test_a_trace_and_the_lines_are_beside_the_report(folder: Path, ids: dict[str, str]) -> None:
    for id in ids.values():
        left = folder / "artifacts" / id
        assert {path.name for path in left.iterdir()} == LEFT
        events = json.loads(gzip.decompress((left / "trace.json.gz").read_bytes()))["traceEvents"]
        assert any(event.get("name", "").startswith("aten::") and "conv" in event["name"] for event in events)
        assert "forward" in (left / "lines_time.txt").read_text(encoding="utf-8")


# A pass that is added as one module, without changing another file


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
    round: int = 0
    warnings: tuple[str, ...] = ()

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
SOAK = """
from answers_pass import Answers, run

from sweeprof.passes.registry import Parameter, Pass

PASS = Pass(name="soak", order=140, run=run, read=Answers.from_dict, kind="rounds", provides=(Parameter("soaks"),))
"""
"""The same in every round, beside other trials."""
OWN_METRICS = '''
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
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of installed packages, one of which has two passes."""
    site = tmp_path / "site"
    files = {
        "answers-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: answers\nVersion: 1.0\n",
        "answers-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
        "answers_pass.py": ANSWERS,
        "soak_pass.py": SOAK,
        "answers_metrics.py": OWN_METRICS,
    }
    (site / "answers-1.0.dist-info").mkdir(parents=True)
    for name, text in files.items():
        (site / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.usefixtures("installed")
def test_a_sweep_runs_new_passes_and_metrics_read_them(tmp_path: Path) -> None:
    """Soak is measured in rounds, and needs no exclusive use of the host; the trials of the other passes are run all the same."""
    own = ",".join(f"{{_target_: answers_metrics.{name}}}" for name in ("answered_twice", "growth", "soaked"))
    sizes = ("batch_size=2,4", "compare.baseline={batch_size: 2}", "protocol.rounds=2")
    ran = run_command(
        tmp_path, *FAKE, *sizes, f"metrics.select=[compute/macs,latency/forward,memory/rss_peak_bytes,{own}]"
    )
    rows = [values_of(row) for row in ran.rows()]
    records = {(r.pass_name, r.round, r.status) for r in read_records(ran.folder("adhoc") / "records")}
    once, rounds = (
        ("analysis", "answers", "memory"),
        [(name, number) for name in ("soak", "timing") for number in (0, 1)],
    )
    assert records == {(name, number, "ok") for name, number in (*((name, 0) for name in once), *rounds)}
    assert [row["mine/answered"] for row in rows] == [4, 8]
    assert [row["mine/growth"] for row in rows] == [1, 2]
    assert [row["mine/soaked"] for row in rows] == [1, 1]  # of each round its own
