"""The detailed passes in one real sweep of the command: records, and files beside the report; new passes."""

from __future__ import annotations

import gzip
import json
import os
import re
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


# Passes that are added as modules of a package, without changing another file: that of docs/passes.md, and one in rounds


SOAK = """
from dataclasses import dataclass

import largest_pass
from sweeprof.passes.registry import Parameter, Pass


@dataclass(frozen=True)
class Soak(largest_pass.Largest):
    round: int = 0
    warnings: tuple[str, ...] = ()


def run(session, backend):
    return Soak(largest_pass.run(session, backend).output)


PASS = Pass(name="soak", order=140, run=run, read=Soak.from_dict, kind="rounds", provides=(Parameter("soaks"),))
"""
SOAKED = '''
@sweeprof.metric(name="mine/soaked", unit="rounds", better="higher")
def soaked(soaks):
    """Rounds that were measured."""
    return float(len(soaks))
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of installed packages, one of which has two passes."""
    page = (Path(__file__).parents[2] / "docs" / "passes.md").read_text(encoding="utf-8")
    largest, metric = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    site = tmp_path / "site"
    files = {
        "own-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: own\nVersion: 1.0\n",
        "own-1.0.dist-info/entry_points.txt": "[sweeprof.passes]\nlargest = largest_pass\nsoak = soak_pass\n",
        "largest_pass.py": largest,
        "soak_pass.py": SOAK,
        "own_metrics.py": f"import sweeprof\n{metric}{SOAKED}",
    }
    (site / "own-1.0.dist-info").mkdir(parents=True)
    for name, text in files.items():
        (site / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.usefixtures("installed")
def test_a_sweep_runs_new_passes_and_metrics_read_them(tmp_path: Path) -> None:
    """Soak is measured in rounds, and needs no exclusive use of the host; the trials of the other passes are run all the same."""
    own = "{_target_: own_metrics.largest_output},{_target_: own_metrics.soaked}"
    ran = run_command(
        *(tmp_path, *FAKE, "+model.fake.offset=0,10", "compare.baseline={model.fake.offset: 0}", "protocol.rounds=2"),
        f"metrics.select=[compute/macs,latency/forward,memory/rss_peak_bytes,{own}]",
    )
    rows = [values_of(row) for row in ran.rows()]
    records = {(r.pass_name, r.round, r.status) for r in read_records(ran.folder("adhoc") / "records")}
    once = [(name, 0, "ok") for name in ("analysis", "largest", "memory")]
    assert records == {*once, *((name, number, "ok") for name in ("soak", "timing") for number in (0, 1))}
    assert rows[1]["quality/largest_output"] == pytest.approx(rows[0]["quality/largest_output"] + 10)
    assert [row["mine/soaked"] for row in rows] == [1, 1]  # of each round its own
