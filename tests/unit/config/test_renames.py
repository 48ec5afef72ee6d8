"""Keys and values of the last release: still accepted, with a warning that has the present name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command import call_command
from support.planning import composer, planned
from sweeprof.config.schema import RENAMED
from sweeprof.storage.folder import Folder

FAKE = ("backend=fake", "model=fake", "dataset=synthetic", "metrics=latency")


def test_the_keys_that_were_renamed() -> None:
    assert RENAMED == {
        "alone": "single_combination",
        "jobs": "parallel_trials",
        "retry": "retry_statuses",
        "wait": "wait_for_jobs",
    }


def test_an_earlier_name_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert planned([*FAKE, "jobs=3"]).parallel_trials == 3
    assert capsys.readouterr().err == "the key 'jobs' is now called 'parallel_trials'\n"
    assert planned([*FAKE, "parallel_trials=3"]).parallel_trials == 3
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("overrides", "trials"), [((), 4), (("parallel_trials=2",), 2), (("jobs=2",), 2)])
def test_an_earlier_name_in_a_sweep_file(tmp_path: Path, overrides: tuple[str, ...], trials: int) -> None:
    """What the command line sets wins over the file, by whichever name."""
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "mine.yaml").write_text("# @package _global_\njobs: 4\naxes: {batch_size: [1, 2]}\n")
    assert planned([*FAKE, "+sweep=mine", *overrides], tmp_path).parallel_trials == trials


def test_a_sweep_says_which_names_are_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "mine.yaml").write_text("# @package _global_\nwait: true\nprotocol: {interleave: duel}\n")
    ran = call_command(tmp_path, *FAKE, "+sweep=mine", "--config-dir", str(tmp_path), "dry_run=true")
    assert ran.code == 0
    for message in (
        "the key 'wait' is now called 'wait_for_jobs'",
        "protocol.interleave=duel is now called protocol.interleave=samples",
    ):
        assert ran.err.count(message) == 1
    ran = call_command(tmp_path, *FAKE, "protocol=duel", "dry_run=true")
    assert "protocol=duel is now called protocol=interleaved" in ran.err


def test_an_earlier_setting_of_the_quantization(capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(
        ["backend=litert", "model=mlp", "metrics=latency", "tracking=none", "backend.quantization=none,dynamic"]
    )
    assert "backend.precision_method=dynamic,static" in capsys.readouterr().err
    assert [c.unsupported for c in plan.combinations] == [None, None]


def test_a_combination_keeps_its_id() -> None:
    """A sweep of the last release can be resumed, and compared with a new one."""
    (earlier,) = planned([*FAKE, "protocol.interleave=duel"]).combinations
    (present,) = planned([*FAKE, "protocol.interleave=samples"]).combinations
    assert earlier.id == present.id
    assert (
        planned([*FAKE, "protocol=duel"]).combinations[0].id
        == planned([*FAKE, "protocol=interleaved"]).combinations[0].id
    )


def test_a_plan_of_the_last_release_is_read(tmp_path: Path) -> None:
    data = json.loads((Path(__file__).parents[2] / "golden" / "sweep-v2" / "plan.json").read_text(encoding="utf-8"))
    data["jobs"] = 3
    del data["parallel_trials"]
    (tmp_path / "plan.json").write_text(json.dumps(data))
    assert Folder(tmp_path).read_plan().parallel_trials == 3


def test_a_misspelt_earlier_name_is_an_unknown_key() -> None:
    with pytest.raises(Exception, match="job"):
        composer([*FAKE, "job_s=3"]).plan()
