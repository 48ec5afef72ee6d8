"""Sweeps compared with sweeps, through the real commands: baselines, the nightly gate, what qualifies."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.command import Ran, call_command, call_module
from support.samples import build
from sweeprof.results.measurement import Better

FAKE = (
    *("model=fake", "backend=fake", "dataset=synthetic", "tracking=none", "isolation=inline"),
    *("protocol=default", "protocol.min_s=0", "protocol.warmup_s=0"),
    "metrics.select=[latency/forward,compute/macs,params/total]",
)
SLOWER = "model.fake.step_s=0.0011"


def compare(cwd: Path, *arguments: str) -> Ran:
    """``python -m sweeprof compare ARGUMENTS``."""
    return call_module(cwd, "sweeprof", "compare", *arguments)


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two sweeps: of two batch sizes, and the next night, 10 % slower, of two others of which one is the same.

    Of the second night there are copies with a threshold of 40 % for the latency, and without the parameters.
    """
    cwd = tmp_path_factory.mktemp("nights")
    for sweep in (("batch_size=1,2",), ("batch_size=1,4", SLOWER)):
        ran = call_command(cwd, *FAKE, *sweep)
        assert ran.code == 0, ran.err
    assert compare(cwd, "last~1", "--tag", "nightly").code == 0
    newest = max((cwd / "outputs" / "adhoc").iterdir())
    data = json.loads((newest / "comparison.json").read_text())
    (cwd / "lenient.json").write_text(json.dumps({**data, "thresholds": {"latency/forward": 0.4}}))
    data["metrics"] = [info for info in data["metrics"] if info["name"] != "params/total"]
    for row in data["rows"]:
        del row["cells"]["params/total"]
    (cwd / "fewer.json").write_text(json.dumps({**data, "sweep_id": "s2"}))
    return cwd


def test_a_regression_fails_the_gate_and_is_told(nights: Path) -> None:
    told = compare(nights, "last~1", "last", "--fail-on", "worse", "--json", "x.json", "--markdown", "x.md")
    assert told.code == 3
    assert "latency  1.00 ms → 1.10 ms  ×1.10" in told.out
    assert "only there: batch_size=2" in told.out
    assert "model.fake.step_s: 0.001 → 0.0011" in told.out
    assert "Expect at most" in told.out
    data = json.loads((nights / "x.json").read_text())
    assert {change["kind"] for change in data["changes"]} == {"worse", "missing", "new"}
    assert data["rows"][0]["cells"]["latency/forward"]["verdict"] == "worse"
    assert "| worse |" in (nights / "x.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("tag:nightly", "last"), 0),
        (("tag:nightly", "last", "--fail-on", "missing,worse", "--metric", "parameters"), 3),
        (("tag:nightly", "last", "--fail-on", "worse", "--metric", "parameters"), 0),
        (("tag:nightly", "last", "--fail-on", "worse", "--threshold", "20%"), 0),
        (("tag:nightly", "last", "--fail-on", "worse", "--threshold", "latency=0.2"), 0),
        (("last", "adhoc/last~1", "--fail-on", "worse,better"), 3),
        (("last~1", "lenient.json", "--fail-on", "worse"), 0),
        # A threshold for all replaces those of single metrics.
        (("last~1", "lenient.json", "--fail-on", "worse", "--threshold", "5%"), 3),
        # A metric that the new sweep does not measure is missing.
        (("last", "fewer.json"), 0),
        (("last", "fewer.json", "--fail-on", "missing"), 3),
    ],
)
def test_the_gate_asks_what_it_is_told_to(nights: Path, arguments: tuple[str, ...], code: int) -> None:
    ran = compare(nights, *arguments)
    assert ran.code == code, ran.out + ran.err
    lacks_parameters = "fewer.json" in arguments
    assert ("only measured there: parameters" in ran.out) == lacks_parameters
    assert ("Missing (1)\nall  parameters  measured → not measured" in ran.out) == lacks_parameters


def test_a_junit_report_has_a_test_for_each_metric_of_each_combination(nights: Path) -> None:
    assert compare(nights, "last~1", "last", "--fail-on", "worse,missing", "--junit", "x.xml").code == 3
    suite = ElementTree.parse(nights / "x.xml").getroot()
    outcomes = {
        (case.get("classname"), case.get("name")): child.tag if (child := next(iter(case), None)) is not None else "ok"
        for case in suite
    }
    assert outcomes == {
        ("batch_size=1", "latency"): "failure",
        ("batch_size=1", "MACs"): "ok",
        ("batch_size=1", "parameters"): "ok",
        ("batch_size=2", "status"): "failure",
        ("batch_size=4", "status"): "system-out",
    }
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "2", "0")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert str(failure.get("message")).startswith("worse: 1.00 ms → 1.10 ms, ×1.10")


def test_files_are_written_also_if_nobody_reads_the_output(nights: Path) -> None:
    command = [sys.executable, "-m", "sweeprof", "compare", "last~1", "last", "--json", "closed.json"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        subprocess.run(command, cwd=nights, stdout=writer, stderr=subprocess.DEVNULL, check=False)
    finally:
        os.close(writer)
    assert json.loads((nights / "closed.json").read_text())["changes"]


def test_a_sweep_that_fails_the_gate_is_not_tagged(nights: Path) -> None:
    def tagged() -> str:
        return (nights / "outputs" / ".tags" / "nightly").read_text()

    before = tagged()
    failed = compare(nights, "tag:nightly", "last", "--fail-on", "worse", "--tag", "nightly")
    assert failed.code == 3
    assert "tag:nightly is not set" in failed.out
    assert tagged() == before
    passed = compare(nights, "last", "last~1", "--fail-on", "worse", "--tag", "good")
    assert passed.code == 0
    good = nights / "outputs" / ".tags" / "good"
    assert good.read_text() == before
    good.unlink()


def test_a_loss_is_compared_beside_the_accuracy(tmp_path: Path) -> None:
    metrics: dict[str, tuple[str, Better]] = {
        **dict.fromkeys(("quality/accuracy", "quality/top5", "compute/coverage"), ("ratio", "higher")),
        **dict.fromkeys(("params/total", "compute/macs"), ("B", "lower")),
        "quality/loss": ("nat", "lower"),
    }
    for name, loss in (("before", 0.1), ("now", 0.2)):
        values = {**dict.fromkeys(metrics, 1), "quality/loss": loss}
        made = dataclasses.replace(build([{"model": "a"}], metrics, [values]), sweep_id=name)
        (tmp_path / f"{name}.json").write_text(json.dumps(made.to_dict()))
    ran = compare(tmp_path, "before.json", "now.json", "--fail-on", "worse")
    assert ran.code == 3, ran.out + ran.err
    assert "loss (nat)  0.100 → 0.200" in ran.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "required: BASE"),
        (("last",), "NEW is missing"),
        (("lsat", "last"), "BASE: 'lsat' is not a sweep. Did you mean 'last'? Known: a sweep's folder"),
        (("last~9", "last"), "BASE: 'last~9' does not exist: there are 2 sweeps"),
        (
            ("tag:nigthly", "last"),
            "Did you mean 'nightly'? Known: nightly; tag one: sweeprof compare DIR --tag NAME.",
        ),
        (("mlflow:abc", "last"), "BASE: 'mlflow:abc' is not in MLflow"),
        (("x.txt", "last"), "BASE: 'x.txt' cannot be read"),
        (
            ("adhoc/last", "last"),
            "NEW: 'last' is the same sweep as BASE (adhoc/last), in which nothing can have changed",
        ),
        (("last", "last", "--fail-on", "wors"), "--fail-on: 'wors' is not a kind of change."),
        (("last", "last", "--metric", "latncy"), "Did you mean 'latency'?"),
        (("last", "last", "--threshold", "3"), "--threshold: '3' is not a fraction"),
        (("last", "--tag", "é" * 90), "is not a tag: up to 100 letters of ASCII"),
        (("copied", "--tag", "a"), "BASE: 'copied' is not the folder of a sweep"),
    ],
)
def test_a_mistake_is_one_clear_error(nights: Path, arguments: tuple[str, ...], told: str) -> None:
    (nights / "x.txt").write_text("{}")
    (nights / "copied").mkdir(exist_ok=True)
    (nights / "copied" / "comparison.json").write_text("{}")
    ran = compare(nights, *arguments)
    assert ran.code == 1
    assert told in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.slow
def test_a_sweep_is_compared_with_a_tagged_one_and_keeps_a_copy(nights: Path, tmp_path: Path) -> None:
    shutil.copytree(nights / "outputs", tmp_path / "outputs")
    ran = call_command(tmp_path, *FAKE, SLOWER, "batch_size=1,2", "name=tonight", "compare.baseline=tag:nightly")
    assert ran.code == 0, ran.err
    assert "vs tag:nightly" in ran.out
    assert ran.out.count("×1.10 [1.10–1.10] worse") == 2
    folder = ran.folder("tonight")
    assert len(json.loads((folder / "baseline.json").read_text())["rows"]) == 2
    shutil.rmtree(tmp_path / "outputs" / "adhoc")
    told = compare(tmp_path, str(folder / "baseline.json"), "last")
    assert told.code == 0
    assert "2 of 2 combinations are in both" in told.out
    gone = compare(tmp_path, "tag:nightly", "last")
    assert gone.code == 1
    assert "which no longer exists; tag another with --tag nightly." in gone.err


@pytest.mark.slow
def test_a_named_combination_is_everyones_baseline_and_what_qualifies_is_told(tmp_path: Path) -> None:
    planned = call_command(tmp_path, *FAKE, "backend.slowdown=1,1.5,3", "dry_run=true")
    id = next(line.split()[-2] for line in planned.out.splitlines() if " 1.5 " in f" {line} ")
    ran = call_command(
        tmp_path,
        *FAKE,
        "backend.slowdown=1,1.5,3",
        f"compare.baseline={id}",
        "compare.thresholds={latency/forward: 0.4}",
        "compare.pareto=[latency,macs]",
        'compare.constraints=["latency < 2 ms and parameters <= 1k"]',
    )
    assert ran.code == 0, ran.err
    assert "vs backend.slowdown=1.5" in ran.out
    assert "threshold 5% (latency/forward 40%)" in ran.out
    assert "×0.67 [0.67–0.67] same" in ran.out  # within 40%
    assert "×2.00 [2.00–2.00] worse" in ran.out
    assert "2 of 3 combinations fulfil them" in " ".join(ran.out.split())
    assert [line.split()[:2] for line in ran.out.splitlines() if "✗" in line] == [["3", "✗"]]
