"""The batch script and the command that submits it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

from support.planning import planned
from sweeprof.slurm.commands import sbatch, script
from sweeprof.storage.jobs import Submission


def submission(*arguments: str, shards: tuple[int, ...] = (0, 1, 2)) -> tuple[Submission, dict[str, Any]]:
    cluster = planned(
        ["cluster=slurm", "model=fake", "backend=fake", "dataset=synthetic", "tracking=none", *arguments]
    ).cluster
    return Submission("ab12", "night-ab12", shards, cluster["resources"][0], 0.0), cluster["settings"]


def command(*arguments: str) -> list[str]:
    made, settings = submission(*arguments)
    return sbatch(
        made, settings, Path("/sweeps/100%/jobs/ab12.sh"), Path("/sweeps/100%/logs/jobs/ab12-%a.log"), Path("/work")
    )


def test_nothing_is_asked_for_that_nobody_wants() -> None:
    assert command() == [
        *(
            "sbatch",
            "--parsable",
            "--job-name=night-ab12",
            "--array=0-2",
            "--output=/sweeps/100%%/logs/jobs/ab12-%a.log",
        ),
        *("--open-mode=append", "--chdir=/work", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--requeue"),
        "/sweeps/100%/jobs/ab12.sh",
    ]


def test_what_is_asked_for() -> None:
    words = command(
        *(
            "cluster.time=1.5h",
            "cluster.memory=1.5GiB",
            "cluster.gpus=a100:1",
            "cluster.cpus=4",
            "cluster.exclusive=true",
        ),
        *(
            "cluster.partition=gpu",
            "cluster.account=lab",
            "cluster.qos=low",
            "cluster.constraint=zen4",
            "cluster.parallel=8",
        ),
    )
    expected = (
        "--time=90 --mem=1536M --gres=gpu:a100:1 --cpus-per-task=4 --exclusive --partition=gpu --account=lab --qos=low"
    )
    assert {*expected.split(), "--constraint=zen4", "--array=0-2%8"} <= set(words)


def test_options_of_sbatch_pass_through() -> None:
    words = command("cluster.options={nice: 100, no-requeue: true, hold: false, ntasks: 2, nodes: null}")
    assert {"--nice=100", "--no-requeue", "--ntasks=2"} <= set(words)
    assert not {"--requeue", "--hold", "--hold=False", "--nodes=None"} & set(words)


def test_the_script_needs_nothing_of_the_environment(tmp_path: Path) -> None:
    fake = tmp_path / "the python"
    fake.write_text('#!/bin/sh\nprintf "%s|" "$A" "$PYTHONPATH" "$LOADED" "$@"')
    fake.chmod(0o755)
    made, settings = submission('cluster.environment={A: "it\'s $x"}', "cluster.setup=['LOADED=yes; export LOADED']")
    text = script(made, settings, tmp_path / "a folder", str(fake), {"PYTHONPATH": "/a:/b c"})
    done = subprocess.run(["/bin/bash"], input=text, env={}, capture_output=True, text=True, check=True)
    words = ["it's $x", "/a:/b c", "yes", "-m", "sweeprof.run.slurm_task", str(tmp_path / "a folder"), "ab12", ""]
    assert done.stdout.split("|") == words
    assert shlex.split(text.splitlines()[-1])[0] == "exec"
